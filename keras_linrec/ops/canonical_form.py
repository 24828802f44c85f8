"""The input vector of a companion form, and Leja ordering of nodes.

Complex numbers are (real, imag) pairs of tensors throughout: float32, or
float64 if an argument is float64. Both functions accept any leading axes; the
size n of the last axis must be known.
"""

import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.complex_pairs import largest_part
from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import reciprocal
from keras_linrec.ops.precision import accumulation_dtype
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_bools
from keras_linrec.validation import require_tensors

# Stands for log(0) in sums of logarithms: below all others, but finite.
_LOGARITHM_OF_ZERO = -1e30


@in_any_byte_order
def canonical_input(
    eigenvalues: types.Tensor,
    inverse_powers: bool = False,
    normalized: bool = False,
) -> types.Tensor:
    """The modal input B'_i = 1 / prod_{j != i} (lambda_i - lambda_j).

    This is the input of the system (A^T, e_n) in its eigenbasis, where A is
    Frobenius' companion form (LDStack, equation 2). With V_ij = lambda_i^j,
    A^T = V^T diag(lambda) V^-T and B' = V^-T e_n. Lemma 3 uses U, with columns
    [lambda_j^-(n-i)], in place of V^T, and so has lambda_i^(n-1) in the
    numerator; `inverse_powers=True` selects that form. V^T is the better
    basis: for 64 roots of random polynomials its condition number is 1e2,
    that of U 3e8.

    Magnitudes are accumulated as logarithms, so no intermediate value over-
    or underflows unless the result does. In float32 the result overflows from
    137 Chebyshev nodes in [-1, 1] on, where B' exceeds 2^128; use
    `normalized=True` there.

    Args:
        eigenvalues: pair of tensors (..., n), distinct; equal eigenvalues
            give NaN.
        inverse_powers: boolean, whether the basis is U, for which no
            eigenvalue may be zero. Defaults to `False`.
        normalized: boolean, whether to divide B' by its largest magnitude.
            Defaults to `False`.

    Returns:
        A pair of tensors (..., n). Conjugate eigenvalues have conjugate
        entries, up to rounding.

    Raises:
        ValueError: if `eigenvalues` is not a pair of tensors of one size.

    Example: 1 / (2 - 4) and 1 / (4 - 2).

    >>> from keras_linrec.ops.canonical_form import canonical_input
    >>> real, imag = canonical_input(([2.0, 4.0], [0.0, 0.0]))
    >>> [round(float(part), 5) for part in real]
    [-0.5, 0.5]
    """
    # The lemma calls this the complex conjugate of the last column of U^-1.
    # With the columns of lemma 2 it is that column itself, as numerical checks
    # confirm; the conjugate belongs to the system with the members of each
    # pair swapped.
    require_bools(inverse_powers=inverse_powers, normalized=normalized)
    eigenvalues = _pair("eigenvalues", eigenvalues)
    own = tuple(part[..., :, None] for part in eigenvalues)
    factors = tuple(part - ops.swapaxes(part, -1, -2) for part in own)
    if inverse_powers:
        # The power alone would underflow, so it is spread over the factors.
        factors = multiply(factors, reciprocal(own))
    place = ops.arange(0, eigenvalues[0].shape[-1])
    same = place[:, None] == place
    real, imag = (
        ops.where(same, value, part) for value, part in zip((1.0, 0.0), factors)
    )
    # Squares of small distances would underflow.
    size = largest_part((real, imag))
    real, imag = real / size, imag / size
    square = real * real + imag * imag
    logarithm = -ops.sum(0.5 * ops.log(square) + ops.log(size), axis=-1)
    if normalized:
        logarithm = logarithm - ops.amax(logarithm, axis=-1, keepdims=True)
    magnitude, length = ops.exp(logarithm), ops.sqrt(square)
    # Multiply directions instead of adding angles: a sum of hundreds of angles
    # loses digits to its size, and Keras has no float64 arctan2.
    direction = _product((real / length, -imag / length))
    return tuple(magnitude * part for part in direction)


def _product(numbers):
    """The product over the last axis, by repeated halving."""
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


@in_any_byte_order
def leja_order(nodes: types.Tensor) -> types.Tensor:
    """Leja ordering: each node is as far as possible from those before it.

    The first node has the largest magnitude, every other one the largest
    product of distances to its predecessors. Polynomials built up node by
    node then stay small and lose few digits.

    Args:
        nodes: pair of tensors (..., n); nodes may be equal.

    Returns:
        An int32 tensor (..., n) of indices, without a gradient.

    Raises:
        ValueError: if `nodes` is not a pair of tensors of one size.

    Example:

    >>> from keras_linrec.ops.canonical_form import leja_order
    >>> order = leja_order(([0.8, 0.9, 1.0, -1.0], [0.0, 0.0, 0.0, 0.0]))
    >>> [int(index) for index in order]
    [2, 3, 0, 1]
    """
    nodes = _pair("nodes", nodes)
    # Rounding can only change the order of nodes that tie.
    real, imag = (
        ops.cast(ops.stop_gradient(part), "float32") for part in nodes
    )
    first = ops.argmax(real * real + imag * imag, axis=-1)
    start = (ops.zeros_like(real), ops.cast(first, "int32"), real, imag)
    _, (_, order, _, _) = ops.scan(_next_node, start, length=real.shape[-1])
    return ops.moveaxis(order, 0, -1)


def _next_node(carry, _):
    score, index, *nodes = carry
    chosen = ops.arange(0, score.shape[-1], dtype="int32") == index[..., None]
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
    """Convert a pair to float tensors of one dtype; check their sizes."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(
            f"`{name}` should be a pair (real, imag) of tensors. "
            f"Received: {name}={pair}"
        )
    require_tensors(**{name: pair})
    parts = [ops.convert_to_tensor(part) for part in pair]
    shapes = [tuple(part.shape) for part in parts]
    if not all(shapes) or shapes[0][-1] != shapes[1][-1]:
        raise ValueError(
            f"The last axes of `{name}` should be of one size. Received: "
            f"{name} of shapes {shapes}"
        )
    dtype = accumulation_dtype(*parts)
    return tuple(ops.cast(part, dtype) for part in parts)
