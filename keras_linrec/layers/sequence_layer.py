"""The base of all sequence units."""

import inspect
from functools import partial

import keras
from keras import ops

from keras_linrec.layers.set_later import SetLater
from keras_linrec.layers.set_later import accepted_share
from keras_linrec.layers.stateful_layer import StatefulLayer
from keras_linrec.layers.streaming import Streaming
from keras_linrec.ops.concrete_values import values_of
from keras_linrec.ops.exportable import require_exportable
from keras_linrec.ops.exportable import with_fixed_sizes
from keras_linrec.ops.steps import Steps
from keras_linrec.ops.steps import run_again
from keras_linrec.ops.steps import run_masked
from keras_linrec.validation import by_name
from keras_linrec.validation import check_mask
from keras_linrec.validation import check_time_deltas
from keras_linrec.validation import checked_seed
from keras_linrec.validation import first_mask
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import property_if_known
from keras_linrec.validation import require_array
from keras_linrec.validation import require_arrays
from keras_linrec.validation import require_call_arguments
from keras_linrec.validation import require_count
from keras_linrec.validation import require_durations

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
    - `run(sequences, states, lengths, wants_states)` maps whole sequences to
      `(outputs, final_states)`;
    - `run_step(inputs, states, constants)` does the same for one time step.

    It also supplies `state_shapes_of(features)`, the shapes of its states
    without the batch, and, if each step would derive the same values from the
    weights, `step_constants()`. A unit whose call takes further arguments
    defines a `call` that passes them to `call_unit`.

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

    Call arguments:
        sequences: float tensor, (batch, time, features).
        initial_state: list of tensors, the states before the first step.
            Defaults to `None`: zeros, or the states of the previous batch if
            `stateful`.
        mask: boolean tensor, (batch, time), true where a step counts. A
            masked step carries the states and repeats the previous output
            (zeros before the first step that counts), whatever its input. Any
            pattern is allowed. A row that is masked throughout gives zeros
            and its initial state.
        training: whether dropout applies. Defaults to `False`.
        reset_mask: boolean tensor, (batch, time), true where a sequence
            begins: the states are reset before that step, so that several
            sequences share a row and each gives what it would give on its
            own. With `go_backwards` each is processed from its own end.
            Defaults to `None`, nowhere.
        sequences_mask: filled in by Keras with the mask of an earlier layer
            if a call has several tensors. Users pass `mask`.

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

    def run(self, sequences, states, lengths, wants_states, **options):
        """Map whole sequences to `(outputs, final_states)`.

        Args:
            sequences: (batch, time, features), in the recurrence's dtype.
            states: list of the states before the first step, or `None`: zero.
            lengths: `None`, or an integer tensor (batch,): the final states
                needed are those after so many steps of each row. The inputs
                from there on are zero, and their outputs are not used.
            wants_states: whether the final states are used. They may be
                `None` if not.
            **options: `resets` if the call has a `reset_mask`, boolean (batch,
                time), true where the states are reset before a step;
                `time_deltas` if it has them, (batch, time), in the
                recurrence's dtype; and whatever the unit's `call` passes to
                `call_unit`.
        """
        raise NotImplementedError

    def run_last(self, sequences, states, wants_states, **options):
        """Map whole sequences to `(last outputs, final_states)`.

        A unit overrides it if the last output alone costs less than all.
        """
        outputs, states = self.run(
            sequences, states, None, wants_states, **options
        )
        return outputs[:, -1], states

    def run_step(self, inputs, states, constants=None, **options):
        """Map (batch, features) of one step to `(outputs, new_states)`.

        Args:
            inputs: (batch, features), in the recurrence's dtype.
            states: list of the states before the step.
            constants: from `step_constants`, or `None` to compute them here.
            **options: `time_deltas` if the step has them, (batch,), in the
                recurrence's dtype, and the unit's own.
        """
        raise NotImplementedError

    @property_if_known
    def output_units(self):
        """The number of output features, known once the layer is built."""
        return self.units or self.input_spec.axes[-1]

    @property
    def is_linear(self):
        """Whether the layer has no nonlinearity of its own."""
        return False

    @property
    def wants_states(self):
        """Whether every call needs the states after the last step."""
        return self.return_state or self.stateful

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
            self.build_states(batch)

    def add_bias(self):
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
        given = inspect.signature(self.call).bind(*args, **kwargs).arguments
        sequences = given["sequences"]
        self._check_steps(
            sequences,
            reset_mask=given.get("reset_mask"),
            time_deltas=given.get("time_deltas"),
        )
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
        return self.call_unit(
            sequences, initial_state, mask, training, reset_mask, sequences_mask
        )

    def call_unit(
        self,
        sequences,
        initial_state=None,
        mask=None,
        training=False,
        reset_mask=None,
        sequences_mask=None,
        time_deltas=None,
        return_state=None,
        **options,
    ):
        """Implement `call`, for units with further arguments too.

        Args:
            sequences, initial_state, mask, training, reset_mask: those of the
                call.
            sequences_mask: an earlier layer's mask. Keras passes it as `mask`
                if the sequence is the only tensor of the call, and under this
                name otherwise.
            time_deltas: (batch, time), the length of each step. Reordered
                together with the steps on the way to `run`. Defaults to
                `None`.
            return_state: whether to return the final states. Defaults to
                `None`, the layer's own setting.
            **options: passed to `run` unchanged.
        """
        if sequences.shape[1] == 0:
            raise ValueError(
                f"Layer '{self.name}' needs at least one time step. "
                f"Received: sequences.shape={tuple(sequences.shape)}"
            )
        require_exportable(self.name)
        sequences = with_fixed_sizes(sequences)
        mask = first_mask(sequences_mask if mask is None else mask)
        time_deltas = _cast(time_deltas, self.recurrence_dtype)
        self._check_steps(sequences, mask, reset_mask, time_deltas)
        sequences = ops.cast(sequences, self.recurrence_dtype)
        if self.stateful:
            sequences = self.of_fixed_batch(sequences)
        states = self._states_before(sequences, initial_state)
        # In this order: under JAX's `keras.RematScope` `training` has no truth
        # value.
        if self.dropout and training:
            sequences = sequences * self._dropout_mask(sequences)
        steps = Steps(
            sequences,
            _cast(mask, "bool"),
            _cast(reset_mask, "bool"),
            time_deltas,
        )
        if self.go_backwards:
            steps = steps.backward()
        if return_state is None:
            return_state = self.return_state
        run = partial(
            self._run, wants_states=return_state or self.stateful, **options
        )
        if self._rematerializes(sequences):
            run = partial(run_again, run, variables=self._read_once())
        outputs, final_states = run(steps, states)
        if self.stateful:
            self.keep_states(final_states)
        outputs = ops.cast(outputs, self.compute_dtype)
        return (outputs, *final_states) if return_state else outputs

    def _states_before(self, sequences, initial_state):
        """The states before the first step, or `None` for zeros."""
        if initial_state is not None:
            return self._standardise_initial(initial_state, sequences)
        if self.stateful:
            return self.kept_states()
        return self.trained_states(ops.shape(sequences)[0])

    def _standardise_initial(self, states, sequences):
        return self.standardise_states(
            states, sequences.shape[0], "initial_state"
        )

    def _require_known(self, given, excluded=()):
        """Raise for an argument given by name that `call` does not take."""
        if given:
            parameters = inspect.signature(self.call).parameters
            known = [name for name in parameters if name not in excluded]
            require_call_arguments(self, given, known)

    def _check_steps(
        self, sequences, mask=None, reset_mask=None, time_deltas=None
    ):
        """Raise unless masks and time_deltas have the sequences' shape."""
        if mask is not None:
            check_mask("mask", mask, sequences)
        if reset_mask is not None:
            check_mask("reset_mask", reset_mask, sequences)
        if time_deltas is not None:
            check_time_deltas(time_deltas.shape, sequences.shape[:2])
            self._check_durations(time_deltas, mask)

    def _check_durations(self, time_deltas, mask=None):
        """Raise for wrong lengths of steps, if they can be read now."""
        values = values_of(time_deltas)
        counts = None if mask is None else values_of(_cast(mask, "bool"))
        if values is not None and (mask is None or counts is not None):
            require_durations("time_deltas", values, counts)

    def _dropout_mask(self, sequences):
        return keras.random.dropout(
            ops.ones_like(sequences[:, :1]),
            self.dropout,
            seed=self.seed_generator,
        )

    def _run(self, steps, states, wants_states, **options):
        """Outputs, all or the last, and the final states."""
        if steps.mask is not None:

            def run(packed, lengths):
                # With no states on either side, lengths make no difference.
                has_states = states is not None or wants_states
                return self.run(
                    packed.sequences,
                    states,
                    lengths if has_states else None,
                    wants_states,
                    **packed.by_name(),
                    **options,
                )

            return run_masked(
                run,
                steps,
                self.return_sequences,
                self.zero_output_for_mask,
                self.trained_states(ops.shape(steps.sequences)[0]),
            )
        options = {**steps.by_name(), **options}
        if self.return_sequences:
            return self.run(
                steps.sequences, states, None, wants_states, **options
            )
        return self.run_last(steps.sequences, states, wants_states, **options)

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

    def require_streaming(self, part=False):
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

    def stream_part(self, sequences, states, mask, **options):
        self._require_known(options, _NOT_OF_PARTS)
        require_arrays({"mask": mask, **options})
        self._require_features("sequences", sequences)
        # Not through `__call__`, which returns states only if the layer has
        # `return_state`. Nothing else that it does is needed here: the mask is
        # given, parameters are never cast, and a stream has neither dropout
        # nor losses.
        outputs, *states = self.call_unit(
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

    def stream_step(
        self, inputs, states, constants, time_deltas=None, **options
    ):
        require_exportable(self.name, whole=False)
        self._require_features("inputs", inputs)
        inputs = ops.cast(inputs, self.recurrence_dtype)
        if time_deltas is not None:
            require_array("time_deltas", time_deltas)
            time_deltas = ops.cast(time_deltas, self.recurrence_dtype)
            check_time_deltas(time_deltas.shape, inputs.shape[:1])
            self._check_durations(time_deltas)
            options["time_deltas"] = time_deltas
        self._require_known(options, _NOT_OF_STEPS)
        states = self.standardise_states(states, inputs.shape[0])
        outputs, states = self.run_step(inputs, states, constants, **options)
        return ops.cast(outputs, self.compute_dtype), list(states)

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


def _cast(tensor, dtype):
    return None if tensor is None else ops.cast(tensor, dtype)
