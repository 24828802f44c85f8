"""The nonlinear scan and its gradient as Pallas kernels, for GPUs.

A program of the grid processes one row of the batch over time, with the
recurrent matrix in its registers. Whatever does not depend on the previous step
is computed in large products before and after. On other devices, TPUs
included, the plain form runs, whose loop XLA compiles into one program.

XLA's interpreter runs the same kernels on a CPU, for the tests. They have not
run on a GPU yet: statements about GPUs in this file are estimates.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from keras_linrec.kernels import nonlinear_recurrence
from keras_linrec.kernels.full_precision import matmul
from keras_linrec.kernels.jax.loop import loop
from keras_linrec.kernels.jax.twice_differentiable import twice_differentiable
from keras_linrec.kernels.nonlinear_recurrence import METHODS
from keras_linrec.kernels.nonlinear_recurrence import Operands
from keras_linrec.kernels.nonlinear_recurrence import drive_of
from keras_linrec.kernels.nonlinear_recurrence import matrices_of
from keras_linrec.kernels.nonlinear_recurrence import slope_of
from keras_linrec.kernels.nonlinear_recurrence import states_before
from keras_linrec.kernels.resets import are_given

# Bytes of the matrices that a thread holds: half of its registers.
_BYTES_A_THREAD = 2**8


def nonlinear_scan(dynamics, operands, keep_all=True, interpret=False):
    """See `Kernel.nonlinear_scan` in the registry."""
    operands = Operands(*operands)
    plain = partial(_plain, dynamics)
    kernel = partial(_scan, dynamics, interpret)
    if operands.inputs.size == 0:
        # A program of the grid has at least one row.
        return plain(*operands)
    if interpret:
        return kernel(*operands)
    return lax.platform_dependent(*operands, cuda=kernel, default=plain)


def _plain(dynamics, *operands):
    return nonlinear_recurrence.with_last_state(
        loop, dynamics, Operands(*operands)
    )


def _forward(dynamics, interpret, *operands):
    operands = Operands(*operands)
    width = _width(operands)
    drive = drive_of(operands)
    batch, time, _ = drive.shape
    return _call(
        partial(_scan_kernel, dynamics),
        operands,
        interpret,
        (
            _padded(drive.reshape(batch, time, 1 + dynamics.gated, -1), width),
            jnp.broadcast_to(operands.step_size, (batch, time)),
            *_marks(operands),
            _padded(operands.initial_state, width),
        ),
        ((batch, time, width), (batch, width)),
    )


def _remember(dynamics, interpret, *operands):
    results = _scan(dynamics, interpret, *operands)
    return results, (operands, results[0])


def _backward(dynamics, interpret, kept, cotangents):
    operands, outputs = kept
    operands = Operands(*operands)
    width = _width(operands)
    before = states_before(operands, outputs)
    d_states, d_initial_state = _call(
        partial(_gradient_kernel, dynamics),
        operands,
        interpret,
        (
            _padded(factors_of(dynamics, operands, before), width),
            *_marks(operands),
            *(_padded(cotangent, width) for cotangent in cotangents),
        ),
        ((*outputs.shape[:2], width), (outputs.shape[0], width)),
    )
    gradients = gradients_of_steps(dynamics, operands, before, d_states)
    return (*gradients[:-1], d_initial_state)


def gradients_of_steps(dynamics, operands, before, d_states):
    """Cotangents of the operands, given all states and their cotangents.

    So the steps are independent of one another. The last of the results, of
    the initial state, is zero.
    """

    def steps(operands):
        states, drive = (
            part.reshape(-1, part.shape[-1])
            for part in (before, drive_of(operands))
        )
        states = nonlinear_recurrence.next_state(
            dynamics,
            states,
            drive,
            weights=operands[3:5],
            step_size=operands.step_size.reshape(-1, 1),
            modulus_bias=operands.modulus_bias,
        )
        return states.reshape(before.shape)

    (gradients,) = jax.vjp(steps, operands)[1](d_states)
    return gradients


def _plain_backward(dynamics, _, kept, cotangents):
    operands, _ = kept
    return jax.vjp(partial(_plain, dynamics), *operands)[1](cotangents)


_scan = twice_differentiable(
    _forward, _remember, _backward, _plain_backward, settings=2
)


def factors_of(dynamics, operands, before):
    """Derivatives of the slopes with respect to A h and W h, times the step.

    For all steps at once: (batch, stages, time, parts, units).
    """
    matrices = matrices_of(operands)
    drive = jnp.split(drive_of(operands), 1 + dynamics.gated, axis=-1)
    step_size = operands.step_size[..., None] if dynamics.solver else 1.0
    slope, factors = 0.0, []
    for shift in METHODS[dynamics.solver or "euler"][0]:
        start = before + shift * step_size * slope
        # Elementwise, so that the pull-back of ones gives each derivative.
        slope, pull_back = jax.vjp(
            lambda *products: slope_of(dynamics, drive, products),
            *(matmul(start, matrix) for matrix in matrices),
        )
        slopes = pull_back(jnp.ones_like(slope))
        factors.append(jnp.stack([step_size * s for s in slopes], axis=2))
    return jnp.stack(factors, axis=1)


def _width(operands):
    """The number of units, padded to a power of two, as Triton requires."""
    return pl.next_power_of_2(operands.initial_state.shape[1])


def _marks(operands):
    """The resets in a list, which is empty if there are none."""
    return [operands.resets] if are_given(operands.resets) else []


def _padded(array, width):
    padding = width - array.shape[-1]
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, padding)])


def _call(kernel, operands, interpret, arguments, results):
    """Run a kernel on each row of the batch.

    Args:
        kernel: takes the matrices (parts, width, width), then references to
            one row of each argument and result.
        arguments: arrays (batch, ...).
        results: shapes (batch, ..., width).
    """
    units, width = operands.initial_state.shape[1], _width(operands)
    matrices = jnp.stack(
        [
            jnp.pad(matrix, [(0, width - units)] * 2)
            for matrix in matrices_of(operands)
        ]
    )
    threads = max(matrices.nbytes // _BYTES_A_THREAD, 32)

    def rows(shape):
        return pl.BlockSpec(
            (None, *shape[1:]), lambda row: (row, *[0] * (len(shape) - 1))
        )

    outputs = pl.pallas_call(
        kernel,
        [jax.ShapeDtypeStruct(shape, matrices.dtype) for shape in results],
        grid=arguments[0].shape[:1],
        in_specs=[
            pl.BlockSpec(matrices.shape, lambda row: (0, 0, 0)),
            *(rows(argument.shape) for argument in arguments),
        ],
        out_specs=[rows(shape) for shape in results],
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=threads // 32),
    )(matrices, *arguments)
    return tuple(output[..., :units] for output in outputs)


# Inside the kernels. A state is (width,).


def _each_step(time, load, take, carry):
    """`carry = take(step, load(step), carry)`, loading one step ahead."""

    def body(step, both):
        loaded, carry = both
        ahead = load(jnp.minimum(step + 1, time - 1))
        return ahead, take(step, loaded, carry)

    return lax.fori_loop(0, time, body, (load(0), carry))[1]


def _parts_at(reference, *place):
    """A list along the next axis, as Triton cannot slice a loaded array."""
    count = reference.shape[len(place)]
    return [reference[(*place, part)] for part in range(count)]


def _dropped(resets, state):
    """A state, or zero at a reset; `resets` has one number or none."""
    for reset in resets:
        state = jnp.where(reset != 0, jnp.zeros_like(state), state)
    return state


def _scan_kernel(dynamics, matrices, drive, steps, *references):
    *resets, initial_state, outputs, final_state = references
    shifts, shares = METHODS[dynamics.solver or "euler"]
    matrices = _parts_at(matrices)

    def load(step):
        marks = [reference[step] for reference in resets]
        return _parts_at(drive, step), steps[step], marks

    def take(step, loaded, state):
        drive, length, marks = loaded
        state = _dropped(marks, state)
        start, total = state, 0.0
        for shift, share in zip((*shifts[1:], 0.0), shares):
            products = [
                jnp.sum(start[:, None] * matrix, axis=0) for matrix in matrices
            ]
            slope = slope_of(dynamics, drive, products)
            total = total + share * slope
            start = state + shift * length * slope
        state = state + length * total if dynamics.solver else slope
        outputs[step] = state
        return state

    time = outputs.shape[0]
    final_state[...] = _each_step(time, load, take, initial_state[...])


def _gradient_kernel(dynamics, matrices, factors, *references):
    *resets, d_outputs, d_final_state, d_states, d_initial_state = references
    shifts, shares = METHODS[dynamics.solver or "euler"]
    matrices = _parts_at(matrices)
    time = d_states.shape[0]

    def load(step):
        step = time - 1 - step
        read = [_parts_at(factors, i, step) for i in range(len(shares))]
        return d_outputs[step], read, [part[step] for part in resets]

    def take(step, loaded, before):
        d_output, factors, marks = loaded
        after = before + d_output
        d_states[time - 1 - step] = after
        before = after if dynamics.solver else jnp.zeros_like(after)
        d_start = jnp.zeros_like(after)
        stages = zip(range(len(shares)), (*shifts[1:], 0.0), shares)
        for stage, shift, share in reversed(list(stages)):
            # Times the step, d_slope is the cotangent of the stage's slope.
            d_slope = share * after + shift * d_start
            d_start = sum(
                jnp.sum((d_slope * factor)[None, :] * matrix, axis=1)
                for factor, matrix in zip(factors[stage], matrices)
            )
            before = before + d_start
        return _dropped(marks, before)

    d_initial_state[...] = _each_step(time, load, take, d_final_state[...])
