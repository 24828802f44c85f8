"""C x_t of an `LSSL` for whole sequences, each case by its fastest method."""

from typing import NamedTuple

import keras
from keras import ops

from keras_linrec.ops import structured_step
from keras_linrec.ops import transition_powers
from keras_linrec.ops.carried_states import CarriedStates
from keras_linrec.ops.causal_convolution import causal_convolution
from keras_linrec.ops.check_bounded import require_bounded
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
        alpha: float, the discretisation.
        name: string, the layer's name, for errors.
    """

    transition: StructuredTransition
    timescale: object
    output_matrix: object
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

    def require_bounded(self, tensor):
        """The tensor, if it is finite."""
        return require_bounded(
            tensor,
            f"Layer '{self.name}' grows beyond all bounds, or is NaN: its "
            "inputs or weights may be, or its systems are unstable. "
            "`spectrum()` shows the latter, and `stable_transition=True` "
            "keeps them from becoming so.",
        )

    def zero_states(self, inputs):
        """The states before the first step, (batch, features, N)."""
        features, _, state_size = self.output_matrix.shape
        return ops.zeros(
            (ops.shape(inputs)[0], features, state_size),
            self.output_matrix.dtype,
        )


def respond(
    systems,
    inputs,
    states=None,
    lengths=None,
    wants_states=True,
    time_deltas=None,
    resets=None,
    cache=None,
):
    """C x_t, and the final states.

    Args:
        systems: `Systems`.
        inputs: tensor (batch, time, features), u.
        states: tensor (batch, features, N), x before the first step. Defaults
            to `None`, zeros.
        lengths: integer tensor (batch,), the steps after which the final
            states are needed. Defaults to `None`, all of them.
        wants_states: whether the final states are needed. They may be `None`
            if not. Defaults to `True`.
        time_deltas: tensor (batch, time), the length of each step in multiples
            of dt. Defaults to `None`, all 1.
        resets: boolean tensor (batch, time), true where x is zero before a
            step. Defaults to `None`, nowhere.
        cache: `CachedResponse` for these systems, or `None`.

    Returns:
        `(outputs, final_states)`: (batch, time, features, channels) and
        (batch, features, N). The states are `None` if they are not needed and
        cost extra.
    """
    time = ops.shape(inputs)[1]
    if time_deltas is not None:
        return _by_structured_steps(
            systems, inputs, states, time_deltas, resets
        )
    if _is_symbol(time):
        _require_known_length(time, systems.name)
        return _by_dense_steps(systems, inputs, states, lengths, resets)
    if resets is not None:
        return _by_packed_chunks(systems, inputs, states, lengths, resets)
    if states is None and not wants_states:
        return _by_impulse_response(systems, inputs, cache), None
    carried = CarriedStates(
        systems.transition,
        systems.timescale,
        systems.output_matrix,
        systems.alpha,
        inputs,
    )
    if not carried:
        return _by_powers(systems, inputs, states, lengths, wants_states)
    outputs = _by_impulse_response(systems, inputs, cache)
    if states is not None:
        outputs = outputs + carried.free_response(states)
    if not wants_states:
        return outputs, None
    if states is None:
        states = systems.zero_states(inputs)
    return outputs, carried.final_states(states, lengths)


def respond_to_step(systems, inputs, state, factors=None):
    """C x after one step, and x.

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
    return ops.einsum("fcn,bfn->bfc", systems.output_matrix, state), state


def _by_structured_steps(systems, inputs, states, time_deltas, resets):
    """For steps that differ in length: O(N) for each step and feature."""
    outputs, final_states = structured_step.varying_response(
        systems.transition,
        systems.timescale,
        systems.output_matrix,
        time_deltas,
        inputs,
        systems.zero_states(inputs) if states is None else states,
        systems.alpha,
        resets,
    )
    return outputs, systems.require_bounded(final_states)


def _by_dense_steps(systems, inputs, states, lengths, resets):
    """For a length that is a symbol."""
    delta, input_vector = systems.discretised()
    return stepwise_response(
        delta,
        input_vector,
        systems.output_matrix,
        inputs,
        systems.zero_states(inputs) if states is None else states,
        lengths,
        resets,
    )


def _by_packed_chunks(systems, inputs, states, lengths, resets):
    """For several sequences in one row."""
    delta, input_vector = systems.discretised()
    powers = packed_powers(systems.require_bounded(delta), ops.shape(inputs)[1])
    powers.inter_chunk[-1] = systems.require_bounded(powers.inter_chunk[-1])
    return packed_response(
        powers,
        input_vector,
        systems.output_matrix,
        inputs,
        systems.zero_states(inputs) if states is None else states,
        resets,
        _all_steps(inputs) if lengths is None else lengths,
    )


def _by_impulse_response(systems, inputs, cache):
    """By one convolution, without states before and after."""
    time = ops.shape(inputs)[1]
    if cache is not None and cache.reaches(time):
        response = cache.response(
            systems.transition, systems.timescale, systems.output_matrix, time
        )
    else:
        response = impulse_response(
            systems.transition,
            systems.timescale,
            systems.output_matrix,
            time,
            systems.alpha,
        )
    return _convolved(inputs, systems.require_bounded(response))


def _by_powers(systems, inputs, states, lengths, wants_states):
    """By a convolution, and powers of Abar for the states."""
    delta, input_vector = systems.discretised()
    powers = transition_powers.TransitionPowers(delta, ops.shape(inputs)[1])
    response = transition_powers.chunked_response(
        powers, input_vector, systems.output_matrix
    )
    initial = None
    if states is not None:
        initial = transition_powers.free_response(
            powers, states, systems.output_matrix
        )
    outputs = _convolved(inputs, systems.require_bounded(response), initial)
    if not wants_states:
        return outputs, None
    return outputs, transition_powers.final_states(
        powers,
        input_vector,
        inputs,
        systems.zero_states(inputs) if states is None else states,
        _all_steps(inputs) if lengths is None else lengths,
    )


def _convolved(inputs, response, initial=None):
    """The inputs' response, plus that of the initial states."""
    outputs = causal_convolution(inputs, response)
    if initial is None:
        return outputs
    return outputs + ops.transpose(initial, (0, 3, 1, 2))


def _all_steps(inputs):
    batch, time, _ = ops.shape(inputs)
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
