"""The canonical forms of a single-input system, from its eigenvalues.

Complex numbers are (real, imag) pairs of tensors throughout, float32, or
float64 if an argument is. Every function takes any leading axes and is
differentiable in every argument; n, the size of the last axis, is known.

Numerical limits
----------------
`vandermonde_solve` of what `vandermonde_multiply` made of random coefficients:
the error as a share of the largest coefficient, median of 5 to 100 draws.

| nodes                    | float32, n = 16 | n = 32 | n = 256 | < 1e-3 to n |
|--------------------------|-----------------|--------|---------|-------------|
| roots, random polynomial | 2e-7            | 3e-7   | 1e-6    | 256 or more |
| equally spaced angles    | 1e-7            | 2e-7   | 6e-7    | 256 or more |
| van der Corput angles    | 4e-7            | 9e-7   | 2e-6    | 256 or more |
| uniform random angles    | 4e-5            | 7e-3   | useless | 24          |
| Chebyshev, [-1, 1]       | 8e-4            | useless| useless | 16          |

"Roots" are those of monic polynomials with coefficients N(0, 1/n), reflected
into the unit circle. With transpose=True the errors are the same, or up to
ten times those (2e-5 at n = 256). These are the errors of LU with pivoting,
which takes n^3 operations, in the same precision. Without refinement they are
up to a hundred times as large (2e-4 at 256 van der Corput angles), and
without Leja's order nothing is left: the error of 64 roots, the upper half
plane's first, is 7e10 in float32 and 3e-2 in float64.

Uniform angles fall close together by chance: the worst of 100 draws errs by
3e-3 at n = 6 and by 5e-3 at n = 8. In float64 their median is 7e-9 at n = 64,
where 12 of 100 draws err by more than 1e-3; that of Chebyshev nodes is 1e-6
at n = 32 and 9e-4 at n = 40. Whatever does not divide by small distances is
accurate for all five at n = 256: in float32 products to 1e-6, coefficients to
2e-5, `canonical_input` to 3e-5.

Under TensorFlow, XLA does not compile gradients of these functions: their
loops have no length that it can see.
"""

import numpy as np
from keras import ops

from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import multiply_add
from keras_linrec.ops.precision import accumulation_dtype

# What a distance of zero counts for in a sum of logarithms: for less than any
# other, and still for a number.
_LOGARITHM_OF_ZERO = -1e30


def characteristic_coefficients(eigenvalues):
    """a_0 ... a_{n-1} of prod_j (t - lambda_j) = t^n + sum_i a_i t^i.

    By multiplying the factors one after another (the summation algorithm,
    Rehman and Ipsen 2011), in Leja's order: otherwise the partial products
    are large, and what they lose is not found again. `numpy.poly` on 64 roots
    in the order of `numpy.linalg.eigvals` errs by 9e-2 in float64; this by
    4e-15, and by 2e-6 in float32. At n = 256 it is 2e-14 and 1e-5, as shares
    of the largest coefficient.

    Args:
        eigenvalues: pair of tensors (..., n), distinct or not.

    Returns:
        A pair of tensors (..., n). Where the eigenvalues come in conjugate
        pairs the imaginary part is rounding, as large as the real part's,
        and not exactly zero.

    Raises:
        ValueError: if the argument is not a pair.

    Example: (t - 2) (t - 3).

    >>> from keras_linrec.ops.canonical_form import (
    ...     characteristic_coefficients
    ... )
    >>> real, imag = characteristic_coefficients(([2.0, 3.0], [0.0, 0.0]))
    >>> [float(a) for a in real]
    [6.0, -5.0]
    """
    (eigenvalues,) = _pairs(eigenvalues=eigenvalues)
    eigenvalues = _in_order(eigenvalues, leja_order(eigenvalues))
    size = eigenvalues[0].shape[-1]
    zeros = ops.zeros_like(eigenvalues[0][..., :1])
    one = zeros + _constant(np.arange(size + 1) == 0, zeros)
    product, _ = ops.scan(
        _times_factor, (one, ops.zeros_like(one)), _one_by_one(eigenvalues)
    )
    return tuple(part[..., :-1] for part in product)


def _step(function):
    """A function of carry and inputs as `ops.scan` wants one.

    The steps are functions of the module and not of a call: JAX, where it is
    not compiling anyway, compiles a scan again for every new function.
    """

    def step(carry, inputs):
        carry = tuple(function(carry, inputs))
        return carry, carry

    return step


@_step
def _times_factor(product, root):
    root = (-root[0], -root[1])
    return multiply_add(root, product, _shifted(product, 1))


def companion_matrix(coefficients, transpose=False):
    """Frobenius' companion form (LDStack, equation 2).

    A has ones below the diagonal and -a in its last column. Its eigenvalues
    are the roots of t^n + sum_i a_i t^i; with V as in `vandermonde_multiply`,
    V A = diag(lambda) V, and A^T V^T = V^T diag(lambda).

    Args:
        coefficients: tensor (..., n), a: for a real system, the real part of
            `characteristic_coefficients`.
        transpose: boolean, whether to return A^T. Defaults to `False`.

    Returns:
        A tensor (..., n, n).

    Raises:
        ValueError: if the argument is a pair.

    Example:

    >>> from keras_linrec.ops.canonical_form import companion_matrix
    >>> matrix = companion_matrix([6.0, -5.0])
    >>> [[float(entry) for entry in row] for row in matrix]
    [[0.0, -6.0], [1.0, 5.0]]
    """
    if isinstance(coefficients, tuple):
        raise ValueError(
            "`coefficients` should be a tensor, of real numbers. "
            f"Received: coefficients={coefficients}"
        )
    coefficients = ops.convert_to_tensor(coefficients)
    size = coefficients.shape[-1]
    below = _constant(np.eye(size, k=-1), coefficients)
    last = _constant(np.arange(size) == size - 1, coefficients)
    matrix = below - coefficients[..., None] * last
    return ops.swapaxes(matrix, -1, -2) if transpose else matrix


def vandermonde_multiply(nodes, coefficients, transpose=False):
    """V c, V_ij = nodes_i^j for j from 0 to n - 1, or V^T c (section 2.2).

    V c are the values of the polynomial sum_j c_j t^j at the nodes, by
    Horner's method; V^T c are the moments sum_j nodes_j^i c_j. Both take
    O(n^2) operations, and V is not formed.

    Args:
        nodes: pair of tensors (..., n).
        coefficients: pair of tensors (..., n), c. Leading axes broadcast.
        transpose: boolean, whether V^T multiplies. Defaults to `False`.

    Returns:
        A pair of tensors (..., n).

    Raises:
        ValueError: if an argument is not a pair, or the sizes differ.

    Example: 1 + 2 t at 3 and at i.

    >>> from keras_linrec.ops.canonical_form import vandermonde_multiply
    >>> real, imag = vandermonde_multiply(
    ...     ([3.0, 0.0], [0.0, 1.0]), ([1.0, 2.0], [0.0, 0.0])
    ... )
    >>> [complex(*parts) for parts in zip(real, imag)]
    [(7+0j), (1+2j)]
    """
    nodes, coefficients = _pairs(nodes=nodes, coefficients=coefficients)
    zeros = _zeros(nodes, coefficients)
    if transpose:
        start = (*_plus(coefficients, zeros), *nodes)
        _, terms = ops.scan(_times_node, start, length=nodes[0].shape[-1])
        return tuple(
            ops.moveaxis(ops.sum(part, axis=-1), 0, -1) for part in terms[:2]
        )
    values, _ = ops.scan(
        _horner, (*zeros, *nodes), _one_by_one(coefficients), reverse=True
    )
    return values[:2]


@_step
def _horner(carry, coefficient):
    values, nodes = carry[:2], carry[2:]
    return *multiply_add(values, nodes, coefficient), *nodes


def _times_node(carry, _):
    terms, nodes = carry[:2], carry[2:]
    return (*multiply(terms, nodes), *nodes), carry


def vandermonde_solve(nodes, values, transpose=False, refinements=1):
    """V^-1 f, or V^-T f, with V as in `vandermonde_multiply`.

    V^-1 f are the coefficients of the polynomial with the values f at the
    nodes, V^-T f the weights with the moments f, by the algorithms of Bjorck
    and Pereyra (1970) in O(n^2) operations. The nodes are taken in Leja's
    order, which the result does not show. How large n may be is in the
    module's table.

    The closer two nodes are, the fewer digits are right; where two are equal
    V is singular, and the result holds NaN.

    Args:
        nodes: pair of tensors (..., n), distinct.
        values: pair of tensors (..., n), f. Leading axes broadcast.
        transpose: boolean, whether V^T is solved with. Defaults to `False`.
        refinements: integer, how often the residual is solved for and added.
            The first time gains one digit or two, the next nothing; where V
            is singular to rounding, none does. Defaults to `1`.

    Returns:
        A pair of tensors (..., n).

    Raises:
        ValueError: if an argument is not a pair, or the sizes differ.

    Example: the polynomial with the values 7 at 3 and 1 + 2 i at i.

    >>> from keras_linrec.ops.canonical_form import vandermonde_solve
    >>> real, imag = vandermonde_solve(
    ...     ([3.0, 0.0], [0.0, 1.0]), ([7.0, 1.0], [0.0, 2.0])
    ... )
    >>> [round(float(part), 5) for part in real]
    [1.0, 2.0]
    """
    nodes, values = _pairs(nodes=nodes, values=values)
    values = _plus(values, _zeros(nodes, values))
    if nodes[0].shape[-1] == 1:
        return values
    order = leja_order(nodes)
    nodes = _in_order(nodes, order)
    differences = (_columns_from(nodes, 1), *_reciprocals(nodes))
    if not transpose:
        values = _in_order(values, order)
    solve = _weights if transpose else _interpolation
    result = solve(nodes, differences, values)
    for _ in range(refinements):
        product = vandermonde_multiply(nodes, result, transpose)
        rest = tuple(part - other for part, other in zip(values, product))
        result = _plus(result, solve(nodes, differences, rest))
    if not transpose:
        return result
    return _in_order(result, ops.argsort(order, axis=-1))


def _interpolation(nodes, differences, values):
    """Divided differences, and then Newton's form taken to powers."""
    values, _ = ops.scan(_divide_difference, values, differences)
    negative = _negative(nodes, 0)
    return ops.scan(_expand_newton, values, negative, reverse=True)[0]


@_step
def _divide_difference(values, factors):
    used, *reciprocal = factors
    difference = tuple(
        part - used * before
        for part, before in zip(values, _shifted(values, 1))
    )
    return multiply(difference, reciprocal)


@_step
def _expand_newton(values, node):
    return multiply_add(node, _shifted(values, -1), values)


def _weights(nodes, differences, moments):
    """The steps of `_interpolation`, transposed and in reverse order."""
    moments, _ = ops.scan(_reduce_moments, moments, _negative(nodes, 1))
    return ops.scan(_divide_moments, moments, differences, reverse=True)[0]


@_step
def _reduce_moments(moments, node):
    return multiply_add(node, _shifted(moments, 1), moments)


@_step
def _divide_moments(moments, factors):
    used, *reciprocal = factors
    moments = multiply(moments, reciprocal)
    behind = _shifted(tuple(used * part for part in moments), -1)
    return tuple(part - other for part, other in zip(moments, behind))


def _columns_from(nodes, start):
    """A row k for each node but the last: ones from column k + start on."""
    size = nodes[0].shape[-1]
    return _constant(np.triu(np.ones((size - 1, size)), k=start), nodes[0])


def _negative(nodes, start):
    """Minus node k from column k + start of row k on."""
    mask = _columns_from(nodes, start)
    return tuple(
        ops.moveaxis(-part[..., :-1, None] * mask, -2, 0) for part in nodes
    )


def _reciprocals(nodes):
    """1 / (node i - node (i - k - 1)) in row k, and 1 where i <= k."""
    size = nodes[0].shape[-1]
    column, row = np.arange(size), np.arange(size - 1)[:, None]
    other = np.maximum(column - row - 1, 0).astype("int32")
    real, imag = (
        part[..., None, :] - ops.take(part, other, axis=-1) for part in nodes
    )
    apart = column > row
    reciprocals = _reciprocal(
        (ops.where(apart, real, 1.0), ops.where(apart, imag, 0.0))
    )
    return tuple(ops.moveaxis(part, -2, 0) for part in reciprocals)


def canonical_input(eigenvalues, inverse_powers=False, normalized=False):
    """B' of the transpose form: 1 / prod_{j != i} (lambda_i - lambda_j).

    The system (A^T, e_n) in the basis of the columns of V^T: A^T = V^T
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
    (eigenvalues,) = _pairs(eigenvalues=eigenvalues)
    own = tuple(part[..., :, None] for part in eigenvalues)
    factors = tuple(part - ops.swapaxes(part, -1, -2) for part in own)
    if inverse_powers:
        # The power alone would underflow: each factor takes its share of it.
        factors = multiply(factors, _reciprocal(own))
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


def _reciprocal(number):
    real, imag = number
    square = real * real + imag * imag
    return real / square, -imag / square


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
    (nodes,) = _pairs(nodes=nodes)
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


def _in_order(numbers, order):
    return tuple(
        ops.take_along_axis(
            part, order + ops.zeros_like(part, dtype="int32"), axis=-1
        )
        for part in numbers
    )


def _one_by_one(numbers):
    return tuple(ops.moveaxis(part, -1, 0)[..., None] for part in numbers)


def _shifted(numbers, by):
    """Entry i at i + 1, or with -1 at i - 1, and zero at the end left open."""
    if by > 0:
        return tuple(
            ops.concatenate([ops.zeros_like(p[..., :1]), p[..., :-1]], axis=-1)
            for p in numbers
        )
    return tuple(
        ops.concatenate([p[..., 1:], ops.zeros_like(p[..., :1])], axis=-1)
        for p in numbers
    )


def _plus(left, right):
    return tuple(a + b for a, b in zip(left, right))


def _zeros(*pairs):
    zeros = sum(ops.zeros_like(real) for real, _ in pairs)
    return zeros, zeros


def _constant(array, like):
    return ops.convert_to_tensor(np.asarray(array, "float64"), like.dtype)


def _pairs(**pairs):
    """The pairs as float tensors of one dtype, all of one size."""
    for name, pair in pairs.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(
                f"`{name}` should be a pair (real, imag) of tensors. "
                f"Received: {name}={pair}"
            )
    parts = {
        name: [ops.convert_to_tensor(part) for part in pair]
        for name, pair in pairs.items()
    }
    shapes = {
        name: [tuple(part.shape) for part in pair]
        for name, pair in parts.items()
    }
    if len({shape[-1:] for pair in shapes.values() for shape in pair}) > 1:
        raise ValueError(
            f"The last axes of {' and '.join(f'`{name}`' for name in pairs)} "
            "should be of one size. Received: "
            + ", ".join(
                f"{name} of shapes {pair}" for name, pair in shapes.items()
            )
        )
    dtype = accumulation_dtype(*(p for pair in parts.values() for p in pair))
    return tuple(
        tuple(ops.cast(part, dtype) for part in pair) for pair in parts.values()
    )
