"""The states of a layer: their shapes, and those kept between batches."""

from keras import ops

from keras_linrec import types
from keras_linrec.layers.base.precise_layer import NamedWeights
from keras_linrec.layers.base.precise_layer import PreciseLayer
from keras_linrec.validation import agree
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import property_if_known
from keras_linrec.validation import require_array
from keras_linrec.validation import require_bool


class StatefulLayer(NamedWeights, PreciseLayer):
    """A layer with states, which it may keep from one batch to the next.

    A unit supplies `state_shapes_of(features)`, and `trained_states(batch)` if
    the states before the first step are not zero.

    Args:
        stateful: whether each batch starts from the states in which the
            previous one ended.
        **kwargs: those of `keras.layers.Layer`.
    """

    def __init__(self, stateful=False, **kwargs):
        super().__init__(**kwargs)
        self.states = None
        self.stateful = stateful
        self._has_kept_states = None

    def state_shapes_of(self, features):
        """The shapes of the states without the batch.

        Args:
            features: integer, the number of input features, or `None` if the
                layer is not built yet.
        """
        raise NotImplementedError

    def trained_states(self, batch_size):
        """The states before the first step of a sequence, if they are trained.

        Returns:
            A list of tensors, or `None` if sequences start from zeros.
        """
        return None

    @property_if_known
    def state_shapes(self):
        """The shapes of the states, without the batch."""
        return self._state_shapes()

    def _state_shapes(self):
        """As `state_shapes`, or an error that says what to do first."""
        return self.state_shapes_of(self.input_spec.axes.get(-1))

    def _run_time_variables(self):
        if self._has_kept_states is None:
            return self.states or []
        return [*self.states, self._has_kept_states]

    def get_initial_state(self, batch_size: int) -> list[types.Tensor]:
        return self.trained_states(batch_size) or [
            ops.zeros((batch_size, *shape), dtype=self.recurrence_dtype)
            for shape in self._state_shapes()
        ]

    def _standardise_states(self, states, batch=None, name="states"):
        """A list of tensors, of the same batch as the sequences."""
        if not isinstance(states, (list, tuple)):
            states = [states]
        for state in states:
            require_array(name, state)
        shapes = self._state_shapes()
        fits = len(states) == len(shapes) and all(
            agree(tuple(state.shape), (batch, *shape))
            for state, shape in zip(states, shapes)
        )
        if not fits:
            rows = "batch" if batch is None else batch
            expected = [
                f"({', '.join(map(str, (rows, *shape)))})" for shape in shapes
            ]
            raise ValueError(
                f"Layer '{self.name}' has states of the shapes "
                f"{', '.join(expected)}. Received: `{name}` of the shapes "
                f"{[tuple(state.shape) for state in states]}"
            )
        return [ops.cast(state, self.recurrence_dtype) for state in states]

    # Kept between batches.

    def _accept_stateful(self, name, value):
        require_bool(name, value)
        if value and self.built and self.states is None:
            raise ValueError(
                f"`stateful` of '{self.name}' can be set to True before it is "
                "built, or again where it was True then: its states are "
                "variables. Make a new layer with stateful=True from "
                "`get_config()`, and give it the weights of this one. "
                f"Received: stateful={value}"
            )
        return value

    def _build_states(self, batch):
        """Create the variables that keep the states of `batch` rows."""
        if batch is None:
            raise ValueError(
                "A stateful layer needs a fixed batch size: give the model's "
                "first layer or `keras.Input` a `batch_size`. Received: "
                f"stateful=True and batch size None in layer '{self.name}'"
            )
        # As weights they are known to every trainer: JAX's returns their new
        # values from its compiled step, where Keras' own layers lose them.
        self.states = tuple(
            self.add_parameter(
                f"state_{index}",
                (batch, *shape),
                "zeros",
                trainable=False,
            )
            for index, shape in enumerate(self._state_shapes())
        )
        if self.trained_states(batch) is not None:
            # 0 until there are states to continue from: a copy of the trained
            # ones would neither follow them nor give them a gradient.
            self._has_kept_states = self.add_parameter(
                "has_kept_states", (), "zeros", trainable=False
            )

    @in_any_byte_order
    def reset_state(self, states: types.Tensor = None) -> None:
        """Set the states that a stateful layer carries between batches.

        Args:
            states: list of arrays, one for each state. Defaults to `None`, the
                states before the first step of a sequence: zeros, unless they
                are trained.

        Raises:
            ValueError: if the layer is not stateful, `states` do not fit, or
                they are given and the layer is not built.
        """
        if not self.stateful:
            raise ValueError(
                "Only a stateful layer has states to reset. "
                f"Received: stateful=False in layer '{self.name}'"
            )
        is_given = states is not None
        if self.states is None and is_given:
            raise ValueError(
                "A layer takes `states` once it is built: call it, or its "
                "`build`, first. Received: built=False in layer "
                f"'{self.name}'"
            )
        if self.states is None:
            return
        if not is_given:
            states = self.get_initial_state(self.states[0].shape[0])
        states = self._standardise_states(states)
        for state in states:
            self._require_batch(state.shape[0])
        self._keep_states(states)
        if not is_given and self._has_kept_states is not None:
            self._has_kept_states.assign(0.0)

    @in_any_byte_order
    def reset_states(self, states: types.Tensor = None) -> None:
        """Keras' older name for `reset_state`."""
        self.reset_state(states)

    def _keep_states(self, states):
        """Keep the states from which the next batch starts."""
        for variable, state in zip(self.states, states):
            variable.assign(_detached_copy(state))
        if self._has_kept_states is not None:
            self._has_kept_states.assign(1.0)

    def _kept_states(self):
        """The states in which the previous batch ended."""
        states = [_detached_copy(state) for state in self.states]
        if self._has_kept_states is None:
            return states
        has_kept = ops.convert_to_tensor(self._has_kept_states) > 0
        trained = self.trained_states(states[0].shape[0])
        return [ops.where(has_kept, *pair) for pair in zip(states, trained)]

    def _of_fixed_batch(self, sequences):
        """The sequences, once their batch is that of the layer."""
        self._require_batch(sequences.shape[0])
        # TensorFlow may not know the batch before it runs. A wrong one then
        # fails here, instead of being broadcast to that of the states.
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


def _detached_copy(state):
    """A copy of a state without its gradient.

    PyTorch would differentiate through a variable that is assigned at the end
    of the call, and JAX's trainer frees the arrays that variables hold, which
    may be the user's.
    """
    return ops.stop_gradient(ops.copy(state))
