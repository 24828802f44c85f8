"""The states of a layer: their shapes, and those kept between batches."""

from keras import ops

from keras_linrec.layers.precise_layer import NamedWeights
from keras_linrec.layers.precise_layer import PreciseLayer


class StatefulLayer(NamedWeights, PreciseLayer):
    """A layer with states, which it may keep from one batch to the next.

    A unit supplies `state_shapes_of(features)`.

    Args:
        stateful: whether each batch starts from the states that the last one
            ended with.
        **kwargs: those of `keras.layers.Layer`.
    """

    def __init__(self, stateful=False, **kwargs):
        super().__init__(**kwargs)
        self.stateful = stateful
        self.states = None

    def state_shapes_of(self, features):
        """The shapes of the states without the batch, for so many features.

        `features` is `None` where a layer that is not built yet is asked.
        """
        raise NotImplementedError

    @property
    def state_shapes(self):
        """The shapes of the states, without the batch."""
        return self.state_shapes_of(self.input_spec.axes.get(-1))

    def run_time_variables(self):
        return self.states or []

    def get_initial_state(self, batch_size):
        return [
            ops.zeros((batch_size, *shape), dtype=self.recurrence_dtype)
            for shape in self.state_shapes
        ]

    def standardise_states(self, states, batch=None):
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

    # Kept between batches.

    def build_states(self, batch):
        """Create the variables that keep the states of `batch` rows."""
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
        states = self.standardise_states(states)
        for state in states:
            self._require_batch(state.shape[0])
        self.keep_states(states)

    def reset_states(self, states=None):
        """Keras' older name for `reset_state`."""
        self.reset_state(states)

    def keep_states(self, states):
        """For the next batch to start from."""
        for variable, state in zip(self.states, states):
            variable.assign(_own(state))

    def kept_states(self):
        """What the last batch left."""
        return [_own(state) for state in self.states]

    def of_fixed_batch(self, sequences):
        """Sequences as a stateful layer takes them: of its own batch."""
        self._require_batch(sequences.shape[0])
        # TensorFlow may not know the batch before it runs; then a wrong one
        # fails here and is not stretched to that of the states.
        batch = self.states[0].shape[0]
        _, *rest = ops.shape(sequences)
        return ops.reshape(sequences, (batch, *rest))

    def _require_batch(self, batch):
        expected = self.states[0].shape[0]
        if batch not in (None, expected):
            raise ValueError(
                f"The stateful layer '{self.name}' was built for batches of "
                f"{expected} rows, and every batch must have as many. "
                f"Received: a batch of {batch}"
            )


def _own(state):
    """A copy of a state, to keep or to start from.

    PyTorch would differentiate through a variable that is assigned to at the
    end of the call, and JAX's trainer frees the arrays that variables hold,
    which may be the user's.
    """
    return ops.stop_gradient(ops.copy(state))
