"""The scan and its gradient as Pallas kernels, for GPU and TPU.

A program of the grid processes a block of channels of one row over time, keeps
the state in registers, and reads every number once. On a TPU, where a program
has little memory, time is cut into blocks along the grid's last axis. Programs
along this axis run one after another and pass on the state, and the remainder
that float32 has no digits for (`compensated.py`), in outputs whose blocks stay
the same. On a GPU all programs run
concurrently, so a program processes all time steps.

XLA's interpreter runs the same kernels on a CPU, slowly, for the tests.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from keras_linrec.complex_pairs import conjugate
from keras_linrec.complex_pairs import multiply
from keras_linrec.kernels.jax.compensated import add
from keras_linrec.kernels.jax.compensated import multiply_add
from keras_linrec.kernels.jax.compensated import with_remainder
from keras_linrec.kernels.jax.float64_scope import float64_scope
from keras_linrec.kernels.jax.scan import associative
from keras_linrec.kernels.jax.twice_differentiable import twice_differentiable
from keras_linrec.kernels.operations.adjoint import adjoint
from keras_linrec.kernels.operations.final_state import with_final_state
from keras_linrec.kernels.resets import are_given
from keras_linrec.kernels.resets import or_empty
from keras_linrec.kernels.resets import or_none

# Steps that a program reads before it computes the first of them. Reads take
# hundreds of cycles on a GPU, Triton keeps the order of reads and writes, and
# only reads that are in flight together overlap.
_STEPS_AHEAD = 8


def scan(
    decay, inputs, initial_state, reverse=False, resets=None, interpret=False
):
    """`(outputs, final_state)` of h_t = decay_t * h_{t-1} + inputs_t."""

    def tree(decay, inputs, resets, initial_state):
        return with_final_state(associative)(
            decay, inputs, initial_state, reverse, or_none(resets)
        )

    arguments = decay, inputs, or_empty(resets, inputs[0]), initial_state
    if inputs[0].size == 0:
        # A block has at least one number.
        return tree(*arguments)
    if interpret:
        return _scan(bool(reverse), True, *arguments)

    kernel = partial(_scan, bool(reverse), False)
    # A TPU's kernels have no float64, which XLA imitates outside of them.
    on_tpu = kernel if inputs[0].dtype == np.float32 else tree
    # Even if there is a GPU, part of a program may run on the CPU.
    return lax.platform_dependent(
        *arguments, cuda=kernel, tpu=on_tpu, default=tree
    )


def _forward(reverse, interpret, decay, inputs, resets, initial_state):
    plan = _plan(decay, inputs, resets, reverse)
    outputs, final_state, _ = _call(
        partial(_scan_kernel, plan),
        plan,
        interpret,
        resets,
        ((_decay, decay), (_sequence, inputs), (_state, initial_state)),
        (_sequence, _state, _state),
    )
    return outputs, _without_axis(final_state)


def _remember(reverse, interpret, decay, inputs, resets, initial_state):
    results = _scan(reverse, interpret, decay, inputs, resets, initial_state)
    return results, (decay, results[0], resets, initial_state)


def _backward(reverse, interpret, kept, cotangents):
    decay, outputs, resets, initial_state = kept
    d_outputs, d_final_state = cotangents
    # The gradient starts where the scan ended.
    plan = _plan(decay, outputs, resets, not reverse)
    per_step = plan.per_step
    d_decay, d_inputs, d_initial_state, *_ = _call(
        partial(_gradient_kernel, plan),
        plan,
        interpret,
        resets,
        (
            (_decay, decay),
            (_sequence, outputs),
            (_state_a_block, _entering(plan, outputs, initial_state)),
            (_sequence, d_outputs),
            (_state, d_final_state),
        ),
        (
            _sequence if per_step else _state,
            _sequence,
            _state,
            _state,
            *([] if per_step else [_state]),
        ),
    )
    if not per_step:
        # Each row has its own sum.
        d_decay = tuple(jnp.sum(part, axis=(0, 1)) for part in d_decay)
    return d_decay, d_inputs, None, _without_axis(d_initial_state)


def _plain_backward(reverse, interpret, kept, cotangents):
    decay, outputs, resets, initial_state = kept

    def outputs_of(decay, inputs, initial_state, reverse, resets):
        marks = or_empty(resets, inputs[0])
        return _scan(reverse, interpret, decay, inputs, marks, initial_state)[0]

    d_decay, d_inputs, d_initial_state = adjoint(
        outputs_of,
        decay,
        outputs,
        initial_state,
        cotangents[0],
        reverse,
        cotangents[1],
        or_none(resets),
    )
    return d_decay, d_inputs, None, d_initial_state


_scan = twice_differentiable(
    _forward, _remember, _backward, _plain_backward, settings=2
)


FUNCTIONS = {"scan": scan}


class _Plan(NamedTuple):
    """How a call is cut into blocks, and its direction in time."""

    batch: int
    time: int
    channels: int
    # Size of a block.
    steps: int
    width: int
    per_step: bool
    resets: bool
    backwards: bool

    @property
    def blocks(self):
        return -(-self.time // self.steps)

    @property
    def splits(self):
        return -(-self.channels // self.width)

    @property
    def grid(self):
        # An axis for a single block of time would leave `vmap` none of the
        # three axes of a GPU's grid.
        grid = self.batch, self.splits, self.blocks
        return grid if self.blocks > 1 else grid[:2]

    def block(self, turn):
        """The block of time that runs at a turn."""
        return self.blocks - 1 - turn if self.backwards else turn

    def index(self, step, count):
        """The index, in a block of `count` steps, of the step-th one to run."""
        return count - 1 - step if self.backwards else step


def _platform():
    return jax.default_backend()


def _block_size(time, channels):
    """Steps and channels in a block."""
    if _platform() == "tpu":
        # A block consists of whole tiles, 8 by 128, or is as large as the
        # array. The complex gradient with a decay per step holds blocks of ten
        # sequences, and prefetches the next ones: 5 MiB of 16.
        return min(time, 256), min(channels, 256)
    # All time steps, and one warp, which reads 128 bytes at once.
    return time, 32


def _plan(decay, sequences, resets, backwards):
    batch, time, channels = sequences[0].shape
    sizes = _block_size(time, channels)
    kind = decay[0].ndim == 3, are_given(resets), backwards
    return _Plan(batch, time, channels, *sizes, *kind)


# Kinds of arrays: the shape, and the block that a program of the grid sees. The
# axis of size one before the channels meets the TPU's rule on the last two axes
# of a block.


def _sequence(plan):
    return (plan.batch, plan.time, plan.splits * plan.width), pl.BlockSpec(
        (None, plan.steps, plan.width),
        lambda row, split, turn=0: (row, plan.block(turn), split),
    )


def _marks(plan):
    return (plan.batch, plan.time, 1), pl.BlockSpec(
        (None, plan.steps, 1),
        lambda row, split, turn=0: (row, plan.block(turn), 0),
    )


def _state(plan):
    return (plan.batch, 1, plan.splits * plan.width), pl.BlockSpec(
        (None, 1, plan.width), lambda row, split, turn=0: (row, 0, split)
    )


def _state_a_block(plan):
    width = plan.splits * plan.width
    return (plan.batch, plan.blocks, 1, width), pl.BlockSpec(
        (None, None, 1, plan.width),
        lambda row, split, turn=0: (row, plan.block(turn), 0, split),
    )


def _decay(plan):
    if plan.per_step:
        return _sequence(plan)
    return (1, plan.splits * plan.width), pl.BlockSpec(
        (1, plan.width), lambda row, split, turn=0: (0, split)
    )


def _entering(plan, outputs, initial_state):
    """The state that entered each block of time, by the gradient's plan."""

    def of(part, state):
        # The outputs at the ends of all blocks but the last.
        if plan.backwards:
            ends = part[:, plan.steps - 1 : plan.time - 1 : plan.steps]
            return jnp.concatenate([state[:, None], ends], axis=1)
        ends = part[:, plan.steps :: plan.steps]
        return jnp.concatenate([ends, state[:, None]], axis=1)

    return tuple(of(*both) for both in zip(outputs, initial_state))


def _call(kernel, plan, interpret, resets, arguments, results):
    """Run a kernel over the grid.

    Args:
        kernel: takes the reference of the resets, or `None`, then tuples of
            references, arguments before results.
        arguments: pairs of a kind and a tuple of arrays.
        results: the kind of each result.
    """
    count = len(arguments[0][1])
    arrays, in_specs, out_specs, out_shapes = [], [], [], []
    if plan.resets:
        arguments = (_marks, [resets[..., None]]), *arguments
    for kind, parts in arguments:
        shape, spec = kind(plan)
        for part in parts:
            arrays.append(_pad(part, shape[-1]).reshape(shape))
            in_specs.append(spec)
    for kind in results:
        shape, spec = kind(plan)
        out_specs += [spec] * count
        out_shapes += [jax.ShapeDtypeStruct(shape, arrays[0].dtype)] * count

    def on_tuples(*references):
        marks = references[0] if plan.resets else None
        kernel(marks, *_cut(references[plan.resets :], count))

    params = triton.CompilerParams(num_warps=1)
    run = pl.pallas_call(
        on_tuples,
        out_shapes,
        grid=plan.grid,
        in_specs=in_specs,
        out_specs=out_specs,
        interpret=interpret,
        compiler_params=None if _platform() == "tpu" else params,
    )
    with float64_scope(arrays[0].dtype == np.float64):
        outputs = run(*arrays)
    return _cut([part[..., : plan.channels] for part in outputs], count)


def _without_axis(state):
    return tuple(part[:, 0] for part in state)


def _pad(part, width):
    padding = width - part.shape[-1]
    if not padding:
        return part
    return jnp.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, padding)])


def _cut(flat, count):
    return [
        tuple(flat[first : first + count])
        for first in range(0, len(flat), count)
    ]


# Inside the kernels. The numbers of a step are (1, channels), for the TPU.


def _whole(references):
    return tuple(reference[...] for reference in references)


def _read(references, step):
    return tuple(reference[pl.ds(step, 1), :] for reference in references)


def _zero_at(resets, step, *numbers):
    """Numbers, zero where there is a reset before a step."""
    if resets is None:
        return numbers
    is_reset = resets[pl.ds(step, 1), :] != 0
    return jax.tree.map(
        lambda part: jnp.where(is_reset, jnp.zeros_like(part), part), numbers
    )


def _write(references, step, values):
    for reference, value in zip(references, values):
        reference[pl.ds(step, 1), :] = value


def _write_whole(references, values):
    for reference, value in zip(references, values):
        reference[...] = value


def _resumed(plan, start, number, remainder):
    """The number that the last block of time left in two outputs.

    In the first block, the number that `start` refers to, or zero.
    """
    if start is None:
        begin = tuple(jnp.zeros(part.shape, part.dtype) for part in number)
    else:
        begin = _whole(start)
    begin = with_remainder(begin)
    if plan.blocks == 1:
        return begin
    first = pl.program_id(2) == 0
    left = _whole(number), _whole(remainder)
    return tuple(
        tuple(jnp.where(first, *both) for both in zip(*pair))
        for pair in zip(begin, left)
    )


def _count(plan):
    """The number of steps in this block; the last one may have fewer."""
    if plan.time % plan.steps == 0:
        return plan.steps
    block = plan.block(pl.program_id(2))
    return jnp.minimum(plan.steps, plan.time - block * plan.steps)


def _for_each_step(count, load, take, carry):
    """`carry = take(step, load(step), carry)` in order, loading ahead."""

    def several(turn, carry):
        steps = [turn * _STEPS_AHEAD + ahead for ahead in range(_STEPS_AHEAD)]
        for step, loaded in [(step, load(step)) for step in steps]:
            carry = take(step, loaded, carry)
        return carry

    def one(step, carry):
        return take(step, load(step), carry)

    if isinstance(count, int):
        turns = count // _STEPS_AHEAD
    else:
        # `//` also handles negative numbers, for which Mosaic queries the
        # device.
        turns = lax.div(count, np.int32(_STEPS_AHEAD))
    carry = lax.fori_loop(0, turns, several, carry)
    return lax.fori_loop(turns * _STEPS_AHEAD, count, one, carry)


def _scan_kernel(
    plan, resets, decay, inputs, initial_state, outputs, final_state, remainder
):
    count = _count(plan)
    decay_at = _reader(plan, decay)

    def load(step):
        step = plan.index(step, count)
        return decay_at(step), _read(inputs, step)

    def take(step, loaded, state):
        step = plan.index(step, count)
        (state,) = _zero_at(resets, step, state)
        state = multiply_add(loaded[0], state, loaded[1])
        _write(outputs, step, state[0])
        return state

    state = _resumed(plan, initial_state, final_state, remainder)
    state = _for_each_step(count, load, take, state)
    _write_whole(final_state, state[0])
    _write_whole(remainder, state[1])


def _gradient_kernel(
    plan,
    resets,
    decay,
    outputs,
    entering,
    d_outputs,
    d_final_state,
    d_decay,
    d_inputs,
    d_initial_state,
    remainder,
    total_remainder=None,
):
    count = _count(plan)
    decay_at = _reader(plan, decay)

    def load(step, before=None):
        step, earlier = (plan.index(s, count) for s in (step, step + 1))
        before = _read(outputs, earlier) if before is None else before
        return decay_at(step), _read(d_outputs, step), before

    def take(step, loaded, carry):
        (decay, d_output, before), (carry, total) = loaded, carry
        step = plan.index(step, count)
        d_input = add(carry, d_output)
        _write(d_inputs, step, d_input[0])
        (before,) = _zero_at(resets, step, before)
        d_decay_now = multiply(d_input[0], conjugate(before))
        if plan.per_step:
            _write(d_decay, step, d_decay_now)
        else:
            total = add(total, d_decay_now)
        zeros = tuple(jnp.zeros_like(part) for part in d_output)
        carry = multiply_add(conjugate(decay), d_input, zeros)
        return *_zero_at(resets, step, carry), total

    carry = _resumed(plan, d_final_state, d_initial_state, remainder)
    total = ()
    if not plan.per_step:
        total = _resumed(plan, None, d_decay, total_remainder)
    carry = _for_each_step(count - 1, load, take, (carry, total))
    # The state before the block's first step is not among its outputs.
    last = load(count - 1, _whole(entering))
    carry, total = take(count - 1, last, carry)
    _write_whole(d_initial_state, carry[0])
    _write_whole(remainder, carry[1])
    if not plan.per_step:
        _write_whole(d_decay, total[0])
        _write_whole(total_remainder, total[1])


def _reader(plan, decay):
    """A function of a step that returns its decay; a fixed one is read once."""
    if plan.per_step:
        return lambda step: _read(decay, step)
    fixed = _whole(decay)
    return lambda step: fixed
