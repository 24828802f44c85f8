"""Whole models one step at a time: states in, states out."""

from dataclasses import dataclass
from functools import partial

import keras
import numpy as np
from keras import ops

from keras_linrec.models.residual_block import serialize_unbuilt


def export_step(model, position_wise=()):
    """The one-step streaming form of a model of sequences.

    The model that is returned takes one time step and the states before it,
    and gives what the model says of the sequence up to this step, and the new
    states. Its weights are those of the model, not copies of them. It is a
    Keras model of its own, to call, to save and to `export`: no length is in
    it, and its cost does not grow with the time passed.

    Layers with states run by their `step`. These are the ones of
    `keras_linrec.layers`, the models and the block of `keras_linrec.models`,
    `keras.layers.RNN` with any cell, `LSTM`, `GRU` and `SimpleRNN`, and any
    layer with the methods `get_initial_state(batch_size)` and `step(inputs,
    states)`. What treats every step alike runs as it is, at a length of one.
    Global average and maximum pooling run on as means and maxima of the steps
    so far, and `return_sequences=False` and `x[:, -1]` stand for the step
    taken last: behind them the model has an output after each step, which is
    what it gives for the sequence that ends there.

    Args:
        model: a functional or `Sequential` model, or one of
            `keras_linrec.models`; built. Models may be nested. An input has a
            time axis, its second, if it is of rank 3 and more, or of rank 2
            and of integers or an unknown length.
        position_wise: classes of layers that treat every step alike, beside
            those of Keras that are known to. Defaults to `()`.

    Returns:
        A `keras.Model`. Called with the list `[inputs, *states]`, where
        `inputs` is (batch, features), it returns `[outputs, *states]`, with
        the states after the step. Its method `initial_states(batch_size)`
        gives the list of those before the first step. Several inputs and
        outputs come one after another, in the order of `model.inputs` and
        `model.outputs`.

    Raises:
        ValueError: for a layer that cannot run one step at a time, with its
            name and the reason; for a model that is not built, or has no
            layer with states.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_linrec
    >>> model = keras.Sequential(
    ...     [
    ...         keras.Input((None, 3)),
    ...         keras.layers.Dense(8),
    ...         keras_linrec.layers.LSSL(state_size=16),
    ...         keras.layers.Dense(2),
    ...     ]
    ... )
    >>> step = keras_linrec.export_step(model)
    >>> sequences = np.random.rand(4, 10, 3).astype("float32")
    >>> states = step.initial_states(batch_size=4)
    >>> for t in range(10):
    ...     outputs, *states = step([sequences[:, t], *states])
    >>> difference = keras.ops.abs(model(sequences)[:, -1] - outputs)
    >>> bool(keras.ops.max(difference) < 1e-4)
    True
    """
    if not model.built:
        raise ValueError(
            "`model` should be built: give it a `keras.Input`, or call it "
            f"once. Received: the model '{model.name}', built=False"
        )
    streaming = _Streaming(model.name, tuple(position_wise))
    given, inside = streaming.inputs_of(model)
    outputs = streaming.apply(model, inside)
    if not streaming.states:
        raise ValueError(
            "`model` should have a layer with states; without one, it runs a "
            f"step as a sequence of one. Received: the model '{model.name}'"
        )
    step = StepModel(
        [*given, *streaming.states],
        [*map(_of_step, keras.tree.flatten(outputs)), *streaming.new_states],
        name=f"{model.name}_step",
    )
    step.state_count = len(streaming.states)
    return step


@keras.saving.register_keras_serializable("keras_linrec")
class StepModel(keras.Model):
    """What `keras_linrec.export_step` returns."""

    # These arguments, so that Keras reads it from a file as a functional one.
    def __init__(self, inputs, outputs, name=None, **kwargs):
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        self.state_count = 0

    def __call__(self, inputs, **kwargs):
        # Keras takes no arrays beside tensors.
        return super().__call__(
            keras.tree.map_structure(_as_tensor, inputs), **kwargs
        )

    def initial_states(self, batch_size):
        """The states before the first step: a list of zeros.

        Args:
            batch_size: integer, the number of rows.
        """
        return [
            ops.zeros((batch_size, *state.shape[1:]), dtype=state.dtype)
            for state in self.inputs[-self.state_count :]
        ]

    def get_config(self):
        return {**super().get_config(), "state_count": self.state_count}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        state_count = config.pop("state_count")
        model = super().from_config(config, custom_objects)
        model.state_count = state_count
        return model


@keras.saving.register_keras_serializable("keras_linrec")
class OneStep(keras.layers.Layer):
    """One time step of a layer that has states, as a layer without them.

    Args:
        layer: the layer.
        **kwargs: `name`.

    Call arguments:
        inputs: (batch, 1, features).
        states: list of tensors, the states in a row.
        time_deltas: (batch, 1), for a layer that takes them.
        step_rescale: for a layer that takes it.

    Output: a list of what the layer gives for a sequence of one step, and the
    new states in a row.
    """

    def __init__(self, layer, **kwargs):
        # The layer casts what it is given as it does in its own model.
        super().__init__(autocast=False, **kwargs)
        self.layer = layer

    def build(
        self,
        inputs_shape,
        states_shape=None,
        time_deltas_shape=None,
        step_rescale_shape=None,
    ):
        if not self.layer.built:
            self.layer.build(inputs_shape)

    def compute_output_spec(self, inputs, states, *args, **kwargs):
        outputs = self.layer.compute_output_spec(inputs)
        return [
            keras.tree.flatten(outputs)[0],
            *(keras.KerasTensor(state.shape, state.dtype) for state in states),
        ]

    def call(self, inputs, states, time_deltas=None, step_rescale=None):
        options = {}
        if time_deltas is not None:
            options["time_deltas"] = time_deltas[:, 0]
        if step_rescale is not None:
            options["step_rescale"] = step_rescale
        layer = self.layer
        states = keras.tree.pack_sequence_as(
            layer.get_initial_state(1), list(states)
        )
        # A cell is called as it is; it has no options.
        step = layer.cell if _is_keras_rnn(layer) else layer.step
        outputs, states = step(inputs[:, 0], states, **options)
        if _keeps_time(layer, inputs.shape):
            outputs = ops.expand_dims(outputs, 1)
        return [outputs, *keras.tree.flatten(states)]

    def get_config(self):
        config = serialize_unbuilt(self.layer)
        if config["config"].get("stateful"):
            # States come with the call; those within want a fixed batch.
            config["config"]["stateful"] = False
        return {**super().get_config(), "layer": config}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        layer = keras.saving.deserialize_keras_object(
            config.pop("layer"), custom_objects=custom_objects
        )
        return cls(layer, **config)


@keras.saving.register_keras_serializable("keras_linrec")
class RunningPool(keras.layers.Layer):
    """Global pooling over the steps so far.

    Args:
        kind: `"mean"` or `"max"`.
        **kwargs: `name`, `dtype`.
    """

    def __init__(self, kind, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.kind = kind
        self.features = None

    def build(self, inputs_shape):
        self.features = inputs_shape[-1]

    def compute_output_spec(self, inputs):
        shape = (inputs.shape[0], inputs.shape[-1])
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_initial_state(self, batch_size):
        """What was pooled so far, and the number of steps."""
        return [
            ops.zeros((batch_size, width), dtype=self.variable_dtype)
            for width in (self.features, 1)
        ]

    def step(self, inputs, states):
        """One time step."""
        pooled, count = states
        inputs = ops.cast(inputs, self.variable_dtype)
        if self.kind == "mean":
            pooled = pooled + (inputs - pooled) / (count + 1)
        else:
            # Nothing was seen before the first step, not zeros.
            pooled = ops.where(count > 0, ops.maximum(pooled, inputs), inputs)
        return ops.cast(pooled, self.compute_dtype), [pooled, count + 1]

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}


@dataclass(eq=False)
class _Timed:
    """A symbolic tensor that has a time axis, of one step here."""

    tensor: keras.KerasTensor


class _Streaming:
    """A model's graph, walked with one step in the place of a sequence.

    Args:
        name: the model's.
        position_wise: classes of layers that the user vouches for.
    """

    def __init__(self, name, position_wise):
        self.name = name
        self.position_wise = position_wise
        self.states = []
        self.new_states = []
        self.steps = {}

    # Inputs.

    def inputs_of(self, model):
        """The inputs for a step, and what the model's own graph sees."""
        if isinstance(model, (keras.Function, keras.Sequential)):
            tensors = model.inputs
        else:
            shape = _input_shape(model)
            tensors = [keras.KerasTensor(shape, model.input_dtype, name="step")]
        given, inside = zip(*(self._input(tensor) for tensor in tensors))
        if isinstance(model, keras.Function):
            # The walk through the graph takes them one after another.
            return given, list(inside)
        return given, inside[0]

    def _input(self, tensor):
        shape = tensor.shape
        kind = keras.backend.is_int_dtype(tensor.dtype)
        has_time = len(shape) > 2 or (
            len(shape) == 2 and (kind or shape[1] is None)
        )
        given = keras.Input(
            shape[2 if has_time else 1 :], dtype=tensor.dtype, name=tensor.name
        )
        if not has_time:
            return given, given
        reshape = keras.layers.Reshape(
            (1, *shape[2:]), name=f"{tensor.name}_in_time", dtype=tensor.dtype
        )
        return given, _Timed(reshape(given))

    # The graph.

    def apply(self, operation, *args, **kwargs):
        """What an operation gives for a step."""
        if not any(_has_time(part) for part in _leaves(args, kwargs)):
            return operation(*args, **kwargs)
        # A functional model holds what computes the masks too, in any order.
        for layer in getattr(operation, "layers", ()):
            if _masks(layer):
                self._refuse(layer, _reason(layer))
        if isinstance(operation, keras.Sequential):
            (outputs,) = args
            for layer in operation.layers:
                outputs = self.apply(layer, outputs)
            return outputs
        if isinstance(operation, keras.Function):
            return operation._run_through_graph(
                args[0], operation_fn=lambda inner: partial(self.apply, inner)
            )
        pool = _POOLINGS.get(type(operation))
        if pool is not None:
            self._require_plain_pooling(operation)
            return self._step(operation, *args, kind=pool)
        if _has_states(operation):
            return self._step(operation, *args, **kwargs)
        if _is_last_step(operation, args):
            return operation(args[0].tensor, *args[1:])
        return self._position_wise(operation, *args, **kwargs)

    def _step(self, layer, inputs, kind=None, **options):
        self._require_streaming(layer)
        options = {
            name: value
            for name, value in options.items()
            if value is not None and name != "training"
        }
        for name in set(options) - {"time_deltas", "step_rescale"}:
            self._refuse(layer, f"it is called with `{name}`")
        if not isinstance(inputs, _Timed):
            self._refuse(layer, "what it is called with has no time axis")
        step = self._one_step(layer, kind, inputs.tensor.shape)
        states = self._new_inputs(layer, step.layer)
        outputs, *new_states = step(
            inputs.tensor,
            states,
            **keras.tree.map_structure(_tensor, options),
        )
        self.states.extend(states)
        self.new_states.extend(new_states)
        if _keeps_time(step.layer, inputs.tensor.shape):
            outputs = _Timed(outputs)
        if getattr(layer, "return_state", False):
            return (outputs, *new_states)
        return outputs

    def _one_step(self, layer, kind, shape):
        if id(layer) not in self.steps:
            stepped = layer
            if kind is not None:
                stepped = RunningPool(
                    kind, name=layer.name, dtype=layer.dtype_policy
                )
                stepped.build(shape)
            self.steps[id(layer)] = OneStep(stepped, name=f"{layer.name}_step")
        return self.steps[id(layer)]

    def _new_inputs(self, layer, stepped):
        """Inputs for the states of one call of a layer."""
        before = [state.name for state in self.states]
        inputs = []
        for state in keras.tree.flatten(stepped.get_initial_state(1)):
            if ops.convert_to_numpy(ops.any(ops.not_equal(state, 0))):
                self._refuse(layer, "its states do not start from zero")
            names = (f"{layer.name}_state_{n}" for n in range(10**6))
            name = next(n for n in names if n not in before)
            before.append(name)
            inputs.append(
                keras.Input(
                    tuple(state.shape[1:]),
                    dtype=keras.backend.standardize_dtype(state.dtype),
                    name=name,
                )
            )
        return inputs

    def _position_wise(self, operation, *args, **kwargs):
        self._require_position_wise(operation, args, kwargs)
        args, kwargs = keras.tree.map_structure(_tensor, (args, kwargs))
        outputs = operation(*args, **kwargs)
        for part in keras.tree.flatten(outputs):
            if len(part.shape) < 2 or part.shape[1] != 1:
                self._refuse(
                    operation, "it gives more than one step for a step"
                )
        return keras.tree.map_structure(_Timed, outputs)

    # What cannot stream.

    def _refuse(self, operation, reason):
        raise ValueError(
            f"The layer '{operation.name}' ({type(operation).__name__}) cannot "
            f"run one step at a time: {reason}. Received: the model "
            f"'{self.name}'"
        )

    def _require_streaming(self, layer):
        for part in _parts(layer):
            for name in ("go_backwards", "bidirectional"):
                if getattr(part, name, False):
                    self._refuse(
                        part, f"it reads the sequence from its end ({name})"
                    )
            if isinstance(part, keras.layers.Bidirectional):
                self._refuse(part, _reason(part))
            if not (_has_states(part) or type(part) in _POOLINGS):
                self._refuse(part, "it has no method `step`")

    def _require_plain_pooling(self, layer):
        if layer.keepdims or layer.data_format != "channels_last":
            self._refuse(
                layer,
                "it keeps the time axis, or has its channels before it "
                f"(keepdims={layer.keepdims}, "
                f"data_format={layer.data_format})",
            )

    def _require_position_wise(self, operation, args, kwargs):
        tensors = [
            part
            for part in _leaves(args, kwargs)
            if isinstance(part, (_Timed, keras.KerasTensor))
        ]
        if not all(map(_has_time, tensors)):
            self._refuse(
                operation,
                "it takes tensors with a time axis and tensors without one",
            )
        if isinstance(operation, self.position_wise):
            return
        known = type(operation) in _ALIKE
        if not isinstance(operation, keras.layers.Layer):
            known = type(operation).__name__ in _ALIKE_OPERATIONS
        rank = len(tensors[0].tensor.shape)
        # Embeddings and single numbers have no axis behind that of time.
        axes = keras.tree.flatten(getattr(operation, "axis", ()))
        over_time = any(axis % rank < 2 for axis in axes) or _is_wide(operation)
        if over_time or not known:
            self._refuse(operation, _reason(operation, over_time and known))


def _is_wide(layer):
    """Whether a convolution takes more than its own step."""
    sizes = [
        *getattr(layer, "kernel_size", ()),
        *getattr(layer, "strides", ()),
    ]
    last = getattr(layer, "data_format", None) != "channels_first"
    return not last or any(size > 1 for size in sizes)


def _masks(layer):
    return isinstance(layer, keras.layers.Masking) or getattr(
        layer, "mask_zero", False
    )


def _reason(operation, over_time=False):
    """Why a layer does not treat every step alike."""
    if over_time:
        return "it mixes time steps"
    if isinstance(operation, keras.layers.Bidirectional):
        return "it reads the sequence from its end"
    if _masks(operation):
        return (
            "it masks time steps. Stream with a model without it, and leave "
            "masked steps out: the states then stay as they are"
        )
    return (
        "it is not known to treat every time step alike. If it does, name its "
        "class in `position_wise`; if it has states, give it the methods "
        "`get_initial_state(batch_size)` and `step(inputs, states)`"
    )


def _input_shape(model):
    """The shape that a model was built for, which is not functional."""
    shape = (model.get_build_config() or {}).get("input_shape")
    if not _has_states(model) or shape is None or len(shape) != 3:
        raise ValueError(
            "`model` should be a functional or Sequential model, or one of "
            "keras_linrec.models that is built for (batch, time, features). "
            f"Received: the model '{model.name}', {type(model).__name__}, "
            f"built for {shape}"
        )
    return tuple(shape)


def _is_keras_rnn(layer):
    return isinstance(layer, keras.layers.RNN)


def _has_states(layer):
    return _is_keras_rnn(layer) or all(
        callable(getattr(layer, name, None))
        for name in ("get_initial_state", "step")
    )


def _parts(layer):
    """A layer and those that it steps itself."""
    yield layer
    for inner in (*getattr(layer, "blocks", ()), getattr(layer, "unit", None)):
        if isinstance(inner, keras.layers.Layer):
            yield from _parts(inner)


def _keeps_time(layer, shape):
    """Whether a layer's output has a time axis."""
    keeps = getattr(layer, "return_sequences", None)
    if keeps is not None:
        return keeps
    output = layer.compute_output_spec(keras.KerasTensor((None, *shape[1:])))
    return len(keras.tree.flatten(output)[0].shape) > 2


def _is_last_step(operation, args):
    """Whether an operation is `x[:, -1]`."""
    if type(operation).__name__ != "GetItem" or len(args) != 2:
        return False
    key = args[1]
    return isinstance(key, tuple) and key[:2] == (slice(None), -1)


def _as_tensor(part):
    return ops.convert_to_tensor(part) if isinstance(part, np.ndarray) else part


def _leaves(args, kwargs):
    return keras.tree.flatten([args, kwargs])


def _has_time(part):
    return isinstance(part, _Timed)


def _tensor(part):
    return part.tensor if isinstance(part, _Timed) else part


def _of_step(output):
    """An output of the model as that of one step, (batch, ...)."""
    if not _has_time(output):
        return output
    tensor = output.tensor
    reshape = keras.layers.Reshape(
        tensor.shape[2:], name=f"{tensor.name}_of_step", dtype=tensor.dtype
    )
    return reshape(tensor)


_POOLINGS = {
    keras.layers.GlobalAveragePooling1D: "mean",
    keras.layers.GlobalMaxPooling1D: "max",
}

# Layers that treat every step alike, as long as no axis they have is that of
# time, no kernel is wider than a step and nothing is masked.
_ALIKE = {
    getattr(keras.layers, name)
    for name in (
        "Activation",
        "ActivityRegularization",
        "Add",
        "AlphaDropout",
        "Average",
        "BatchNormalization",
        "Concatenate",
        "Conv1D",
        "Dense",
        "Dropout",
        "ELU",
        "Embedding",
        "GaussianDropout",
        "GaussianNoise",
        "Identity",
        "LayerNormalization",
        "LeakyReLU",
        "Maximum",
        "Minimum",
        "Multiply",
        "Normalization",
        "RMSNormalization",
        "ReLU",
        "Rescaling",
        "Softmax",
        "SpatialDropout1D",
        "Subtract",
        "TimeDistributed",
        "UnitNormalization",
    )
}

# Operations of `keras.ops`, by the names of their classes.
_ALIKE_OPERATIONS = {
    "Absolute",
    "Add",
    "Cast",
    "Clip",
    "Concatenate",
    "Cos",
    "Divide",
    "Elu",
    "Exp",
    "Expm1",
    "Gelu",
    "LeakyRelu",
    "Log",
    "Log1p",
    "Maximum",
    "Minimum",
    "Multiply",
    "Negative",
    "Power",
    "Relu",
    "Sigmoid",
    "Silu",
    "Sin",
    "Softplus",
    "Sqrt",
    "Square",
    "Subtract",
    "Tanh",
    "TrueDivide",
}
