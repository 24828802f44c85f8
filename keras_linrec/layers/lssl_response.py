"""The outputs of an `LSSL`'s systems, each case by its fastest method."""

from functools import partial
from typing import NamedTuple

import keras
from keras import ops

from keras_linrec.double_precision import activate
from keras_linrec.ops import structured_step
from keras_linrec.ops import transition_powers
from keras_linrec.ops.carried_response import carried_kernel
from keras_linrec.ops.carried_response import carried_response
from keras_linrec.ops.causal_convolution import causal_convolution
from keras_linrec.ops.check_bounded import require_bounded
from keras_linrec.ops.check_bounded import require_bounded_rows
from keras_linrec.ops.discretization import discretise
from keras_linrec.ops.hippo import StructuredTransition
from keras_linrec.ops.impulse_response import impulse_response
from keras_linrec.ops.packed_response import packed_powers
from keras_linrec.ops.packed_response import packed_response
from keras_linrec.ops.stepwise_response import stepwise_response


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

    @property
    def state_size(self):
        """N."""
        return self.output_matrix.shape[-1]

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
        direct = ops.expand_dims(inputs, -1) * self.feedthrough
        return activate(self.activation, outputs + direct)

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

    def zero_states(self, inputs):
        """The states before the first step, (batch, features, N)."""
        batch, features = ops.shape(inputs)[0], self.output_matrix.shape[0]
        return ops.zeros(
            (batch, features, self.state_size), self.output_matrix.dtype
        )


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
    elif _is_symbol(time):
        _require_known_length(time, systems.name)
        run = _by_dense_steps
    elif states is None and steps.reset_mask is None and not wants_states:
        return _by_impulse_response(systems, steps.inputs), None
    elif kernel := carried_kernel(steps.inputs, systems.state_size):
        run = partial(_by_blocks, kernel)
    elif steps.reset_mask is not None:
        run = _by_packed_chunks
    else:
        return _by_powers(systems, steps, states, wants_states)
    if states is None:
        states = systems.zero_states(steps.inputs)
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
    outputs, final_states = structured_step.varying_response(
        systems.transition,
        systems.timescale,
        systems.output_matrix,
        steps.time_deltas,
        steps.inputs,
        states,
        systems.alpha,
        steps.reset_mask,
    )
    given = steps.inputs, states
    return outputs, systems.require_bounded(final_states, given)


def _by_dense_steps(systems, steps, states):
    """For a length that is a symbol."""
    return stepwise_response(
        *systems.discretised(),
        systems.output_matrix,
        steps.inputs,
        states,
        steps.lengths,
        steps.reset_mask,
    )


def _by_blocks(kernel, systems, steps, states):
    """By the native kernel, for states and several sequences in one row."""
    outputs, final_states = carried_response(
        kernel,
        systems.transition,
        systems.timescale,
        systems.output_matrix,
        steps.lengths,
        steps.reset_mask,
        steps.inputs,
        states,
        systems.alpha,
    )
    given = steps.inputs, states
    return outputs, systems.require_bounded(final_states, given)


def _by_packed_chunks(systems, steps, states):
    """For several sequences in one row, in parallel over time."""
    delta, input_vector = systems.discretised()
    time = ops.shape(steps.inputs)[1]
    powers = packed_powers(systems.require_bounded(delta), time)
    powers.inter_chunk[-1] = systems.require_bounded(powers.inter_chunk[-1])
    return packed_response(
        powers,
        input_vector,
        systems.output_matrix,
        steps.inputs,
        states,
        steps.reset_mask,
        _lengths(steps),
    )


def _by_impulse_response(systems, inputs):
    """By one convolution, without states."""
    response = impulse_response(
        systems.transition,
        systems.timescale,
        systems.output_matrix,
        ops.shape(inputs)[1],
        systems.alpha,
    )
    return _convolved(systems, inputs, response)


def _by_powers(systems, steps, states, wants_states):
    """By a convolution, and powers of Abar for the states."""
    delta, input_vector = systems.discretised()
    time = ops.shape(steps.inputs)[1]
    powers = transition_powers.TransitionPowers(delta, time)
    response = transition_powers.chunked_response(
        powers, input_vector, systems.output_matrix
    )
    free = None
    if states is not None:
        free = transition_powers.free_response(
            powers, states, systems.output_matrix
        )
        free = ops.transpose(free, (0, 3, 1, 2))
    outputs = _convolved(systems, steps.inputs, response, free)
    if not wants_states:
        return outputs, None
    return outputs, transition_powers.final_states(
        powers,
        input_vector,
        steps.inputs,
        systems.zero_states(steps.inputs) if states is None else states,
        _lengths(steps),
    )


def _convolved(systems, inputs, response, free=None):
    """The outputs.

    Args:
        systems: `Systems`.
        inputs: tensor (batch, time, features).
        response: C x after an impulse, (features, channels, taps).
        free: C x after the initial states alone, (batch, time, features,
            channels). Defaults to `None`: these are zero.
    """
    taps = ops.shape(response)[-1]
    direct = ops.expand_dims(systems.feedthrough, -1)
    response = systems.require_bounded(response)
    response = response + ops.pad(direct, ((0, 0), (0, 0), (0, taps - 1)))
    if free is None:
        return causal_convolution(inputs, response, systems.activation)
    outputs = causal_convolution(inputs, response) + free
    return activate(systems.activation, outputs)


def _lengths(steps):
    if steps.lengths is not None:
        return steps.lengths
    batch, time, _ = ops.shape(steps.inputs)
    return ops.full((batch,), time, dtype="int32")


def _is_symbol(time):
    """Whether a length is symbolic: JAX exports for any length."""
    return not (isinstance(time, int) or ops.is_tensor(time))


def _require_known_length(time, name):
    if keras.backend.backend() == "torch":
        raise ValueError(
            f"PyTorch exports the layer '{name}' (LSSL) for one "
            "number of steps only. Give `model.export` an "
            "`input_signature` with a fixed time, export what "
            "`keras_linrec.export_step(model)` returns, or export a "
            "SavedModel under TensorFlow or JAX. Received: "
            f"{time} steps"
        )
