"""Diagonal systems z' = lambda z + b u over steps of constant inputs."""

from keras import ops

from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import reciprocal
from keras_linrec.double_precision import cos
from keras_linrec.double_precision import product
from keras_linrec.double_precision import sin
from keras_linrec.double_precision import tanh
from keras_linrec.ops import precision
from keras_linrec.ops.scan import complex_linear_scan


def discretise(eigenvalues, timescale, method="zoh"):
    """What a step of length dt multiplies z by, and what b u.

        decay = exp(lambda dt),  gain = (exp(lambda dt) - 1) / lambda

    by zero-order hold, and by the bilinear method

        decay = (1 + lambda dt / 2) / (1 - lambda dt / 2)
        gain = dt / (1 - lambda dt / 2)

    Args:
        eigenvalues: pair of tensors (channels,), lambda.
        timescale: tensor (..., channels), dt. Where it is 0, a step leaves z
            as it is, with finite derivatives.
        method: `"zoh"`, the default, or `"bilinear"`.

    Returns:
        `(decay, gain)`, pairs of tensors of the shape of `timescale`.

    Example:

    >>> from keras import ops
    >>> from keras_linrec.ops import continuous_diagonal
    >>> decay, gain = continuous_diagonal.discretise(
    ...     (ops.zeros(1), ops.zeros(1)), ops.ones(1)
    ... )
    >>> float(decay[0][0]), float(gain[0][0])
    (1.0, 1.0)
    """
    angle = tuple(part * timescale for part in eigenvalues)
    if method == "bilinear":
        return _bilinear(angle, timescale)
    return _zero_order_hold(angle, timescale)


def _bilinear(angle, timescale):
    real, imag = angle
    divided = reciprocal((1.0 - 0.5 * real, -0.5 * imag))
    decay = multiply((1.0 + 0.5 * real, 0.5 * imag), divided)
    return decay, tuple(timescale * part for part in divided)


def _zero_order_hold(angle, timescale):
    """exp(z), and dt (exp(z) - 1) / z, by half the angle b of z = a + i b:

    exp(z) - 1 = (exp(a) + 1) exp(i b / 2) (tanh(a / 2) cos(b / 2) +
    i sin(b / 2)), of which no part loses digits where z is small. (ONNX has
    no expm1.) A z of 0 is replaced where it divides: the derivative of the
    quotient's second factor is 0 there, and the first has the other half.
    """
    real, imag = angle
    growth = ops.exp(real)
    turn = cos(0.5 * imag), sin(0.5 * imag)
    decay = tuple(growth * part for part in multiply(turn, turn))
    tangent = tanh(0.5 * real)
    is_zero = (real == 0) & (imag == 0)
    divided = reciprocal((ops.where(is_zero, 1.0, real), imag))
    quotient = multiply((tangent * turn[0], turn[1]), divided)
    quotient = (ops.where(is_zero, 0.5, quotient[0]), quotient[1])
    scale = timescale * (growth + 1.0)
    return decay, tuple(scale * part for part in multiply(turn, quotient))


def scan_of_steps(
    decay,
    gain,
    inputs,
    input_kernel,
    output_kernel,
    initial_state=None,
    reverse=False,
    reset_mask=None,
):
    """A `projected_scan` whose projected inputs have factors of their own.

        z_t = decay_t z_{t-1} + gain_t (inputs_t @ input_kernel)
        outputs_t = Re(z_t @ output_kernel)

    Args:
        decay, gain: pairs of tensors (batch, time, channels), from
            `discretise`.
        inputs, input_kernel, output_kernel, initial_state, reverse,
            reset_mask: those of `projected_scan`.

    Returns:
        `(outputs, final_state)`, as `projected_scan`.
    """
    entering = tuple(product(inputs, part) for part in input_kernel)
    states, final_state = complex_linear_scan(
        decay, multiply(gain, entering), initial_state, reverse, reset_mask
    )
    real, imag = output_kernel
    outputs = product(states[0], real) - product(states[1], imag)
    return outputs, final_state


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
        _exponentials(angles, ops.arange(count, dtype=dtype) * length),
        _exponentials(angles, ops.arange(length, dtype=dtype)),
    )


def _exponentials(angles, numbers):
    """exp(k z) for numbers k (count,), a pair (features, count, terms)."""
    real, imag = (
        ops.expand_dims(part, 1) * ops.expand_dims(numbers, -1)
        for part in angles
    )
    size = ops.exp(real)
    return size * cos(imag), size * sin(imag)
