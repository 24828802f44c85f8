"""The base of the units whose inputs set the decay of every step."""

from keras_linrec.layers.base.input_weights import InputWeights
from keras_linrec.layers.base.sequence_layer import SequenceLayer
from keras_linrec.ops.gated_scan import gated_scan
from keras_linrec.ops.gated_scan import opened


class GatedLayer(InputWeights, SequenceLayer):
    """A recurrence of single states, whose decays follow from the inputs.

        h_t = decay_t * h_{t-1} + entering_t

    The states are the outputs. A unit supplies `build_unit` and

    - `step_constants()`, a list of tensors: what its weights say at every step;
    - `gating()`, the `Gates` of `ops.gated_scan`;
    - `driven(inputs, constants)`, the `Driven` that its gates read, for inputs
      (..., features).

    Args:
        units: integer, the number of output features, or `None` for as many
            as the input has.
        **kwargs: those of `InputWeights` and `SequenceLayer`.
    """

    def state_shapes_of(self, features):
        return [(self._units_for(features),)]

    def gating(self):
        """How decays, and what enters, follow from what the gates read."""
        raise NotImplementedError

    def driven(self, inputs, constants):
        """What the gates read."""
        raise NotImplementedError

    def _gates(self, inputs, constants):
        """The decays, and what enters, `(decay, entering)`."""
        return opened(self.gating(), self.driven(inputs, constants))

    def run(self, steps, states, wanted):
        before = None if states is None else states[0]
        outputs, state = gated_scan(
            self.gating(),
            self.driven(steps.inputs, self.step_constants()),
            before,
            reset_mask=steps.reset_mask,
        )
        if wanted.states or not wanted.all_outputs:
            state = steps.state_after(outputs, state, before)
        return outputs if wanted.all_outputs else state, [state]

    def run_step(self, step, states, constants=None):
        constants = constants or self.step_constants()
        decay, entering = self._gates(step.inputs, constants)
        state = decay * states[0] + entering
        return state, [state]
