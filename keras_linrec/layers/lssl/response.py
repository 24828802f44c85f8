"""The outputs of an `LSSL`'s systems, each case by its fastest method."""

from typing import NamedTuple

from keras import ops

from keras_linrec.layers.base.mixed_features import read_out
from keras_linrec.layers.base.mixed_features import with_feedthrough
from keras_linrec.ops.causal_convolution import causal_convolution
from keras_linrec.ops.check_bounded import require_bounded
from keras_linrec.ops.check_bounded import require_bounded_rows
from keras_linrec.ops.exportable import by_steps
from keras_linrec.ops.structured import step as structured_step
from keras_linrec.ops.structured.discretization import discretise
from keras_linrec.ops.structured.hippo import StructuredTransition
from keras_linrec.ops.structured.impulse_response import impulse_response
from keras_linrec.ops.structured.scan import structured_scan
from keras_linrec.ops.structured.scan_any_length import (
    structured_scan_any_length,
)


class Systems(NamedTuple):
    """The systems of an `LSSL`, one for each feature.

    Attributes:
        transition: A and B, tensors.
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        feedthrough: tensor (features, channels), D.
        activation: function.
        alpha: float, the discretisation.
        name: string, the layer's name, for errors.
    """

    transition: StructuredTransition
    timescale: object
    output_matrix: object
    feedthrough: object
    activation: object
    alpha: float
    name: str

    def discretised(self):
        """Abar - I, (features, N, N), and Bbar, (features, N)."""
        return discretise(self.transition, self.timescale, self.alpha)

    def factors(self):
        """What single steps derive from A and dt."""
        return structured_step.factorise(
            self.transition, self.timescale, self.alpha
        )

    def read_out(self, outputs, inputs):
        """activation(C x + D u), from C x and u."""
        return read_out(self.activation, outputs, inputs, self.feedthrough)

    def require_bounded(self, tensor, given=None):
        """The tensor, if it is finite, in rows of given finite numbers."""
        message = (
            f"Layer '{self.name}' grows beyond all bounds, or is NaN: its "
            "inputs or weights may be, or its systems are unstable. "
            "`spectrum()` shows the latter, and `stable_transition=True` "
            "keeps them from becoming so."
        )
        if given is None:
            return require_bounded(tensor, message)
        return require_bounded_rows(tensor, message, given)


def respond(systems, steps, states, wants_states):
    """activation(C x_t + D u_t), and the final states.

    Args:
        systems: `Systems`.
        steps: `Steps` without a mask, whose inputs are u.
        states: tensor (batch, features, N), x before the first step, or
            `None`: zeros.
        wants_states: whether the final states are needed.

    Returns:
        `(outputs, final_states)`: (batch, time, features, channels) and
        (batch, features, N). The states are `None` if they are not needed and
        cost extra.
    """
    time = ops.shape(steps.inputs)[1]
    if steps.time_deltas is not None:
        run = _by_structured_steps
    elif by_steps(time):
        run = _by_dense_steps
    elif states is None and steps.reset_mask is None and not wants_states:
        return _by_impulse_response(systems, steps.inputs), None
    else:
        run = _by_scan
    outputs, final_states = run(systems, steps, states)
    return systems.read_out(outputs, steps.inputs), final_states


def respond_to_step(systems, inputs, state, factors=None):
    """activation(C x + D u) of one step, and x.

    Args:
        systems: `Systems`, whose timescale may also be (batch, features).
        inputs: tensor (batch, features), u.
        state: tensor (batch, features, N), x before the step.
        factors: from `Systems.factors`. Defaults to `None`: computed here.

    Returns:
        `(outputs, state)`: (batch, features, channels), (batch, features, N).
    """
    state = structured_step.step(
        systems.transition,
        factors or systems.factors(),
        systems.timescale,
        inputs,
        ops.transpose(state, (0, 2, 1)),
    )
    state = ops.transpose(state, (0, 2, 1))
    outputs = ops.einsum("fcn,bfn->bfc", systems.output_matrix, state)
    return systems.read_out(outputs, inputs), state


def _by_structured_steps(systems, steps, states):
    """For steps that differ in length: O(N) for each step and feature."""
    outputs, final_states = structured_step.structured_scan_irregular(
        systems.transition,
        systems.timescale,
        systems.output_matrix,
        steps.time_deltas,
        steps.inputs,
        states,
        systems.alpha,
        steps.reset_mask,
    )
    given = [steps.inputs] if states is None else [steps.inputs, states]
    return outputs, systems.require_bounded(final_states, given)


def _by_dense_steps(systems, steps, states):
    """For files in which loops are all there is."""
    return structured_scan_any_length(
        *systems.discretised(),
        systems.output_matrix,
        steps.inputs,
        states,
        steps.lengths,
        steps.reset_mask,
    )


def _by_scan(systems, steps, states):
    """For states, and several sequences in one row."""
    return structured_scan(
        systems.transition,
        systems.timescale,
        systems.output_matrix,
        steps.lengths,
        steps.reset_mask,
        steps.inputs,
        states,
        systems.alpha,
        systems.require_bounded,
    )


def _by_impulse_response(systems, inputs):
    """By one convolution, with D in its first tap, and without states."""
    response = impulse_response(
        systems.transition,
        systems.timescale,
        systems.output_matrix,
        ops.shape(inputs)[1],
        systems.alpha,
    )
    response = systems.require_bounded(response)
    response = with_feedthrough(response, systems.feedthrough)
    return causal_convolution(inputs, response, systems.activation)
