"""The input of a companion form, from its eigenvalues, and their order.

Complex numbers are (real, imag) pairs of tensors throughout, float32, or
float64 if an argument is. Both functions take any leading axes; n, the size of
the last axis, is known.
"""

import numpy as np
from keras import ops

from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import reciprocal
from keras_linrec.ops.precision import accumulation_dtype

# What a distance of zero counts for in a sum of logarithms: for less than any
# other, and still for a number.
_LOGARITHM_OF_ZERO = -1e30


def canonical_input(eigenvalues, inverse_powers=False, normalized=False):
    """B' of the transpose form: 1 / prod_{j != i} (lambda_i - lambda_j).

    The system (A^T, e_n), A being Frobenius' companion form (LDStack, equation
    2), in the basis of the columns of V^T, V_ij = lambda_i^j: A^T = V^T
    diag(lambda) V^-T, so B' = V^-T e_n. Lemma 3 has U in the place of V^T,
    with columns [lambda_j^-(n-i)], and lambda_i^(n-1) in the numerator; that
    is `inverse_powers=True`. V^T is the better basis: at 64 roots of random
    polynomials its condition number is 1e2, and that of U 3e8.

    The magnitudes are summed as logarithms, so nothing over- or underflows
    before the result does. In float32 that happens from 137 Chebyshev nodes
    in [-1, 1] on, where B' exceeds 2^128: `normalized=True` is for these.

    Args:
        eigenvalues: pair of tensors (..., n), distinct: where two are equal,
            the result is NaN.
        inverse_powers: boolean, whether the basis is U; the eigenvalues are
            not zero then. Defaults to `False`.
        normalized: boolean, whether B' is divided by its greatest magnitude.
            Defaults to `False`.

    Returns:
        A pair of tensors (..., n). Of conjugate eigenvalues the entries are
        conjugate, up to rounding.

    Raises:
        ValueError: if the argument is not a pair.

    Example: 1 / (2 - 4) and 1 / (4 - 2).

    >>> from keras_linrec.ops.canonical_form import canonical_input
    >>> real, imag = canonical_input(([2.0, 4.0], [0.0, 0.0]))
    >>> [round(float(part), 5) for part in real]
    [-0.5, 0.5]
    """
    # The lemma calls this the complex conjugate of U^-1's last column. With
    # the columns as lemma 2 has them it is that column itself, which numbers
    # confirm: its conjugate belongs to the same system with the members of
    # each pair in the other order.
    eigenvalues = _pair("eigenvalues", eigenvalues)
    own = tuple(part[..., :, None] for part in eigenvalues)
    factors = tuple(part - ops.swapaxes(part, -1, -2) for part in own)
    if inverse_powers:
        # The power alone would underflow: each factor takes its share of it.
        factors = multiply(factors, reciprocal(own))
    same = np.eye(eigenvalues[0].shape[-1], dtype=bool)
    real, imag = (
        ops.where(same, value, part) for value, part in zip((1.0, 0.0), factors)
    )
    square = real * real + imag * imag
    logarithm = -0.5 * ops.sum(ops.log(square), axis=-1)
    if normalized:
        logarithm = logarithm - ops.max(logarithm, axis=-1, keepdims=True)
    magnitude, length = ops.exp(logarithm), ops.sqrt(square)
    # Directions are multiplied where angles would be added: a sum of hundreds
    # of angles rounds at its own size, and Keras has no float64 arctan2.
    direction = _product((real / length, -imag / length))
    return tuple(magnitude * part for part in direction)


def _product(numbers):
    """The product over the last axis, by halves."""
    size = numbers[0].shape[-1]
    full = 2 ** (size - 1).bit_length()
    padding = [[0, 0]] * (len(numbers[0].shape) - 1) + [[0, full - size]]
    numbers = tuple(
        ops.pad(part, padding, constant_values=one)
        for part, one in zip(numbers, (1.0, 0.0))
    )
    while full > 1:
        full //= 2
        numbers = multiply(
            tuple(part[..., :full] for part in numbers),
            tuple(part[..., full:] for part in numbers),
        )
    return tuple(part[..., 0] for part in numbers)


def leja_order(nodes):
    """The order in which each node is furthest from all before it.

    The first node has the greatest magnitude, each other one the greatest
    product of distances to those before. Polynomials that are built up node
    by node stay small then, and lose the fewest digits.

    Args:
        nodes: pair of tensors (..., n); equal ones are no error.

    Returns:
        An int32 tensor (..., n) of indices, without a gradient.

    Raises:
        ValueError: if the argument is not a pair.

    Example:

    >>> from keras_linrec.ops.canonical_form import leja_order
    >>> order = leja_order(([0.8, 0.9, 1.0, -1.0], [0.0, 0.0, 0.0, 0.0]))
    >>> [int(index) for index in order]
    [2, 3, 0, 1]
    """
    nodes = _pair("nodes", nodes)
    # Rounding changes nothing here but which of two equals comes first.
    real, imag = (
        ops.cast(ops.stop_gradient(part), "float32") for part in nodes
    )
    first = ops.argmax(real * real + imag * imag, axis=-1)
    start = (ops.zeros_like(real), ops.cast(first, "int32"), real, imag)
    _, (_, order, _, _) = ops.scan(_next_node, start, length=real.shape[-1])
    return ops.moveaxis(order, 0, -1)


def _next_node(carry, _):
    score, index, *nodes = carry
    chosen = ops.arange(score.shape[-1], dtype="int32") == index[..., None]
    square = sum(_square_of_distance(part, chosen) for part in nodes)
    apart = square > 0.0
    logarithm = ops.where(
        apart, ops.log(ops.where(apart, square, 1.0)), _LOGARITHM_OF_ZERO
    )
    score = ops.where(chosen, -np.inf, score + logarithm)
    index = ops.cast(ops.argmax(score, axis=-1), "int32")
    return (score, index, *nodes), carry


def _square_of_distance(part, chosen):
    other = ops.sum(ops.where(chosen, part, 0.0), axis=-1, keepdims=True)
    return (part - other) * (part - other)


def _pair(name, pair):
    """The pair as float tensors of one dtype, both of one size."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(
            f"`{name}` should be a pair (real, imag) of tensors. "
            f"Received: {name}={pair}"
        )
    parts = [ops.convert_to_tensor(part) for part in pair]
    shapes = [tuple(part.shape) for part in parts]
    if shapes[0][-1:] != shapes[1][-1:]:
        raise ValueError(
            f"The last axes of `{name}` should be of one size. Received: "
            f"{name} of shapes {shapes}"
        )
    dtype = accumulation_dtype(*parts)
    return tuple(ops.cast(part, dtype) for part in parts)
