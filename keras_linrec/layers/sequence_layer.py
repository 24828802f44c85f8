"""What every sequence unit shares."""

import inspect
from functools import partial

import keras
from keras import ops

from keras_linrec.layers.stateful_layer import StatefulLayer
from keras_linrec.layers.streaming import Streaming
from keras_linrec.ops.exportable import require_exportable
from keras_linrec.ops.exportable import with_fixed_sizes
from keras_linrec.ops.steps import Steps
from keras_linrec.ops.steps import run_masked
from keras_linrec.validation import check_time_deltas
from keras_linrec.validation import require_between
from keras_linrec.validation import require_count


class SequenceLayer(StatefulLayer, Streaming):
    """The base of the units that map a sequence to a sequence.

    It holds, once, what a recurrent layer owes its user: masks, initial and
    final states, streaming, direction, statefulness, shapes and errors. A
    unit supplies its weights and three methods:

    - `build_unit(features)` creates the weights, with `add_parameter`;
    - `run(sequences, states, lengths, wants_states)` maps whole sequences to
      `(outputs, final_states)`;
    - `run_step(inputs, states, constants)` does the same for a single time
      step;

    `state_shapes_of(features)`, the shapes of its states without the batch;
    and, where a step computes of its weights what the next step computes
    again, `step_constants()`. A unit whose call takes more arguments has a
    `call` of its own, which hands them to `call_unit`.

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
        super().__init__(stateful=stateful, **kwargs)
        require_count("units", units, optional=True)
        require_between("dropout", dropout, 0, 1, "[)")
        self.units = units
        self.dropout = dropout
        self.seed = seed
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.go_backwards = go_backwards
        self.zero_output_for_mask = zero_output_for_mask
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)
        if dropout:
            self.seed_generator = keras.random.SeedGenerator(seed)

    # What a unit supplies.

    def build_unit(self, features):
        """Create the weights for inputs of `features` features."""
        raise NotImplementedError

    def run(self, sequences, states, lengths, wants_states, **options):
        """Map whole sequences to `(outputs, final_states)`.

        Args:
            sequences: (batch, time, features), in the recurrence's dtype.
            states: list of the states before the first step, or `None`: zero.
            lengths: `None`, or an integer tensor (batch,): the final states
                wanted are those after so many steps of each row, and the
                steps from there on are zero. Outputs after them are not used.
            wants_states: whether the final states are used. Where they are
                not, they may be `None`.
            **options: `resets` where the call has a `reset_mask`, boolean
                (batch, time) and true where the states are zero before a
                step; `time_deltas` where it has them, (batch, time), in the
                recurrence's dtype; and what a unit gives `call_unit`.
        """
        raise NotImplementedError

    def run_last(self, sequences, states, wants_states, **options):
        """Map whole sequences to `(last outputs, final_states)`.

        For a unit that can do with less where the other outputs are not
        wanted.
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
            constants: from `step_constants`, or `None`: to be computed here.
            **options: `time_deltas` where the step has them, (batch,), in the
                recurrence's dtype; and what else a unit's `step` takes.
        """
        raise NotImplementedError

    @property
    def output_units(self):
        """The number of output features; known once the layer is built."""
        return self.units or self.input_spec.axes[-1]

    @property
    def is_linear(self):
        """Whether the layer has no nonlinearity of its own."""
        return False

    @property
    def wants_states(self):
        """Whether every call has a use for the states after the last step."""
        return self.return_state or self.stateful

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
            self.build_states(batch)

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
            self.standardise_states(given["initial_state"], sequences.shape[0])
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
        time_deltas=None,
        return_state=None,
        **options,
    ):
        """What `call` does, for a unit whose call takes more arguments.

        Args:
            sequences, initial_state, mask, training, reset_mask: those of the
                call.
            sequences_mask: an earlier layer's mask. It comes as `mask` while
                the sequence is the one tensor that a layer is called with,
                and under this name otherwise.
            time_deltas: (batch, time), how long each step lasts. Reaches
                `run` in the order in which the steps do. Defaults to `None`.
            return_state: whether to return the final states. Defaults to
                `None`, as the layer has it.
            **options: reach `run` as they are.
        """
        if sequences.shape[1] == 0:
            raise ValueError(
                f"Layer '{self.name}' needs at least one time step. "
                f"Received: sequences.shape={tuple(sequences.shape)}"
            )
        require_exportable(self.name)
        sequences = with_fixed_sizes(sequences)
        mask = _only(sequences_mask if mask is None else mask)
        time_deltas = _cast(time_deltas, self.recurrence_dtype)
        self._check_steps(sequences, mask, reset_mask, time_deltas)
        sequences = ops.cast(sequences, self.recurrence_dtype)
        if self.stateful:
            sequences = self.of_fixed_batch(sequences)
        states = None
        if initial_state is not None:
            batch = sequences.shape[0]
            states = self.standardise_states(initial_state, batch)
        elif self.stateful:
            states = self.kept_states()
        # In this order: within `keras.RematScope` JAX may give no bool.
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
            run = partial(_run_again, run)
        outputs, final_states = run(steps, states)
        if self.stateful:
            self.keep_states(final_states)
        outputs = ops.cast(outputs, self.compute_dtype)
        return (outputs, *final_states) if return_state else outputs

    def _check_steps(
        self, sequences, mask=None, reset_mask=None, time_deltas=None
    ):
        """Raise unless what goes with each step has the sequences' shape."""
        if mask is not None:
            _check_mask("mask", mask, sequences)
        if reset_mask is not None:
            _check_mask("reset_mask", reset_mask, sequences)
        if time_deltas is not None:
            check_time_deltas(time_deltas.shape, sequences.shape[:2])

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
                # Nobody may ask for the states after the last that counts.
                some = states is not None or wants_states
                return self.run(
                    packed.sequences,
                    states,
                    lengths if some else None,
                    wants_states,
                    **packed.by_name(),
                    **options,
                )

            return run_masked(
                run, steps, self.return_sequences, self.zero_output_for_mask
            )
        options = {**steps.by_name(), **options}
        if self.return_sequences:
            return self.run(
                steps.sequences, states, None, wants_states, **options
            )
        return self.run_last(steps.sequences, states, wants_states, **options)

    # Within `keras.RematScope` the recurrence is computed again, and not the
    # call: what a call draws is drawn once, and the states of a stateful layer
    # are assigned outside.

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return layer_call

    def _rematerializes(self, sequences):
        """Whether the layer's scope wants the recurrence computed again."""
        scope = super().rematerialized_call
        return scope(_run_again, sequences) is not _run_again and (
            self._has_own_weights()
        )

    def _has_own_weights(self):
        """Whether this is no `stateless_call` that lends the layer weights.

        `keras.remat` would lose their gradients on TensorFlow, and on PyTorch
        compute again with the layer's own.
        """
        if keras.backend.backend() == "jax" or not self.weights:
            return True
        weight = self.weights[0]
        return weight.value is weight._value

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
        # Not by `__call__`, whose arguments are the user's: a layer without
        # `return_state` returns states here. What else that does for a layer,
        # parts of a stream have no use for: their mask is given, parameters
        # are never cast, and neither dropout nor losses belong here.
        outputs, *states = self.call_unit(
            sequences, states, mask, return_state=True, **options
        )
        return outputs, states

    def stream_step(
        self, inputs, states, constants, time_deltas=None, **options
    ):
        require_exportable(self.name, whole=False)
        inputs = ops.cast(inputs, self.recurrence_dtype)
        features = self.input_spec.axes[-1]
        if inputs.shape[1] != features:
            raise ValueError(
                f"Layer '{self.name}' takes steps of {features} features. "
                f"Received: inputs.shape={tuple(inputs.shape)}"
            )
        if time_deltas is not None:
            time_deltas = ops.cast(time_deltas, self.recurrence_dtype)
            check_time_deltas(time_deltas.shape, inputs.shape[:1])
            options["time_deltas"] = time_deltas
        outputs, states = self.run_step(
            inputs, self.standardise_states(states), constants, **options
        )
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


def _run_again(run, steps, states):
    """`run(steps, states)`, computed again for the gradient."""

    # Of tensors, none of them `None`, as Keras wants it. What is not among
    # them, masks and resets, has no gradient.
    def run_of_tensors(sequences, *others):
        given = steps._replace(sequences=sequences)
        if steps.time_deltas is not None:
            time_deltas, *others = others
            given = given._replace(time_deltas=time_deltas)
        outputs, final_states = run(given, list(others) or None)
        return outputs, *(final_states or ())

    tensors = [steps.sequences, *(states or ())]
    if steps.time_deltas is not None:
        tensors.insert(1, steps.time_deltas)
    outputs, *final_states = keras.remat(run_of_tensors)(*tensors)
    return outputs, final_states


def _only(mask):
    """The first of a nest of masks, as Keras takes it."""
    masks = [m for m in keras.tree.flatten(mask) if m is not None]
    return masks[0] if masks else None


def _cast(tensor, dtype):
    return None if tensor is None else ops.cast(tensor, dtype)


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
