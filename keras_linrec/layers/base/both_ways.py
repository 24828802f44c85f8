"""What linear units share that read a sequence both ways themselves."""

from keras_linrec.validation import require_bool


class BothWays:
    """A mixin for a `DiagonalLayer` that may have a second direction.

    Both directions share the recurrence, and each has a C of its own; their
    outputs are added. A unit supplies `_backward_system`, and the states of
    both directions in `state_shapes_of`.

    Args:
        bidirectional: whether there is a second direction.
        **kwargs: those of the layer.
    """

    def __init__(
        self,
        units=None,
        bidirectional=False,
        stateful=False,
        return_sequences=True,
        **kwargs,
    ):
        super().__init__(
            units,
            stateful=stateful,
            return_sequences=return_sequences,
            **kwargs,
        )
        require_bool("bidirectional", bidirectional)
        if bidirectional:
            _require_both_ways(stateful, return_sequences)
        self.bidirectional = bidirectional

    def _accept_stateful(self, name, value):
        if getattr(self, "bidirectional", False):
            _require_both_ways(value, True)
        return super()._accept_stateful(name, value)

    def _accept_return_sequences(self, name, value):
        if getattr(self, "bidirectional", False):
            _require_both_ways(False, value)
        return super()._accept_return_sequences(name, value)

    def _backward_system(self, forward):
        """The second direction's `DiagonalSystem`, without D.

        Args:
            forward: that of the first direction.
        """
        raise NotImplementedError

    def run(self, steps, states, wanted):
        if not self.bidirectional:
            return super().run(steps, states, wanted)
        forward = self._system_over(steps)
        # Zeros behind a row's end leave a state of zero as it is.
        if states is not None or wanted.states:
            self._require_one_kind(steps)
            forward = forward.stopping_after(steps)
        outputs, final_states = [], []
        for system in (forward, self._backward_system(forward)):
            state = None
            if states is not None:
                count = len(states) // 2
                of_direction = states[count:] if outputs else states[:count]
                state = self.to_channels(of_direction, system.basis)
            partial, channels = system.run(
                steps, state, wanted.all_outputs, reverse=bool(outputs)
            )
            outputs.append(partial)
            final_states += self.from_channels(channels, system.basis)
        return self.finished(sum(outputs)), final_states

    def _require_one_kind(self, steps):
        if steps.lengths is not None and steps.reset_mask is not None:
            raise ValueError(
                "A layer that reads both ways takes a mask or a reset_mask, "
                "not both, where its states are given or returned. Received: "
                f"both in layer '{self.name}'"
            )

    def _require_streaming(self, part=False):
        if self.bidirectional:
            raise ValueError(
                "A layer that reads both ways cannot stream. Received: "
                f"bidirectional=True in layer '{self.name}'"
            )
        super()._require_streaming(part)

    def step_constants(self):
        self._require_streaming()
        return super().step_constants()

    def get_config(self):
        return {**super().get_config(), "bidirectional": self.bidirectional}


def _require_both_ways(stateful, return_sequences):
    """Raise for what a layer that reads both ways cannot be."""
    if stateful:
        raise ValueError(
            "A layer that reads both ways cannot be stateful: the second "
            "direction starts at the end of the sequence. Received: "
            "bidirectional=True, stateful=True"
        )
    if not return_sequences:
        raise ValueError(
            "No single step of a layer that reads both ways has seen the "
            "whole sequence: pool its outputs, or wrap a layer in "
            "`keras.layers.Bidirectional`. Received: bidirectional=True, "
            "return_sequences=False"
        )
