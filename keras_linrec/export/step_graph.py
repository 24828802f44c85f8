"""A model's graph with one step in the place of a sequence."""

from dataclasses import dataclass
from itertools import chain
from itertools import count

import keras
from keras import ops

from keras_linrec.export.one_step import OneStep
from keras_linrec.export.one_step import Renamed
from keras_linrec.export.one_step import RunningPool
from keras_linrec.export.one_step import has_states
from keras_linrec.export.one_step import keeps_time
from keras_linrec.export.position_wise import is_known
from keras_linrec.export.position_wise import is_last_step
from keras_linrec.export.position_wise import is_mask
from keras_linrec.export.position_wise import masks
from keras_linrec.export.position_wise import mixes_steps
from keras_linrec.export.position_wise import reason_against
from keras_linrec.layers.base.streaming import Streaming
from keras_linrec.models.functional_graph import run_through
from keras_linrec.validation import by_name
from keras_linrec.validation import parameters_of

_POOLINGS = {
    keras.layers.GlobalAveragePooling1D: "mean",
    keras.layers.GlobalMaxPooling1D: "max",
}


@dataclass(eq=False)
class _Timed:
    """A symbolic tensor with a time axis, of length 1 here."""

    tensor: keras.KerasTensor


# In place of a mask, and of everything computed from it.
_DROPPED = object()


class StepGraph:
    """Builds the one-step form of a model from its graph.

    Args:
        name: string, the name of the model.
        position_wise: tuple of classes of layers that the user declares to be
            position-wise.
        drop_masks: whether masks are left out, instead of refused.

    Attributes:
        states, new_states: lists of symbolic tensors, the states before and
            after a step.
    """

    def __init__(self, name, position_wise, drop_masks=False):
        self.name = name
        self.position_wise = position_wise
        self.drop_masks = drop_masks
        self.states = []
        self.new_states = []
        self.steps = {}
        self.owners = {}

    def follow(self, model):
        """The inputs and the outputs of one step of the model."""
        if isinstance(model, (keras.Function, keras.Sequential)):
            tensors = model.inputs
        else:
            shape = _input_shape(model)
            tensors = [keras.KerasTensor(shape, model.input_dtype, name="step")]
        inputs, inside = zip(*map(_input_of_step, tensors))
        outputs = self._apply(model, inside if len(inside) > 1 else inside[0])
        outputs = keras.tree.flatten(outputs)
        if _has_dropped(outputs):
            raise ValueError(
                "`model` should not return a mask, or what is computed from "
                f"it, with drop_masks=True. Received: the model '{self.name}'"
            )
        return inputs, [*map(_of_step, outputs)]

    def _apply(self, operation, *args, **kwargs):
        """The outputs of an operation for one step."""
        if self.drop_masks:
            args, kwargs = _without_dropped(args, kwargs)
            if is_mask(operation) or _has_dropped(args[:1]):
                return _DROPPED
            if isinstance(operation, keras.layers.Masking):
                return args[0]
        if not any(_has_time(part) for part in _leaves(args, kwargs)):
            return self._call(operation, *args, **kwargs)
        # Refuse masks first: in a functional model the operations that compute
        # them come in any order.
        for layer in getattr(operation, "layers", ()):
            if masks(layer) and not self.drop_masks:
                self._refuse(layer, reason_against(layer))
        if isinstance(operation, keras.Sequential):
            outputs = self._inputs_alone(operation, args, kwargs)
            for layer in operation.layers:
                outputs = self._apply(layer, outputs)
            return outputs
        if isinstance(operation, keras.Function):
            inputs = self._inputs_alone(operation, args, kwargs)
            return run_through(operation, inputs, self._apply)
        pool = _POOLINGS.get(type(operation))
        if pool is not None:
            self._require_plain_pooling(operation)
            return self._step(operation, args, kwargs, pool)
        if has_states(operation):
            return self._step(operation, args, kwargs)
        if is_last_step(operation, args):
            return self._call(operation, args[0].tensor, *args[1:])
        return self._position_wise(operation, *args, **kwargs)

    def _step(self, layer, args, kwargs, kind=None):
        self._require_streaming(layer)
        inputs, options = _inputs_and_options(layer, args, kwargs)
        for name in set(options) - {"time_deltas", "step_rescale"}:
            self._refuse(layer, f"it is called with `{name}`")
        if not _has_time(inputs):
            self._refuse(layer, "its inputs have no time axis")
        if not _has_time(options.get("time_deltas", inputs)):
            self._refuse(
                layer,
                "its `time_deltas` have no time axis, as a `keras.Input` of "
                "the shape (None,) has",
            )
        step = self._one_step(layer, kind, inputs.tensor.shape)
        states = self._new_inputs(layer, step.layer)
        outputs, *new_states = step(
            inputs.tensor,
            states,
            **keras.tree.map_structure(_tensor, options),
        )
        self.states.extend(states)
        self.new_states.extend(new_states)
        if keeps_time(step.layer, inputs.tensor.shape):
            outputs = _Timed(outputs)
        if getattr(layer, "return_state", False):
            return (outputs, *new_states)
        return outputs

    def _inputs_alone(self, model, args, kwargs):
        """The inputs of a nested model, which takes nothing beside them."""
        inputs, options = _inputs_and_options(model, args, kwargs)
        for name in options:
            self._refuse(model, f"it is called with `{name}`")
        return inputs

    def _one_step(self, layer, kind, shape):
        # One pooling may have inputs of several widths.
        key = id(layer), None if kind is None else shape[-1]
        if key not in self.steps:
            stepped = layer
            if kind is not None:
                stepped = RunningPool(
                    kind, name=layer.name, dtype=layer.dtype_policy
                )
                stepped.build(shape)
            name = self._unused(f"{layer.name}_step", key)
            self.steps[key] = OneStep(stepped, name=name)
        return self.steps[key]

    def _unused(self, name, owner):
        """A name that nothing but its owner has in the model of one step.

        Layers of several nested models may share a name.
        """
        names = chain([name], (f"{name}_{n}" for n in count(2)))
        name = next(n for n in names if self.owners.get(n, owner) == owner)
        self.owners[name] = owner
        return name

    def _call(self, operation, *args, **kwargs):
        """The outputs of an operation, under a name of its own."""
        key = id(operation)
        name = self._unused(operation.name, key)
        if name != operation.name:
            if key not in self.steps:
                self.steps[key] = Renamed(operation, name=name)
            operation = self.steps[key]
        return operation(*args, **kwargs)

    def _new_inputs(self, layer, stepped):
        """Symbolic inputs for the states of one call of a layer."""
        before = [state.name for state in self.states]
        inputs = []
        for state in keras.tree.flatten(stepped.get_initial_state(1)):
            if ops.convert_to_numpy(ops.any(ops.not_equal(state, 0))):
                self._refuse(layer, "its states do not start from zero")
            names = (f"{layer.name}_state_{n}" for n in count())
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
        outputs = self._call(operation, *args, **kwargs)
        if masks(operation):
            # Keras attaches the mask to the tensor; a product has none.
            outputs = outputs * 1
        for part in keras.tree.flatten(outputs):
            if len(part.shape) < 2 or part.shape[1] != 1:
                self._refuse(
                    operation, "it returns more than one step for a step"
                )
        return keras.tree.map_structure(_Timed, outputs)

    # Models that cannot stream.

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
                self._refuse(part, reason_against(part))
            if not (has_states(part) or type(part) in _POOLINGS):
                self._refuse(part, "it has no method `step`")
        if isinstance(layer, Streaming):
            layer._require_streaming()

    def _require_plain_pooling(self, layer):
        if layer.keepdims or layer.data_format != "channels_last":
            self._refuse(
                layer,
                "it keeps the time axis, or its channels come first "
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
        if not is_known(operation):
            self._refuse(operation, reason_against(operation))
        if mixes_steps(operation, tensors[0].tensor.shape):
            self._refuse(
                operation,
                "it mixes time steps, or its activation does not run on a "
                "sequence of one step",
            )


def _input_shape(model):
    """The input shape of a built model that is not functional."""
    shape = (model.get_build_config() or {}).get("input_shape")
    if not has_states(model) or shape is None or len(shape) != 3:
        raise ValueError(
            "`model` should be a functional or Sequential model, or a model of "
            "keras_linrec.models, built for (batch, time, features). "
            f"Received: the model '{model.name}', {type(model).__name__}, "
            f"built for {shape}"
        )
    return tuple(shape)


def _input_of_step(tensor):
    """An input for one step, and the object in place of `tensor`."""
    shape = tensor.shape
    is_integer = keras.backend.is_int_dtype(tensor.dtype)
    has_time = len(shape) > 2 or (
        len(shape) == 2 and (is_integer or shape[1] is None)
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


def _of_step(output):
    """An output of the model for one step, without the time axis."""
    if not _has_time(output):
        return output
    tensor = output.tensor
    reshape = keras.layers.Reshape(
        tensor.shape[2:], name=f"{tensor.name}_of_step", dtype=tensor.dtype
    )
    return reshape(tensor)


def _parts(layer):
    """A layer and the layers within it that it runs by their `step`."""
    yield layer
    for inner in (*getattr(layer, "blocks", ()), getattr(layer, "unit", None)):
        if isinstance(inner, keras.layers.Layer):
            yield from _parts(inner)


def _inputs_and_options(layer, args, kwargs):
    """The inputs of a call, and its further arguments by name.

    Without those that are `None` throughout, and `training`.
    """
    given = by_name(type(layer).call, args, kwargs)
    first, *_ = parameters_of(type(layer).call)
    inputs = given.pop(first if first in given else next(iter(given)))
    return inputs, {
        name: value
        for name, value in given.items()
        if name != "training" and _holds_any(value)
    }


def _holds_any(value):
    """Whether a nest has other leaves than `None`.

    Keras passes a list of them as the masks of a model of several inputs.
    """
    return any(part is not None for part in keras.tree.flatten(value))


def _without_dropped(args, kwargs):
    """The arguments of a call, with `None` for masks beside the inputs."""

    def kept(part):
        return None if part is _DROPPED else part

    later, kwargs = keras.tree.map_structure(kept, (list(args[1:]), kwargs))
    return (*args[:1], *later), kwargs


def _leaves(args, kwargs):
    return keras.tree.flatten([args, kwargs])


def _has_dropped(parts):
    return any(part is _DROPPED for part in keras.tree.flatten(parts))


def _has_time(part):
    return isinstance(part, _Timed)


def _tensor(part):
    return part.tensor if isinstance(part, _Timed) else part
