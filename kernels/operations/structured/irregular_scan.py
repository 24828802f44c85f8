"""The plain form of responses to steps that differ in length.

It runs where no native kernel does, and gives the native one its second
derivatives. All states are (..., N, features) here.
"""

import math
from functools import partial
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_linrec.kernels import backends
from keras_linrec.kernels.native import irregular_block
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import fused
from keras_linrec.kernels.operations.structured import tridiagonal
from keras_linrec.kernels.operations.structured.tridiagonal import append_zero
from keras_linrec.kernels.operations.structured.tridiagonal import from_below
from keras_linrec.kernels.operations.tiny_cases import numbers
from keras_linrec.kernels.operations.tiny_cases import slopes_of
from keras_linrec.kernels.operations.tiny_cases import stable_systems
from keras_linrec.kernels.operations.tiny_cases import transition_of

# The gradient recomputes states in blocks of this many steps; the forward pass
# stores only the state before each block.
_BLOCK = 16


class Factors(NamedTuple):
    """M = T diag(scale) - alpha dt I, scale = 1 / (P Q) - alpha dt D.

    All parts are (..., N, features). The bands and pivots are those of
    `kernels.tridiagonal`.
    """

    above: object
    below: object
    pivots: object
    scale: object


def factorise(transition, timescale, alpha):
    """Factorise M for every feature.

    Args:
        transition: p, d, q, t and b, as in `structured_scan_irregular`.
        timescale: tensor (..., features), dt.
        alpha: float, the parameter of the bilinear transform.
    """
    p, d, q, t, _ = transition
    timescale = alpha * timescale[..., None, :]
    scale = 1.0 / (p * q)[:, None] - timescale * d[:, None]
    # Unlike `discretise`, do not divide by dt, which may be zero here.
    above = t[0, :-1, None] * scale[..., 1:, :]
    diagonal = t[1][:, None] * scale - timescale
    below = t[2, :-1, None] * scale[..., :-1, :]
    return Factors(
        append_zero(above),
        append_zero(below),
        tridiagonal.pivots(above * below, diagonal),
        scale,
    )


def _solve(scan, factors, right):
    """M^-1 right, tensors (batch, N, features)."""
    above, below, pivots, _ = factors
    return tridiagonal.substitute(scan, above, below, pivots, right)


def _solve_transposed(scan, factors, right):
    """M^-T right, tensors (batch, N, features)."""
    return _solve(
        scan,
        factors._replace(above=factors.below, below=factors.above),
        right,
    )


def _right_side(transition, inputs, state):
    """(T D + I) Q x + T P^-1 B u."""
    p, d, q, t, b = (part[..., None] for part in transition)
    scaled = q * state
    through = d * scaled + (b / p) * inputs[..., None, :]
    return scaled + tridiagonal.multiply(t, through)


def solution_and_state(scan, transition, factors, timescale, inputs, state):
    """The solution y of a step's linear system, and the new state."""
    solution = _solve(scan, factors, _right_side(transition, inputs, state))
    change = timescale[..., None, :] / transition[2][:, None] * solution
    return solution, state + change


def structured_scan_irregular(
    scan,
    p,
    d,
    q,
    t,
    b,
    timescale,
    output_matrix,
    time_deltas,
    resets,
    inputs,
    state,
    alpha,
):
    """The outputs C x_t of systems whose steps differ in length.

    Only the states of every 16th step are stored. Twice differentiable in
    every argument but the resets.

    Args:
        scan: `scan(decay, inputs, initial_state, reverse)` on tuples of
            tensors, which returns `(outputs, final_state)`. It runs along the
            states.
        p, d, q, b: tensors (N,).
        t: tensor (3, N), the bands of T: superdiagonal (its last entry is
            ignored), diagonal, subdiagonal (likewise).
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        time_deltas: tensor (batch, time), the length of each step in multiples
            of dt; zero leaves the state unchanged.
        resets: tensor (batch, time) of the same dtype, positive where x is set
            to zero before the step.
        inputs: tensor (batch, time, features), u.
        state: tensor (batch, features, N), x before the first step.
        alpha: float, of the generalised bilinear transform.

    Returns:
        `(outputs, final_state)`: (batch, time, features, channels) and
        (batch, features, N).
    """
    batch, time, features = ops.shape(inputs)
    size, channels = output_matrix.shape[2], output_matrix.shape[1]
    blocks = -(-time // _BLOCK)

    def in_blocks(tensor):
        filling = [[0, 0], [0, blocks * _BLOCK - time], [0, 0]]
        count = tensor.shape[2]
        tensor = ops.transpose(ops.pad(tensor, filling), (1, 0, 2))
        return ops.reshape(tensor, (blocks, _BLOCK, batch, count))

    system = _VaryingSystem(
        scan, alpha, blocks, batch, size, features, channels
    )
    # Pass copies of the weights: TensorFlow treats a variable that is passed to
    # `custom_gradient` as one that the function captures.
    result = system.response()(
        # Indexing with `None` would cost TensorFlow a copy for the gradient.
        in_blocks(ops.expand_dims(time_deltas, -1) * timescale),
        in_blocks(inputs),
        in_blocks(ops.expand_dims(resets, -1)),
        ops.transpose(state, (0, 2, 1)),
        *map(ops.copy, (output_matrix, p, d, q, t, b)),
    )
    # PyTorch's `custom_gradient` supports one result only, so the outputs and
    # the state come concatenated.
    outputs, state = system.parts(result)
    outputs = ops.reshape(
        outputs, (blocks * _BLOCK, batch, features, channels)
    )[:time]
    return (
        ops.transpose(outputs, (1, 0, 2, 3)),
        ops.transpose(state, (0, 2, 1)),
    )


class _VaryingSystem:
    """The recurrence in blocks of steps, and its adjoint.

    For a step of length dt, with s = Q x, v = P^-1 B, z = D s + v u and
    r = s + T z, the new state is x + dt Q^-1 y, where M y = r.
    """

    def __init__(self, scan, alpha, blocks, batch, size, features, channels):
        self.scan = scan
        self.alpha = alpha
        self.blocks = blocks
        self.state_shape = (batch, size, features)
        self.output_shape = (_BLOCK, batch, features, channels)

    def response(self):
        @ops.custom_gradient
        def run(
            time_deltas, inputs, restarts, state, output_matrix, *transition
        ):
            steps = time_deltas, inputs, restarts
            outputs, states = self._forward(
                steps, state, output_matrix, transition
            )

            def gradient(*args, upstream=None):
                if upstream is None:
                    upstream, known = args[-1], states
                else:
                    # PyTorch differentiates a second time only through what
                    # is computed in this function.
                    _, known = self._forward(
                        steps, state, output_matrix, transition
                    )
                return self._backward(
                    steps,
                    ops.concatenate([state[None], known[:-1]]),
                    output_matrix,
                    transition,
                    upstream,
                )

            return self._joined(outputs, states[-1]), gradient

        return run

    def _joined(self, outputs, state):
        return ops.concatenate(
            [ops.reshape(outputs, (-1,)), ops.reshape(state, (-1,))]
        )

    def parts(self, result):
        count = ops.size(result) - math.prod(self.state_shape)
        return (
            ops.reshape(result[:count], (self.blocks, *self.output_shape)),
            ops.reshape(result[count:], self.state_shape),
        )

    def _states(self, transition, factors, steps, state):
        """The solutions y of a block's steps, and the states after them."""

        def body(carry, block):
            *parts, dt, u, restarts = block
            state = _kept(carry[1], restarts)
            carry = solution_and_state(
                self.scan, transition, Factors(*parts), dt, u, state
            )
            return carry, carry

        _, (solutions, states) = ops.scan(
            body,
            (ops.zeros_like(state), state),
            (*factors, *steps),
            length=_BLOCK,
        )
        return solutions, states

    def _forward(self, steps, state, output_matrix, transition):
        """The outputs, and the states after each block."""

        # On TensorFlow, the stacked results of a scan must have the shapes of
        # the carry, and a scan of unknown length takes a single tensor.
        def body(carry, index):
            block = [part[index] for part in steps]
            factors = factorise(transition, block[0], self.alpha)
            _, states = self._states(transition, factors, block, carry[0])
            outputs = ops.einsum("fcn,sbnf->sbfc", output_matrix, states)
            carry = states[-1], outputs
            return carry, carry

        # Like the inputs: in JAX' `shard_map` a carry keeps its axes.
        zeros = ops.zeros_like(steps[1][0])[..., None]
        _, (states, outputs) = ops.scan(
            body,
            (state, ops.broadcast_to(zeros, self.output_shape)),
            ops.arange(0, self.blocks),
        )
        return outputs, states

    def _backward(self, steps, starts, output_matrix, transition, upstream):
        """The gradients of `run`'s arguments, from the states before blocks."""
        d_outputs, d_state = self.parts(upstream)

        def body(carry, index):
            carry = self._block_backward(
                [part[index] for part in steps],
                starts[index],
                d_outputs[index],
                output_matrix,
                transition,
                carry,
            )
            return carry, carry

        (d_state, _, _, d_output_matrix, *sums), stacked = ops.scan(
            body,
            (
                d_state,
                ops.zeros_like(steps[0][0]),
                ops.zeros_like(steps[1][0]),
                ops.zeros_like(output_matrix),
                *map(ops.zeros_like, transition),
            ),
            ops.arange(0, self.blocks),
            reverse=True,
        )
        _, d_time_deltas, d_inputs, *_ = stacked
        return (
            d_time_deltas,
            d_inputs,
            ops.zeros_like(steps[2]),
            d_state,
            d_output_matrix,
            *self._gradients_of_parameters(transition, *sums),
        )

    def _block_backward(
        self, block, state, d_outputs, output_matrix, transition, carry
    ):
        time_deltas, inputs, restarts = block
        d_state, _, _, d_output_matrix, *sums = carry
        p, d, q, t, b = (part[..., None] for part in transition)
        factors = factorise(transition, time_deltas, self.alpha)
        solutions, states = self._states(transition, factors, block, state)
        before = ops.concatenate([state[None], states[:-1]])
        before = _kept(before, restarts)

        def body(carry, step):
            *parts, dt, restarts, d_state = step
            d_state = d_state + carry[0]
            adjoint = _solve_transposed(
                self.scan, Factors(*parts), dt[:, None, :] / q * d_state
            )
            through = _transposed(t, adjoint)
            before = d_state + q * (adjoint + d * through)
            carry = _kept(before, restarts), adjoint
            # Stack the gradient with respect to the state after the step.
            return carry, (d_state, adjoint)

        (d_state, _), (d_states, adjoints) = ops.scan(
            body,
            (d_state, ops.zeros_like(d_state)),
            (
                *factors,
                time_deltas,
                restarts,
                ops.einsum("fcn,sbfc->sbnf", output_matrix, d_outputs),
            ),
            length=_BLOCK,
            reverse=True,
        )
        through = _transposed(t, adjoints)
        scaled = q * before
        time_deltas, inputs = time_deltas[:, :, None], inputs[:, :, None]
        error = d * scaled + b / p * inputs - factors.scale * solutions
        change = d_states * solutions / q
        both = solutions * through
        additions = (
            -_total(both),
            _total(through * scaled + self.alpha * time_deltas * both),
            _total(
                (adjoints + d * through) * before - time_deltas * change / q
            ),
            ops.stack(
                [
                    _total(adjoints * from_below(error)),
                    _total(adjoints * error),
                    _total(from_below(adjoints) * error),
                ]
            ),
            _total(through * inputs),
        )
        return (
            d_state,
            ops.sum(
                change + self.alpha * (d * both + adjoints * solutions), axis=2
            ),
            ops.sum(b / p * through, axis=2),
            d_output_matrix + ops.einsum("sbfc,sbnf->fcn", d_outputs, states),
            *map(ops.add, sums, additions),
        )

    def _gradients_of_parameters(
        self, transition, d_scale, d_d, d_q, d_t, d_input
    ):
        """Convert gradients of scale, D, Q, T and P^-1 B to those of P to B."""
        p, _, q, _, b = transition
        d_log = d_scale / (p * q)
        return (
            -(d_log + d_input * b / p) / p,
            d_d,
            d_q - d_log / q,
            d_t,
            d_input / p,
        )


def _kept(states, restarts):
    """States (..., batch, N, features), zero where `restarts` is 1."""
    return ops.where(ops.expand_dims(restarts, -1) > 0.0, 0.0, states)


def _transposed(t, tensor):
    """T^T tensor for the bands t (3, N, 1), over the last axis but one."""
    return tridiagonal.multiply((t[2], t[1], t[0]), tensor)


def _total(tensor):
    """The sum over all axes but N of (steps, batch, N, features)."""
    return ops.sum(tensor, axis=(0, 1, 3))


# How it runs.


def _form_of(case, kernel):
    return fused(case, kernel.structured_scan_irregular, "blocks")


def _on_plain_scans(kernel):
    return partial(structured_scan_irregular, kernel.scan)


def _structured_scan_irregular_case(kernel):
    """Four steps of `stable_systems`, of different lengths, with a reset."""
    arrays = [*stable_systems(), *numbers((2, 4), (2, 4, 2), (2, 2, 3))]
    arrays[7] += 1.0
    cotangents = numbers((2, 4, 2, 2), (2, 2, 3))
    resets = np.zeros((2, 4), "float32")
    resets[1, 2] = 1.0

    def function(tensors):
        *steps, inputs, state = tensors
        given = keras.ops.convert_to_tensor(resets)
        return list(
            kernel.structured_scan_irregular(*steps, given, inputs, state, 0.5)
        )

    def define(p, d, q, t, b, timescale, rows, time_deltas, inputs, state):
        matrix, outputs = transition_of(p, d, q, t), []
        for step in range(4):
            state = np.where(resets[:, step, None, None] > 0, 0.0, state)
            length = time_deltas[:, step, None, None] * timescale[:, None]
            slope = state @ matrix.T / 2 + b * inputs[:, step, :, None]
            right = (state + length * slope)[..., None]
            left = np.eye(3) - length[..., None] * matrix / 2
            state = np.linalg.solve(left, right)[..., 0]
            outputs.append(np.einsum("fcn,bfn->bfc", rows, state))
        return [np.stack(outputs, axis=1), state]

    wide = [array.astype("float64") for array in arrays]
    expected = [*define(*wide), *slopes_of(define, wide, cotangents)]
    return function, arrays, cotangents, expected


def _call_native(run, *arguments):
    *arguments, alpha = arguments
    inputs, state = arguments[-2:]
    # A compiler may take a symbol for a number, and compile for that one.
    compiles = backends.current().describe(inputs).get("unrolled")
    block = irregular_block(
        None if compiles else inputs.shape[1], state.shape[2]
    )
    call = Call("structured_scan_irregular", 0, (block, float(alpha)))
    return run(call, *arguments)


def _call_plain(kernel, call, *arguments):
    return structured_scan_irregular(
        kernel.scan, *arguments, call.number("alpha")
    )


OPERATION = Operation(
    function="structured_scan_irregular",
    choose=_form_of,
    forms={
        "fused": lambda kernel: kernel.structured_scan_irregular,
        "blocks": _on_plain_scans,
    },
    plain=_on_plain_scans,
    call_native=_call_native,
    call_plain=_call_plain,
    self_tests=(_structured_scan_irregular_case,),
    along_time=False,
)
