"""The base of what streams: layers, blocks, models and backbones."""


class Streaming:
    """What runs one time step after another, with states in and out.

    Whole sequences, parts of them and single steps give the same numbers. A
    class supplies `stream_step` and `stream_part`, which compute, and
    `require_streaming`, where it may be unable to; and, unless its states are
    those of its parts, `get_initial_state` and `step_constants`.
    """

    # The axes of a step's inputs.
    step_axes = ("batch", "features")

    # What a class supplies.

    def streaming_parts(self):
        """The parts whose states, in a list, are the states of the whole."""
        return []

    def require_streaming(self, part=False):
        """Raise where this cannot run step by step.

        Args:
            part: whether it is to run many steps at once.
        """

    def stream_step(self, inputs, states, constants, **options):
        """What `step` returns, once it is built."""
        raise NotImplementedError

    def stream_part(self, sequences, states, mask, **options):
        """What `call_with_states` returns, once it is built."""
        raise NotImplementedError

    # What a user calls.

    def get_initial_state(self, batch_size):
        """The states before the first step: a list of zeros.

        That of a whole of several parts is a list of their lists.

        Args:
            batch_size: integer, the number of rows.
        """
        return [
            part.get_initial_state(batch_size)
            for part in self.streaming_parts()
        ]

    def step_constants(self):
        """What every step computes of the weights alone.

        A stream computes it once, for as long as the weights stay the same,
        and hands it to every `step`. What it is asked of has to be built.

        Returns:
            A structure of tensors, or `None` where there is nothing to
            compute ahead.
        """
        return [
            part.step_constants() for part in self.streaming_parts()
        ] or None

    def step(self, inputs, states, constants=None, **options):
        """One time step, at a cost that does not grow with the time passed.

        Without dropout.

        Args:
            inputs: float tensor, (batch, features); integers (batch,) where
                the sequences are tokens.
            states: from `get_initial_state`, from the last step, from
                `call_with_states` or from a call with `return_state=True`.
            constants: from `step_constants`, of the weights as they are.
                Defaults to `None`: the step computes them.
            **options: what else the call takes, for this step, such as
                `time_deltas` of the shape (batch,).

        Returns:
            `(outputs, states)`: (batch, units), and the new states.
        """
        self.require_streaming()
        self._require_axes("inputs", inputs, self.step_axes)
        if not self.built:
            batch, *rest = inputs.shape
            self.build((batch, None, *rest))
        return self.stream_step(inputs, states, constants, **options)

    def call_with_states(self, sequences, states, mask=None, **options):
        """Many time steps at once, between single ones.

        What as many calls of `step` give, computed as a call computes it,
        whether or not there is a `return_state`.

        Args:
            sequences: float tensor, (batch, time, features); integers (batch,
                time) where the sequences are tokens.
            states: from `get_initial_state`, from `step` or from here.
            mask: boolean tensor, (batch, time), true where a step counts.
                The states are those after the last step that does. Defaults
                to `None`.
            **options: what else the call takes.

        Returns:
            `(outputs, states)`: (batch, time, units), and the new states.
        """
        self.require_streaming(part=True)
        batch, *rest = self.step_axes
        self._require_axes("sequences", sequences, (batch, "time", *rest))
        if not self.built:
            self.build(tuple(sequences.shape))
        return self.stream_part(sequences, states, mask, **options)

    def _require_axes(self, name, tensor, axes):
        if len(tensor.shape) != len(axes):
            raise ValueError(
                f"`{name}` should have the shape ({', '.join(axes)}) where "
                f"'{self.name}' streams. "
                f"Received: {name}.shape={tuple(tensor.shape)}"
            )
