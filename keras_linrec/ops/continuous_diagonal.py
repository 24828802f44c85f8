"""Diagonal systems z' = lambda z + b u over steps of constant inputs."""

from keras import ops

from keras_linrec.complex_pairs import multiply
from keras_linrec.double_precision import cos
from keras_linrec.double_precision import sin
from keras_linrec.kernels.operations.diagonal_scan_irregular import (
    discretise as discretise,
)
from keras_linrec.ops import precision
from keras_linrec.ops.dispatch import kernel_for
from keras_linrec.ops.precision import accumulation_dtype
from keras_linrec.ops.scan import resets_of_scan


def diagonal_scan_irregular(
    eigenvalues,
    output_kernel,
    time_deltas,
    inputs,
    initial_state=None,
    reverse=False,
    reset_mask=None,
    method="zoh",
):
    """Systems of which each feature has several, over steps of any lengths.

        z_t = decay_t z_{t-1} + gain_t inputs_t
        outputs_t = Re(sum_n output_kernel_n z_tn)

    with the factors of `discretise`, which the native kernel computes where it
    uses them.

    Args:
        eigenvalues: pair of tensors (n, features), lambda dt.
        output_kernel: pair of tensors (channels, n, features).
        time_deltas: tensor (batch, time), the lengths of the steps in multiples
            of dt.
        inputs: tensor (batch, time, parts, features): the real parts, and the
            imaginary ones unless they are zero.
        initial_state: pair of tensors (batch, n, features). Defaults to `None`:
            zeros.
        reverse: whether the recurrence runs from the last step to the first.
            Defaults to `False`.
        reset_mask: boolean tensor, (batch, time), as in `linear_scan`.
            Defaults to `None`: no resets.
        method: `"zoh"`, the default, or `"bilinear"`.

    Returns:
        `(outputs, final_state)`: a tensor (batch, time, channels, features),
        and a pair (batch, n, features).
    """
    bilinear = {"zoh": False, "bilinear": True}[method]
    dtype = accumulation_dtype(*eigenvalues, inputs)

    def cast(parts):
        return tuple(ops.cast(part, dtype) for part in parts)

    eigenvalues, output_kernel = cast(eigenvalues), cast(output_kernel)
    time_deltas, inputs = cast((time_deltas, inputs))
    size, features = eigenvalues[0].shape
    if initial_state is None:
        shape = ops.shape(inputs)[0], size, features
        initial_state = (ops.zeros(shape, dtype),) * 2
    initial_state = cast(initial_state)
    resets = resets_of_scan(reset_mask, inputs.shape[:2], reverse, dtype)
    if reverse:
        time_deltas, resets, inputs = (
            part if part is None else ops.flip(part, axis=1)
            for part in (time_deltas, resets, inputs)
        )
    run = kernel_for(
        "diagonal_scan_irregular",
        inputs,
        channels=2 * size * features,
        per_step=True,
        resets=reset_mask is not None,
    )
    outputs, final_state = run(
        eigenvalues,
        output_kernel,
        time_deltas,
        resets,
        inputs,
        initial_state,
        bilinear,
    )
    return ops.flip(outputs, axis=1) if reverse else outputs, final_state


# S, the steps of a block. Of L steps the exponentials are L / S + S numbers a
# term, which are fewest for S = sqrt(L): here at 16,384 steps.
_BLOCK = 128


def exponential_sums(angles, factors, time):
    """Re sum_n c_n exp(l z_n) for l = 0, 1, ..., time - 1.

    Of l = j S + i, exp(j S z) and exp(i z) are computed, and the sums are one
    product of matrices for each feature: the powers of all l, S times as many
    numbers, are never stored.

    In float32 (NumPy), with 32 terms of the frequencies that `S4D` starts with,
    "lin" and "inv", the sums differ from float64 by at most 1.2e-5 of the
    largest one, over 100,000 steps and for dt of 1e-3, 1e-2 and 0.1.

    Args:
        angles: pair of tensors (features, terms), z.
        factors: pair of tensors (features, channels, terms), c.
        time: integer, or a tensor if it is known at run time only.

    Returns:
        A tensor (features, channels, time).

    Example: a wave of which each step is a quarter.

    >>> import math
    >>> from keras import ops
    >>> from keras_linrec.ops import continuous_diagonal
    >>> sums = continuous_diagonal.exponential_sums(
    ...     (ops.zeros((1, 1)), ops.full((1, 1), math.pi / 2)),
    ...     (ops.ones((1, 1, 1)), ops.zeros((1, 1, 1))),
    ...     4,
    ... )
    >>> [round(float(value)) + 0 for value in sums[0, 0]]
    [1, 0, -1, 0]
    """
    features, _, terms = factors[0].shape
    channels = ops.shape(factors[0])[1]
    starts, within = _exponentials_of_blocks(angles, time)
    real, imag = multiply(
        tuple(ops.expand_dims(part, 2) for part in factors),
        tuple(ops.expand_dims(part, 1) for part in starts),
    )
    rows = ops.concatenate([real, -imag], axis=-1)
    sums = precision.matmul(
        ops.reshape(rows, (features, -1, 2 * terms)),
        ops.swapaxes(ops.concatenate(within, axis=-1), 1, 2),
    )
    sums = ops.reshape(sums, (features, channels, -1))
    return sums[..., :time]


def sums_over_time(angles, inputs):
    """sum_k exp(k z_n) u_k for every n, the transpose of `exponential_sums`.

    Args:
        angles: pair of tensors (features, terms), z.
        inputs: tensor (batch, time, features), u.

    Returns:
        A pair (batch, features, terms).
    """
    batch, time, features = ops.shape(inputs)
    starts, within = _exponentials_of_blocks(angles, time)
    count, length = ops.shape(starts[0])[1], within[0].shape[1]
    filling = [[0, 0], [0, 0], [0, count * length - time]]
    inputs = ops.pad(ops.transpose(inputs, (2, 0, 1)), filling)
    sums = precision.matmul(
        ops.reshape(inputs, (features, -1, length)),
        ops.concatenate(within, axis=-1),
    )
    terms = angles[0].shape[1]
    sums = ops.reshape(sums, (features, batch, count, 2 * terms))
    sums = multiply(
        (sums[..., :terms], sums[..., terms:]),
        tuple(ops.expand_dims(part, 1) for part in starts),
    )
    return tuple(
        ops.transpose(ops.sum(part, axis=2), (1, 0, 2)) for part in sums
    )


def _exponentials_of_blocks(angles, time):
    """exp(j S z) of blocks j of S steps, and exp(i z) within a block."""
    length = min(_BLOCK, time) if isinstance(time, int) else _BLOCK
    count = -(-time // length)
    dtype = angles[0].dtype
    return (
        _exponentials(angles, ops.arange(0, count, dtype=dtype) * length),
        _exponentials(angles, ops.arange(0, length, dtype=dtype)),
    )


def _exponentials(angles, numbers):
    """exp(k z) for numbers k (count,), a pair (features, count, terms)."""
    real, imag = (
        ops.expand_dims(part, 1) * ops.expand_dims(numbers, -1)
        for part in angles
    )
    size = ops.exp(real)
    return size * cos(imag), size * sin(imag)
