"""What every sequence unit shares."""

import math

import keras
import numpy as np
from keras import ops

from keras_linrec.ops import packing
from keras_linrec.ops.exportable import require_exportable
from keras_linrec.validation import check_time_deltas
from keras_linrec.validation import require_between
from keras_linrec.validation import require_count

# The entries of a weight: what is larger was not meant.
_LARGEST_WEIGHT = 2**31


class PreciseLayer(keras.layers.Layer):
    """A layer whose parameters are float32 under any dtype policy.

    Or float64, under a float64 one.
    """

    def __init__(self, **kwargs):
        # Autocasting would bring states and parameters down to 16 bits.
        super().__init__(autocast=False, **kwargs)

    @property
    def recurrence_dtype(self):
        """float32, or float64 under a float64 policy."""
        return "float64" if self.variable_dtype == "float64" else "float32"

    def add_parameter(self, name, shape, initializer, **kwargs):
        """A weight that keeps the recurrence's precision."""
        if math.prod(shape) >= _LARGEST_WEIGHT:
            raise ValueError(
                f"Layer '{self.name}' should have weights of fewer than "
                f"{_LARGEST_WEIGHT} numbers. Received: '{name}' of the shape "
                f"{tuple(shape)}"
            )
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=initializer,
            dtype=self.recurrence_dtype,
            autocast=False,
            **kwargs,
        )


class SequenceLayer(PreciseLayer):
    """The base of the units that map a sequence to a sequence.

    It holds, once, what a recurrent layer owes its user: masks, initial and
    final states, streaming, direction, statefulness, shapes and errors. A
    unit supplies its weights and three methods:

    - `build_unit(features)` creates the weights, with `add_parameter`;
    - `run(sequences, states, lengths)` maps whole sequences to `(outputs,
      final_states)`;
    - `run_step(inputs, states)` does the same for a single time step;

    `state_shapes_of(features)`, the shapes of its states without the batch;
    and, where a step computes of its weights what the next step computes
    again, `step_constants()`.

    The recurrence and its parameters are float32 under any dtype policy
    (float64 under a float64 one); outputs have the policy's compute dtype,
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
        stateful: whether each batch starts from the states that the last one
            ended with. Needs a fixed batch size. Defaults to `False`.
        zero_output_for_mask: whether masked steps give zeros instead of
            repeating the previous output. Defaults to `False`.
        **kwargs: `name`, `dtype`, `trainable`, `activity_regularizer`.

    Call arguments:
        sequences: float tensor, (batch, time, features).
        initial_state: list of tensors, the states before the first step.
            Defaults to `None`: zeros, or what the last batch left if
            `stateful`.
        mask: boolean tensor, (batch, time), true where a step counts. A
            masked step carries the states and repeats the previous output
            (zeros before the first step that counts), whatever it holds. Any
            pattern is allowed. A row that is masked throughout gives zeros
            and its initial state.
        training: whether dropout applies. Defaults to `False`.
        reset_mask: boolean tensor, (batch, time), true where a sequence
            begins: the states are zero before that step, so that several
            sequences share a row, and each gives what it would give apart.
            With `go_backwards` each is read from its own end. Defaults to
            `None`, nowhere.

    Output shape:
        (batch, time, units) if `return_sequences`, else (batch, units); with
        `return_state`, a tuple of that and the final states.
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
        super().__init__(**kwargs)
        require_count("units", units, optional=True)
        require_between("dropout", dropout, 0, 1, "[)")
        self.units = units
        self.dropout = dropout
        self.seed = seed
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.stateful = stateful
        self.zero_output_for_mask = zero_output_for_mask
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.states = None
        self._rematerializes = False
        self._hands_states_on = False
        if dropout:
            self.seed_generator = keras.random.SeedGenerator(seed)

    # What a unit supplies.

    def state_shapes_of(self, features):
        """The shapes of the states without the batch, for so many features.

        `features` is `None` where a layer that is not built yet is asked.
        """
        raise NotImplementedError

    @property
    def state_shapes(self):
        """The shapes of the states, without the batch."""
        return self.state_shapes_of(self.input_spec.axes.get(-1))

    def build_unit(self, features):
        """Create the weights for inputs of `features` features."""
        raise NotImplementedError

    def run(self, sequences, states, lengths, **options):
        """Map whole sequences to `(outputs, final_states)`.

        Args:
            sequences: (batch, time, features), in the recurrence's dtype;
                with what accompanies the steps behind the features.
            states: list of the states before the first step, or `None`: zero.
            lengths: `None`, or an integer tensor (batch,): the final states
                wanted are those after so many steps of each row, and the
                steps from there on are zero. Outputs after them are not used.
            **options: `resets` where the call has a `reset_mask`, boolean
                (batch, time) and true where the states are zero before a
                step; and those of `call_unit`.
        """
        raise NotImplementedError

    def run_last(self, sequences, states, **options):
        """Map whole sequences to `(last outputs, final_states)`.

        For a unit that can do with less where the other outputs are not
        wanted.
        """
        outputs, states = self.run(sequences, states, None, **options)
        return outputs[:, -1], states

    def run_step(self, inputs, states, constants=None, **options):
        """Map (batch, features) of one step to `(outputs, new_states)`.

        Args:
            inputs: (batch, features), in the recurrence's dtype.
            states: list of the states before the step.
            constants: from `step_constants`, or `None`: to be computed here.
            **options: those of `step`.
        """
        raise NotImplementedError

    def step_constants(self):
        """What every step computes of the weights alone.

        A stream computes it once, for as long as the weights stay the same,
        and hands it to every `step`. The layer has to be built.

        Returns:
            A structure of tensors, or `None` where a unit has nothing to
            compute ahead.
        """
        return None

    def run_time_variables(self):
        """Variables that no file, and no list of weights, should know."""
        return self.states or []

    @property
    def output_units(self):
        """The number of output features; known once the layer is built."""
        return self.units or self.input_spec.axes[-1]

    @property
    def wants_states(self):
        """Whether somebody takes the states after the last step."""
        return self.return_state or self.stateful or self._hands_states_on

    @property
    def weights(self):
        """The weights, which a file holds.

        What belongs to the run, such as the states that a stateful layer
        carries, is among the `variables` alone, as Keras' random seeds are.
        """
        hidden = {id(variable) for variable in self.run_time_variables()}
        return [w for w in super().weights if id(w) not in hidden]

    # Building and shapes.

    def build(self, sequences_shape, initial_state_shape=None):
        if len(sequences_shape) != 3 or sequences_shape[-1] is None:
            raise ValueError(
                f"{type(self).__name__} takes sequences of the shape (batch, "
                "time, features) with a known number of features. Received: "
                f"shape={tuple(sequences_shape)}"
            )
        batch, _, features = sequences_shape
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: features})
        self.build_unit(features)
        if self.stateful:
            self._build_states(batch)

    def _build_states(self, batch):
        if batch is None:
            raise ValueError(
                "A stateful layer needs a fixed batch size: give the model's "
                "first layer or `keras.Input` a `batch_size`. Received: "
                f"stateful=True and batch size None in layer '{self.name}'"
            )
        # As weights they are seen by every trainer: JAX returns their new
        # values from its compiled step, where Keras' own layers lose them.
        self.states = [
            self.add_parameter(
                f"state_{index}",
                (batch, *shape),
                "zeros",
                trainable=False,
            )
            for index, shape in enumerate(self.state_shapes)
        ]

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

    def compute_output_spec(
        self,
        sequences,
        initial_state=None,
        mask=None,
        training=False,
        reset_mask=None,
        sequences_mask=None,
    ):
        if reset_mask is not None:
            _check_mask("reset_mask", reset_mask, sequences)
        if initial_state is not None:
            self._standardise_states(initial_state, sequences.shape[0])
        output = keras.KerasTensor(
            self._output_shape(sequences.shape), dtype=self.compute_dtype
        )
        if not self.return_state:
            return output
        states = [
            keras.KerasTensor(
                (sequences.shape[0], *shape), dtype=self.recurrence_dtype
            )
            for shape in self.state_shapes
        ]
        return (output, *states)

    def _output_shape(self, sequences_shape):
        shape = self.compute_output_shape(sequences_shape)
        return shape[0] if self.return_state else shape

    def compute_mask(self, inputs, mask=None):
        mask = _only(mask) if self.return_sequences else None
        if not self.return_state:
            return mask
        return [mask] + [None] * len(self.state_shapes)

    # States.

    def get_initial_state(self, batch_size):
        """The states before the first step: a list of zeros.

        Args:
            batch_size: integer, the number of rows.
        """
        return [
            ops.zeros((batch_size, *shape), dtype=self.recurrence_dtype)
            for shape in self.state_shapes
        ]

    def reset_state(self, states=None):
        """Set the states that a stateful layer carries between batches.

        Args:
            states: list of arrays, one a state. Defaults to `None`, zeros.

        Raises:
            ValueError: if the layer is not stateful or `states` do not fit.
        """
        if not self.stateful:
            raise ValueError(
                "Only a stateful layer has states to reset. "
                f"Received: stateful=False in layer '{self.name}'"
            )
        if self.states is None:
            return
        if states is None:
            states = self.get_initial_state(self.states[0].shape[0])
        states = self._standardise_states(states)
        for variable, value in zip(self.states, states):
            self._check_stateful_batch(value.shape[0])
            variable.assign(_own(value))

    def reset_states(self, states=None):
        """Keras' older name for `reset_state`."""
        self.reset_state(states)

    def _standardise_states(self, states, batch=None):
        """A list of tensors, of a batch that is the same as the sequences'."""
        if not isinstance(states, (list, tuple)):
            states = [states]
        shapes = self.state_shapes
        fits = len(states) == len(shapes) and all(
            len(state.shape) == len(shape) + 1
            and tuple(state.shape[1:]) == tuple(shape)
            and (None in (batch, state.shape[0]) or state.shape[0] == batch)
            for state, shape in zip(states, shapes)
        )
        if not fits:
            rows = "batch" if batch is None else batch
            wanted = [f"({rows}, {str(shape)[1:]}" for shape in shapes]
            raise ValueError(
                f"Layer '{self.name}' has states of the shapes "
                f"{', '.join(wanted)}. Received: states of the shapes "
                f"{[tuple(state.shape) for state in states]}"
            )
        return [ops.cast(state, self.recurrence_dtype) for state in states]

    def _check_stateful_batch(self, batch):
        expected = self.states[0].shape[0]
        if batch not in (None, expected):
            raise ValueError(
                f"The stateful layer '{self.name}' was built for batches of "
                f"{expected} rows, and every batch must have as many. "
                f"Received: a batch of {batch}"
            )

    def _starting_states(self, initial_state, batch):
        if initial_state is not None:
            return self._standardise_states(initial_state, batch)
        return [_own(state) for state in self.states] if self.stateful else None

    # Calling.

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
        beside=None,
        **options,
    ):
        """What `call` does, for a unit whose call takes more arguments.

        Args:
            beside: tensor (batch, time, count) of what accompanies each step.
                It goes the way of the features, is not dropped out, and
                reaches `run` behind them. Defaults to `None`.
            **options: reach `run` as they are.
        """
        if sequences.shape[1] == 0:
            raise ValueError(
                f"Layer '{self.name}' needs at least one time step. "
                f"Received: sequences.shape={tuple(sequences.shape)}"
            )
        require_exportable(self.name)
        # An earlier layer's mask comes as `mask` while the sequence is the one
        # tensor that a layer is called with, and under its own name otherwise.
        mask = _only(sequences_mask if mask is None else mask)
        if mask is not None:
            _check_mask("mask", mask, sequences)
            mask = ops.cast(mask, "bool")
        if reset_mask is not None:
            _check_mask("reset_mask", reset_mask, sequences)
            options["resets"] = ops.cast(reset_mask, "bool")
        sequences = ops.cast(sequences, self.recurrence_dtype)
        if self.stateful:
            self._check_stateful_batch(sequences.shape[0])
            # TensorFlow may not know the batch before it runs; then a wrong
            # one fails here and is not stretched to that of the states.
            sequences = ops.reshape(
                sequences,
                (
                    self.states[0].shape[0],
                    ops.shape(sequences)[1],
                    sequences.shape[2],
                ),
            )
        states = self._starting_states(initial_state, sequences.shape[0])
        # In this order: within `keras.RematScope` JAX may give no bool.
        if self.dropout and training:
            sequences = sequences * self._dropout_mask(sequences)
        if beside is not None:
            sequences = ops.concatenate([sequences, beside], axis=-1)
        if self.go_backwards:
            sequences = ops.flip(sequences, axis=1)
            mask = None if mask is None else ops.flip(mask, axis=1)
            if reset_mask is not None:
                resets = packing.backward_resets(options["resets"])
                options["resets"] = ops.flip(resets, axis=1)

        run = self._run_with(mask, **options)
        if self._rematerializes and self._has_own_weights():
            run = keras.remat(run)
        outputs, *final_states = run(sequences, *(states or ()))

        if self.stateful:
            for variable, state in zip(self.states, final_states):
                variable.assign(_own(state))
        outputs = ops.cast(outputs, self.compute_dtype)
        hands_on = self.return_state or self._hands_states_on
        return (outputs, *final_states) if hands_on else outputs

    def _run_with(self, mask, **options):
        """A function of sequences and states, of tensors to tensors."""

        def run(sequences, *states):
            states = list(states) or None
            if mask is not None:
                outputs, final_states = self._run_masked(
                    sequences, states, mask, **options
                )
            elif self.return_sequences:
                outputs, final_states = self.run(
                    sequences, states, None, **options
                )
            else:
                outputs, final_states = self.run_last(
                    sequences, states, **options
                )
            return outputs, *(final_states or ())

        return run

    def _has_own_weights(self):
        """Whether this is no `stateless_call` that lends the layer weights.

        `keras.remat` would lose their gradients on TensorFlow, and on PyTorch
        compute again with the layer's own.
        """
        if keras.backend.backend() == "jax" or not self.weights:
            return True
        weight = self.weights[0]
        return weight.value is weight._value

    def rematerialized_call(self, layer_call, *args, **kwargs):
        """Within `keras.RematScope`: the recurrence is computed again.

        The recurrence, and not the call: what a call draws is drawn once, and
        the states of a stateful layer are assigned outside.
        """
        call = super().rematerialized_call(layer_call, *args, **kwargs)
        if call is layer_call:
            return layer_call

        def rematerialize(*args, **kwargs):
            self._rematerializes = True
            try:
                return layer_call(*args, **kwargs)
            finally:
                self._rematerializes = False

        return rematerialize

    def beside(self, time_deltas, shape):
        """A call's `time_deltas` as what accompanies the steps, or `None`.

        Args:
            time_deltas: tensor of the shape (batch, time), or (batch,) of one
                step; or `None`.
            shape: that shape, as far as it is known.
        """
        if time_deltas is None:
            return None
        time_deltas = ops.cast(time_deltas, self.recurrence_dtype)
        check_time_deltas(time_deltas.shape, shape)
        # An index of `None` costs TensorFlow a copy for the gradient.
        return ops.expand_dims(time_deltas, -1)

    def _dropout_mask(self, sequences):
        return keras.random.dropout(
            ops.ones_like(sequences[:, :1]),
            self.dropout,
            seed=self.seed_generator,
        )

    def _run_masked(self, sequences, states, mask, resets=None, **options):
        """Move the steps that count to the front, run, and spread back.

        To the recurrence a masked step does not happen. Without it, the steps
        that count follow one another, whatever the pattern of the mask, and
        what is left at the end of a row can no longer reach an output.
        """
        position, lengths, order = packing.to_front(mask)
        packed = packing.pack(sequences, lengths, order)
        if resets is not None:
            segments = packing.segment_ids(resets)
            packed_segments = packing.take(segments, order)
            options["resets"] = packing.changes(packed_segments, lengths)
        if states is None and not self.wants_states:
            # Nobody asks for the states after the last step that counts.
            outputs, final_states = self.run(packed, None, None, **options)
        else:
            outputs, final_states = self.run(packed, states, lengths, **options)
        happened = position >= 0
        if resets is not None:
            of_position = packing.take(
                packed_segments, ops.maximum(position, 0)
            )
            happened = happened & (of_position == segments)
            is_over = ~happened[:, -1] & (segments[:, -1] > 0)
            final_states = final_states and [
                _zero_where(is_over, state) for state in final_states
            ]
        if not self.return_sequences:
            mask, position, happened = (
                part[:, -1:] for part in (mask, position, happened)
            )
        outputs = packing.take(outputs, ops.maximum(position, 0))
        outputs = ops.where(happened[:, :, None], outputs, 0.0)
        if self.zero_output_for_mask:
            outputs = ops.where(mask[:, :, None], outputs, 0.0)
        if not self.return_sequences:
            outputs = outputs[:, 0]
        return outputs, final_states

    def call_with_states(self, sequences, states, mask=None, **options):
        """Many time steps at once, between single ones.

        What as many calls of `step` give, computed as a call computes it,
        whether or not the layer has `return_state`.

        Args:
            sequences: float tensor, (batch, time, features).
            states: list of tensors, from `get_initial_state`, from `step` or
                from here.
            mask: boolean tensor, (batch, time), true where a step counts.
                The states are those after the last step that does. Defaults
                to `None`.
            **options: what else the unit's call takes.

        Returns:
            `(outputs, states)`: (batch, time, units), and the new states.
        """
        if not self.return_sequences or self.go_backwards or self.stateful:
            raise ValueError(
                "A layer that continues sequences should return them, read "
                "them forwards and keep no states of its own. Received: "
                f"return_sequences={self.return_sequences}, "
                f"go_backwards={self.go_backwards}, stateful={self.stateful} "
                f"in layer '{self.name}'"
            )
        if not self.built:
            self.build(tuple(sequences.shape))
        self._hands_states_on = True
        try:
            outputs, *states = self.call(
                sequences, initial_state=states, mask=mask, **options
            )
        finally:
            self._hands_states_on = False
        return outputs, states

    def step(self, inputs, states, constants=None, **options):
        """One time step, at a cost that does not grow with the time passed.

        Args:
            inputs: float tensor, (batch, features).
            states: list of tensors, from `get_initial_state`, from the last
                step or from a call with `return_state=True`.
            constants: from `step_constants`, of the weights as they are.
                Defaults to `None`: the step computes them.
            **options: what else the unit's call takes, for this step.

        Returns:
            `(outputs, states)`: (batch, units), and the new states.
        """
        if self.go_backwards:
            raise ValueError(
                "A layer that reads sequences from their end cannot stream. "
                f"Received: go_backwards=True in layer '{self.name}'"
            )
        require_exportable(self.name, whole=False)
        inputs = ops.cast(inputs, self.recurrence_dtype)
        if len(inputs.shape) != 2:
            raise ValueError(
                "`inputs` of a step should have the shape (batch, features). "
                f"Received: inputs.shape={tuple(inputs.shape)}"
            )
        if not self.built:
            self.build((inputs.shape[0], None, inputs.shape[1]))
        features = self.input_spec.axes[-1]
        if inputs.shape[1] != features:
            raise ValueError(
                f"Layer '{self.name}' takes steps of {features} features. "
                f"Received: inputs.shape={tuple(inputs.shape)}"
            )
        outputs, states = self.run_step(
            inputs, self._standardise_states(states), constants, **options
        )
        return ops.cast(outputs, self.compute_dtype), list(states)

    # Saving.

    def save_own_variables(self, store):
        for weight in self.weights:
            store[weight.name] = weight

    def load_own_variables(self, store):
        expected = sorted(weight.name for weight in self.weights)
        if sorted(store.keys()) != expected:
            raise ValueError(
                f"Layer '{self.name}' has the weights {expected}. "
                f"Received: a file with {sorted(store.keys())}"
            )
        # All are looked at before one is assigned.
        values = [self._checked(weight, store) for weight in self.weights]
        for weight, value in zip(self.weights, values):
            weight.assign(value)

    def _checked(self, weight, store):
        """What a file has for a weight."""
        shape = tuple(store[weight.name].shape)
        if shape != tuple(weight.shape):
            raise ValueError(
                f"The weight '{weight.name}' of layer '{self.name}' has the "
                f"shape {tuple(weight.shape)}. Received: a file with the "
                f"shape {shape}"
            )
        value = np.asarray(store[weight.name])
        if not np.isfinite(value).all():
            raise ValueError(
                f"The weight '{weight.name}' of layer '{self.name}' should "
                "be numbers. Received: a file with values that are not finite"
            )
        return value

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


def clone(initializer):
    """A copy, for a second weight of one shape.

    One random initializer gives one shape the same numbers each time. A copy
    gives others, unless it has a seed.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    return type(initializer).from_config(initializer.get_config())


def _only(mask):
    """The first of a nest of masks, as Keras takes it."""
    masks = [m for m in keras.tree.flatten(mask) if m is not None]
    return masks[0] if masks else None


def _own(state):
    """A copy of a state, to keep or to start from.

    PyTorch would differentiate through a variable that is assigned to at the
    end of the call, and JAX's trainer frees the arrays that variables hold,
    which may be the user's.
    """
    return ops.stop_gradient(ops.copy(state))


def _zero_where(rows, state):
    """A state (batch, ...), zero in the rows where `rows` is true."""
    shape = (-1,) + (1,) * (len(state.shape) - 1)
    return ops.where(ops.reshape(rows, shape), 0.0, state)


def _check_mask(name, mask, sequences):
    known = zip(mask.shape, sequences.shape[:2])
    if len(mask.shape) != 2 or any(
        one != other
        for one, other in known
        if one is not None and other is not None
    ):
        raise ValueError(
            f"`{name}` should have the shape (batch, time) of the sequences. "
            f"Received: {name}.shape={tuple(mask.shape)}, "
            f"sequences.shape={tuple(sequences.shape)}"
        )
