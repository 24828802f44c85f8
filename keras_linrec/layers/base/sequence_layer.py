"""The base of all sequence units."""

import inspect
from functools import partial

import keras
from keras import ops

from keras_linrec.layers.base.set_later import SetLater
from keras_linrec.layers.base.set_later import accepted_share
from keras_linrec.layers.base.stateful_layer import StatefulLayer
from keras_linrec.layers.base.streaming import Streaming
from keras_linrec.ops.exportable import with_fixed_sizes
from keras_linrec.ops.masks.steps import Steps
from keras_linrec.ops.masks.steps import Wanted
from keras_linrec.ops.masks.steps import require_arrays
from keras_linrec.ops.masks.steps import run_again
from keras_linrec.ops.masks.steps import run_masked
from keras_linrec.validation import by_name
from keras_linrec.validation import checked_seed
from keras_linrec.validation import first_mask
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import parameters_of
from keras_linrec.validation import property_if_known
from keras_linrec.validation import require_call_arguments
from keras_linrec.validation import require_count

# The arguments of a call that a part of a stream does not take.
_NOT_OF_PARTS = {
    "sequences",
    "initial_state",
    "mask",
    "training",
    "sequences_mask",
}
_NOT_OF_STEPS = {*_NOT_OF_PARTS, "reset_mask"}


class SequenceLayer(StatefulLayer, Streaming):
    """The base of all units that map a sequence to a sequence.

    It implements once what every recurrent layer needs: masks, initial and
    final states, streaming, direction, statefulness, shapes and errors. A unit
    supplies its weights and three methods:

    - `build_unit(features)` creates the weights, with `add_parameter`;
    - `run(steps, states, wanted)` maps whole sequences to `(outputs,
      final_states)`;
    - `run_step(step, states, constants)` does the same for one time step.

    It also supplies `state_shapes_of(features)`, the shapes of its states
    without the batch, and, if each step would derive the same values from the
    weights, `step_constants()`. A unit whose call takes further arguments
    names them in `call_arguments`.

    The recurrence and its parameters are float32 under any dtype policy
    (float64 under a float64 policy). Outputs have the policy's compute dtype;
    states stay float32.

    Args:
        units: integer, the number of output features, or `None` for as many
            as the input has.
        dropout: float in [0, 1), the share of input features to drop during
            training, the same ones at every time step. Defaults to 0.
        seed: integer, the seed of the dropout. Defaults to `None`.
        return_sequences: whether to return the outputs of all time steps or
            only the last. Defaults to `True`.
        return_state: whether to return the final states too. Defaults to
            `False`.
        go_backwards: whether to read the sequence from its end; the outputs
            come in the order of reading. Defaults to `False`.
        stateful: whether each batch starts from the final states of the last
            one. Needs a fixed batch size. Defaults to `False`.
        zero_output_for_mask: whether masked steps give zeros instead of
            repeating the previous output. Defaults to `False`.
        **kwargs: `name`, `dtype`, `trainable`, `activity_regularizer`.

    Call arguments are those of `call`.

    Output shape:
        (batch, time, units) if `return_sequences`, else (batch, units); with
        `return_state`, a tuple of that and the final states.

    Raises:
        ValueError: at construction, for an argument out of its range or one of
            Keras' recurrent layers that has no meaning here.
        TypeError: for a call argument that the layer does not take.
    """

    def __init__(
        self,
        units=None,
        dropout=0.0,
        seed=None,
        return_sequences=True,
        return_state=False,
        go_backwards=False,
        stateful=False,
        zero_output_for_mask=False,
        **kwargs,
    ):
        super().__init__(stateful=stateful, **kwargs)
        require_count("units", units, optional=True)
        self.units = units
        self.seed = checked_seed(seed)
        self.dropout = dropout
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.zero_output_for_mask = zero_output_for_mask
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)

    # Arguments that may be set later.

    _accept_return_sequences = SetLater._accept_flag
    _accept_return_state = SetLater._accept_flag
    _accept_go_backwards = SetLater._accept_flag
    _accept_zero_output_for_mask = SetLater._accept_flag

    def _accept_dropout(self, name, value):
        return accepted_share(self, name, value, self.seed)

    # Supplied by a unit.

    def build_unit(self, features):
        """Create the weights for inputs of `features` features."""
        raise NotImplementedError

    call_arguments = ()
    """Names of the call's own arguments. Each is `None` unless given."""

    def run(self, steps, states, wanted):
        """Map whole sequences to `(outputs, final_states)`.

        Args:
            steps: `keras_linrec.ops.masks.steps.Steps` without a mask, in the
                recurrence's dtype. With `lengths`, each row ends after so many
                steps: its last output and final states are those. The inputs
                from there on are zero, and their outputs are not used.
                `time_deltas` and `options` are there for units that name them
                in `call_arguments`.
            states: list of the states before the first step, or `None`: zero.
            wanted: `keras_linrec.ops.masks.steps.Wanted`, whether all outputs
                are needed, or the last of each row alone, and whether the final
                states are, which may be `None` if not.
        """
        raise NotImplementedError

    def run_step(self, step, states, constants=None):
        """Map one step to `(outputs, new_states)`.

        Args:
            step: `Steps` without the axis of time, in the recurrence's dtype.
            states: list of the states before the step.
            constants: from `step_constants`, or `None` to compute them here.
        """
        raise NotImplementedError

    @property_if_known
    def output_units(self):
        """The number of output features, known once the layer is built."""
        return self.units or self.input_spec.axes[-1]

    def _units_for(self, features):
        """The number of output features, for a layer that may not be built.

        Args:
            features: integer, that of the inputs, or `None` if it is unknown.
        """
        if self.units is None and features is None:
            raise ValueError(
                f"Layer '{self.name}' has as many states as input features: "
                "build or call it before asking for its states, or give it "
                "`units`. Received: units=None, built=False"
            )
        return self.units or features

    def _require_known_features(self, features):
        """Raise where the number of features is not known yet."""
        if features is None:
            raise ValueError(
                f"Layer '{self.name}' has states for each input feature: "
                "build or call it before asking for its states. Received: "
                "built=False"
            )

    @property
    def is_linear(self):
        """Whether the layer has no nonlinearity of its own."""
        return False

    # Building and shapes.

    def build(self, sequences_shape, initial_state_shape=None):
        if len(sequences_shape) != 3 or not sequences_shape[-1]:
            raise ValueError(
                f"{type(self).__name__} takes sequences of the shape (batch, "
                "time, features) with a known number of features, 1 or more. "
                f"Received: shape={tuple(sequences_shape)}"
            )
        batch, _, features = sequences_shape
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: features})
        self.build_unit(features)
        if self.stateful:
            self._build_states(batch)

    def _add_bias(self):
        """The bias of the outputs, or `None` without `use_bias`."""
        if not self.use_bias:
            return None
        return self.add_parameter(
            "bias",
            (self.output_units,),
            self.bias_initializer,
            regularizer=self.bias_regularizer,
            constraint=self.bias_constraint,
        )

    def compute_output_shape(self, sequences_shape, initial_state_shape=None):
        batch, time, features = sequences_shape
        units = self.units or features
        output = (
            (batch, time, units) if self.return_sequences else (batch, units)
        )
        if not self.return_state:
            return output
        states = [(batch, *shape) for shape in self.state_shapes_of(features)]
        return (output, *states)

    def compute_output_spec(self, *args, **kwargs):
        given = by_name(type(self).call, args, kwargs)
        sequences = given.pop("sequences")
        # It may be a nest, of which the call takes the first mask.
        given.pop("mask", None)
        Steps.of_call(sequences, **given).check()
        if given.get("initial_state") is not None:
            self._standardise_initial(given["initial_state"], sequences)
        output = keras.KerasTensor(
            self._output_shape(sequences.shape), dtype=self.compute_dtype
        )
        if not self.return_state:
            return output
        states = [
            keras.KerasTensor(
                (sequences.shape[0], *shape), dtype=self.recurrence_dtype
            )
            for shape in self._state_shapes()
        ]
        return (output, *states)

    def _output_shape(self, sequences_shape):
        shape = self.compute_output_shape(sequences_shape)
        return shape[0] if self.return_state else shape

    def compute_mask(self, inputs, mask=None):
        mask = first_mask(mask) if self.return_sequences else None
        if mask is not None and self.go_backwards:
            # The outputs are in the order in which the steps were read.
            mask = ops.flip(mask, axis=1)
        if not self.return_state:
            return mask
        return [mask] + [None] * len(self._state_shapes())

    # Calling.

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # A user's own `call` has no such attribute.
        takes = getattr(cls.call, "takes", None)
        if takes in (None, cls.call_arguments):
            return
        cls.call = _call_with(cls.call_arguments)

    @in_any_byte_order
    def __call__(self, *args, **kwargs):
        self._require_known(kwargs)
        # Before Keras converts them, whose errors name no argument.
        require_arrays(by_name(type(self).call, args, kwargs))
        return super().__call__(*args, **kwargs)

    def call(
        self,
        sequences,
        initial_state=None,
        mask=None,
        training=False,
        reset_mask=None,
        sequences_mask=None,
    ):
        """Map sequences to outputs, and to the final states if they are wanted.

        Some units take further arguments, which their docstrings describe.

        Args:
            sequences: float tensor, (batch, time, features).
            initial_state: list of tensors, the states before the first step,
                whose shapes the unit's docstring has. Defaults to `None`:
                zeros, or the states of the previous batch if `stateful`.
            mask: boolean tensor, (batch, time), true where a step counts. A
                masked step carries the states and repeats the previous output
                (zeros before the first step that counts), whatever its input.
                Any pattern is allowed. A row that is masked throughout gives
                zeros and its initial state. Defaults to `None`, everywhere.
            training: whether dropout applies. Defaults to `False`.
            reset_mask: boolean tensor, (batch, time), true where a sequence
                begins: the states are reset before that step, so that several
                sequences share a row and each gives what it would give on its
                own. With `go_backwards` each is processed from its own end.
                Defaults to `None`, nowhere.
            sequences_mask: filled in by Keras with the mask of an earlier layer
                if a call has several tensors. Users pass `mask`.
        """
        return self._call(
            sequences,
            initial_state,
            mask,
            training,
            sequences_mask,
            reset_mask=reset_mask,
        )

    def _call(
        self,
        sequences,
        initial_state=None,
        mask=None,
        training=False,
        sequences_mask=None,
        return_state=None,
        **arguments,
    ):
        """Implement `call`.

        Args:
            sequences, initial_state, mask, training: those of the call.
            sequences_mask: an earlier layer's mask. Keras passes it as `mask`
                if the sequence is the only tensor of the call, and under this
                name otherwise.
            return_state: whether to return the final states. Defaults to
                `None`, the layer's own setting.
            **arguments: what else the call takes.
        """
        if sequences.shape[1] == 0:
            raise ValueError(
                f"Layer '{self.name}' needs at least one time step. "
                f"Received: sequences.shape={tuple(sequences.shape)}"
            )
        mask = first_mask(sequences_mask if mask is None else mask)
        sequences = with_fixed_sizes(sequences)
        steps = Steps.of_call(sequences, mask=mask, **arguments)
        steps = steps.checked(self.recurrence_dtype)
        sequences = steps.inputs
        if self.stateful:
            sequences = self._of_fixed_batch(sequences)
        states = self._states_before(sequences, initial_state)
        # In this order: under JAX's `keras.RematScope` `training` has no truth
        # value.
        if self.dropout and training:
            sequences = sequences * self._dropout_mask(sequences)
        steps = steps._replace(inputs=sequences)
        if self.go_backwards:
            steps = steps.backward()
        if return_state is None:
            return_state = self.return_state
        wanted = Wanted(self.return_sequences, return_state or self.stateful)
        run = partial(self._run, wanted=wanted)
        if self._rematerializes(sequences):
            run = partial(run_again, run, variables=self._read_once())
        outputs, final_states = run(steps, states)
        if self.stateful:
            self._keep_states(final_states)
        outputs = ops.cast(outputs, self.compute_dtype)
        return (outputs, *final_states) if return_state else outputs

    def _run(self, steps, states, wanted):
        """The wanted outputs and final states, masked steps left out."""
        if steps.mask is None:
            return self.run(steps, states, wanted)
        return run_masked(
            partial(self.run, states=states, wanted=wanted),
            steps,
            wanted,
            self.zero_output_for_mask,
            self.trained_states(ops.shape(steps.inputs)[0]),
        )

    def _states_before(self, sequences, initial_state):
        """The states before the first step, or `None` for zeros."""
        if initial_state is not None:
            return self._standardise_initial(initial_state, sequences)
        if self.stateful:
            return self._kept_states()
        return self.trained_states(ops.shape(sequences)[0])

    def _standardise_initial(self, states, sequences):
        return self._standardise_states(
            states, sequences.shape[0], "initial_state"
        )

    def _require_known(self, given, excluded=()):
        """Raise for an argument given by name that `call` does not take."""
        if given:
            parameters = parameters_of(type(self).call)
            known = [name for name in parameters if name not in excluded]
            require_call_arguments(self, given, known)

    def _dropout_mask(self, sequences):
        return keras.random.dropout(
            ops.ones_like(sequences[:, :1]),
            self.dropout,
            seed=self.seed_generator,
        )

    # `keras.RematScope` recomputes the recurrence, not the whole call: dropout
    # is drawn once, and the states of a stateful layer are assigned outside.

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call

    def _rematerializes(self, sequences):
        """Whether the layer was made in a scope that recomputes."""
        # Keras 3.12 answers only for layers that were made in a scope.
        if getattr(self, "_remat_mode", None) is None:
            return False
        scope = super().rematerialized_call
        return scope(run_again, sequences) is not run_again and (
            self._has_own_weights()
        )

    def _has_own_weights(self):
        """False inside `stateless_call`, which replaces the weights.

        There `keras.remat` would lose their gradients on TensorFlow, and
        recompute with the layer's own weights on PyTorch.
        """
        if keras.backend.backend() == "jax" or not self.weights:
            return True
        weight = self.weights[0]
        return weight.value is weight._value

    def _read_once(self):
        """The weights that a recomputation takes from the first pass.

        On TensorFlow `tf.recompute_grad` reads variables anew, in a program
        sometimes after the optimizer's update: of 726 compiled models of an
        LSSL, 22 had wrong gradients.
        """
        if keras.backend.backend() != "tensorflow":
            return ()
        return self.trainable_variables

    # Streaming.

    def _require_streaming(self, part=False):
        if part and not (self.return_sequences and not self.stateful):
            raise ValueError(
                "A layer that continues sequences should return them, and keep "
                "no states of its own. Received: return_sequences="
                f"{self.return_sequences}, stateful={self.stateful} in layer "
                f"'{self.name}'"
            )
        if self.go_backwards:
            raise ValueError(
                "A layer that reads sequences from their end cannot stream. "
                f"Received: go_backwards=True in layer '{self.name}'"
            )

    def _stream_part(self, sequences, states, mask, **options):
        self._require_known(options, _NOT_OF_PARTS)
        require_arrays({"mask": mask, **options})
        self._require_features("sequences", sequences)
        # Not through `__call__`, which returns states only if the layer has
        # `return_state`. Nothing else that it does is needed here: the mask is
        # given, parameters are never cast, and a stream has neither dropout
        # nor losses.
        outputs, *states = self._call(
            sequences, states, mask, return_state=True, **options
        )
        return outputs, states

    def _require_features(self, name, values):
        features = self.input_spec.axes[-1]
        if values.shape[-1] != features:
            raise ValueError(
                f"Layer '{self.name}' takes steps of {features} features. "
                f"Received: {name}.shape={tuple(values.shape)}"
            )

    def _stream_step(self, inputs, states, constants, **options):
        self._require_features("inputs", inputs)
        self._require_known(options, _NOT_OF_STEPS)
        options = {k: v for k, v in options.items() if v is not None}
        require_arrays(options)
        step = Steps.of_call(inputs, **options)
        step = step.checked(self.recurrence_dtype)
        states = self._standardise_states(states, inputs.shape[0])
        outputs, states = self.run_step(step, states, constants)
        return ops.cast(outputs, self.compute_dtype), list(states)

    def build_from_config(self, config):
        if "shapes_dict" in config:
            # Earlier files have shapes of the call's own arguments too.
            known = parameters_of(type(self).build)
            shapes = config["shapes_dict"].items()
            shapes = {name: shape for name, shape in shapes if name in known}
            config = {**config, "shapes_dict": shapes}
        super().build_from_config(config)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "dropout": self.dropout,
            "seed": self.seed,
            "return_sequences": self.return_sequences,
            "return_state": self.return_state,
            "go_backwards": self.go_backwards,
            "stateful": self.stateful,
            "zero_output_for_mask": self.zero_output_for_mask,
        }


SequenceLayer.call.takes = ()


def _call_with(names):
    """A `call` that takes arguments of the unit's own.

    Keras reads from its signature which tensors a layer takes, and so whose
    masks and shapes to pass.
    """

    def call(self, *args, **kwargs):
        names = parameters_of(call)
        surplus = kwargs.keys() - set(names[len(args) :])
        if surplus or len(args) > len(names):
            # Raises Python's own error.
            call.__signature__.bind(self, *args, **kwargs)
        return self._call(**by_name(call, args, kwargs))

    shared = inspect.signature(SequenceLayer.call)
    *parameters, last = shared.parameters.values()
    own = [last.replace(name=name) for name in names]
    call.takes = names
    call.__doc__ = SequenceLayer.call.__doc__
    call.__signature__ = shared.replace(parameters=[*parameters, *own, last])
    return call
