"""The base of layers, blocks, models and backbones that stream."""

from typing import Any

from keras_linrec import types
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_array


class Streaming:
    """Runs one time step after another, with states in and out.

    Whole sequences, parts of them and single steps give the same numbers. A
    class supplies `_stream_step` and `_stream_part`, which compute, and
    `_require_streaming`, which raises where that is impossible. A class whose
    states are not those of its parts also supplies `get_initial_state` and
    `step_constants`.
    """

    # The axes of a step's inputs.
    _step_axes = ("batch", "features")

    # Supplied by a class.

    def _streaming_parts(self):
        """The parts whose states, as a list, are the states of the whole."""
        return []

    def _state_count(self):
        """How many lists of states a whole of parts has."""
        return len(self._streaming_parts())

    def _require_streaming(self, part=False):
        """Raise if this cannot run step by step.

        Args:
            part: whether several steps are to run at once.
        """

    def _stream_step(self, inputs, states, constants, **options):
        """Compute `step`; the layer is built."""
        raise NotImplementedError

    def _stream_part(self, sequences, states, mask, **options):
        """Compute `call_with_states`; the layer is built."""
        raise NotImplementedError

    # Called by users.

    def get_initial_state(self, batch_size: int) -> list[types.Tensor]:
        """The states before the first step: zeros, unless they are trained.

        They are a list; those of a model are a list of its parts' lists.

        Args:
            batch_size: integer, the number of rows.
        """
        return [
            part.get_initial_state(batch_size)
            for part in self._streaming_parts()
        ]

    def step_constants(self):
        """What every step derives from the weights alone.

        A stream computes it once, for as long as the weights stay the same,
        and passes it to every `step`. The layer or model must be built.

        Returns:
            A structure of tensors, or `None` if there is nothing to compute
            in advance.
        """
        return [
            part.step_constants() for part in self._streaming_parts()
        ] or None

    @in_any_byte_order
    def step(
        self,
        inputs: types.Tensor,
        states: types.Tensor,
        constants: types.Tensor = None,
        **options: Any,
    ) -> tuple[types.Tensor, list[types.Tensor]]:
        """Process one time step, at a cost independent of the time passed.

        Dropout does not apply.

        Args:
            inputs: float tensor, (batch, features); integers (batch,) if the
                sequences are tokens.
            states: from `get_initial_state`, from the previous step, from
                `call_with_states` or from a call with `return_state=True`.
            constants: from `step_constants`, for the current weights.
                Defaults to `None`: the step computes them.
            **options: further arguments of the call, for this step, such as
                `time_deltas` of the shape (batch,).

        Returns:
            `(outputs, states)`: (batch, units), and the new states.

        Raises:
            ValueError: if the layer reads from the end or both ways, or if
                inputs, states or `time_deltas` do not fit.
            TypeError: for an argument that the call does not take.

        Example:

        >>> import numpy as np
        >>> import keras_linrec
        >>> layer = keras_linrec.layers.LRU(4)
        >>> states = layer.get_initial_state(batch_size=1)
        >>> for measured in np.random.rand(100, 1, 3).astype("float32"):
        ...     output, states = layer.step(measured, states)
        >>> tuple(output.shape)
        (1, 4)
        """
        self._require_streaming()
        self._require_axes("inputs", inputs, self._step_axes)
        if not self.built:
            batch, *rest = inputs.shape
            self.build((batch, None, *rest))
        self._require_states(states)
        return self._stream_step(inputs, states, constants, **options)

    @in_any_byte_order
    def call_with_states(
        self,
        sequences: types.Tensor,
        states: types.Tensor,
        mask: types.Tensor = None,
        **options: Any,
    ) -> tuple[types.Tensor, list[types.Tensor]]:
        """Process several time steps at once, continuing from `states`.

        The result is that of as many calls of `step`, computed like a whole
        sequence. States are returned whether or not `return_state` is set.

        Args:
            sequences: float tensor, (batch, time, features); integers (batch,
                time) if the sequences are tokens.
            states: from `get_initial_state`, from `step` or from here.
            mask: boolean tensor, (batch, time), true where a step counts.
                The returned states follow the last step that does. Defaults
                to `None`.
            **options: further arguments of the call, such as `reset_mask`.

        Returns:
            `(outputs, states)`: (batch, time, units), and the new states.

        Raises:
            ValueError: as `step`, and if the layer is stateful or returns the
                last output only.
            TypeError: as `step`.

        Example:

        >>> import numpy as np
        >>> import keras_linrec
        >>> layer = keras_linrec.layers.LRU(4)
        >>> states = layer.get_initial_state(batch_size=2)
        >>> for part in np.random.rand(5, 2, 100, 3).astype("float32"):
        ...     outputs, states = layer.call_with_states(part, states)
        >>> tuple(outputs.shape)
        (2, 100, 4)
        """
        self._require_streaming(part=True)
        batch, *rest = self._step_axes
        self._require_axes("sequences", sequences, (batch, "time", *rest))
        if not self.built:
            self.build(tuple(sequences.shape))
        self._require_states(states)
        return self._stream_part(sequences, states, mask, **options)

    def _require_states(self, states):
        """Raise for another number of lists than the parts need."""
        expected = self._state_count()
        if not isinstance(states, (list, tuple)):
            raise ValueError(
                "`states` should be a list, as `get_initial_state` returns it. "
                f"Received: states of type {type(states).__name__}"
            )
        if expected and len(states) != expected:
            raise ValueError(
                f"'{self.name}' has {expected} lists of states, as "
                "`get_initial_state` returns them. Received: "
                f"{len(states)} in `states`"
            )

    def _require_axes(self, name, tensor, axes):
        require_array(name, tensor)
        if len(tensor.shape) != len(axes):
            raise ValueError(
                f"`{name}` should have the shape ({', '.join(axes)}) where "
                f"'{self.name}' streams. "
                f"Received: {name}.shape={tuple(tensor.shape)}"
            )
