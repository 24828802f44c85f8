"""Eigenvalues of real systems: as real parameters, and where they start.

A real system of `size` states has its eigenvalues in pairs, and one real one
left over where the size is odd. A pair is z and its conjugate, or two real
numbers where the parameterisation lets it ("hinge"). Exact pairs are what
makes outputs exactly real (LDStack, section 3 and appendix).
"""

import random
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_linrec.double_precision import cos
from keras_linrec.double_precision import sin

# The names of the parameters: the first of two has an entry more where the size
# is odd, for the real eigenvalue left over.
_PARAMETERS = {
    "standard": ("eigenvalue_real", "eigenvalue_imag"),
    "unit": ("angle",),
    "hinge": ("eigenvalue_mean", "eigenvalue_split"),
    "log_polar": ("log_magnitude", "angle"),
    "log_polar_hinge": ("log_magnitude", "log_split"),
}
PARAMETERIZATIONS = tuple(_PARAMETERS)
INITIAL = ("polynomial", "uniform", "low_discrepancy", "chebyshev")
# Those whose pairs may be two real numbers.
HINGES = ("hinge", "log_polar_hinge")
# What is drawn at random is drawn again, a few times, while two eigenvalues are
# closer.
_LEAST_SEPARATION = 1e-5
_DRAWS = 10


class Spectrum(NamedTuple):
    """The eigenvalues of systems of the same size, by pairs.

    Attributes:
        real, imag: tensors (systems, ceil(size / 2)), the first of each pair,
            and behind the pairs the one left over where the size is odd.
        partner: tensor (systems, size // 2), the second of each pair that is
            two real numbers, which are those whose `imag` is zero; `None`
            where every second is the first's conjugate.
    """

    real: object
    imag: object
    partner: object = None


def require_parameterization(value):
    """Raise unless `value` names a parameterisation."""
    if value not in PARAMETERIZATIONS:
        raise ValueError(
            f"`eigenvalues` should be one of {PARAMETERIZATIONS}. "
            f"Received: eigenvalues={value}"
        )


def parameter_names(parameterization):
    """The names of its parameters."""
    return _PARAMETERS[parameterization]


def spectrum(parameterization, parameters, size):
    """The eigenvalues that parameters stand for.

    With a, b the parameters of a pair, in the order of their names, the pair
    is

        standard         a + i b, a - i b
        unit             exp(i a), exp(-i a)
        hinge            a + b, a - b if b >= 0, else a - i b, a + i b
        log_polar        exp(a + i b), exp(a - i b)
        log_polar_hinge  exp(a + b), exp(a - b) if b >= 0,
                         exp(a - i b), exp(a + i b) if -pi < b < 0,
                         -exp(a + c), -exp(a - c) if c = -b - pi >= 0

    and the one left over is a, in the last two exp(a); for "unit" it is 1.
    A hinge is continuous where two real numbers meet and turn into a
    conjugate pair. Logarithms keep small magnitudes apart.

    Args:
        parameterization: `"standard"`, `"unit"`, `"hinge"`, `"log_polar"` or
            `"log_polar_hinge"`.
        parameters: dict of tensors by the names of `parameter_names`: (systems,
            size // 2), and the first of two (systems, ceil(size / 2)).
        size: integer, the states of a system.

    Returns:
        A `Spectrum`.
    """
    values = [
        ops.convert_to_tensor(parameters[name])
        for name in _PARAMETERS[parameterization]
    ]
    odd = size % 2
    if parameterization == "unit":
        (angle,) = values
        return Spectrum(_pad(cos(angle), odd, 1.0), _pad(sin(angle), odd))
    first, second = values
    if parameterization == "standard":
        return Spectrum(first, _pad(second, odd))
    if parameterization == "hinge":
        # Of two equal eigenvalues the derivative is that of two real ones: with
        # none of its own the pair would never part.
        apart = ops.where(second >= 0.0, second, 0.0)
        imag = ops.where(second >= 0.0, 0.0, -second)
        pairs = first[:, : second.shape[1]]
        return Spectrum(
            first + _pad(apart, odd), _pad(imag, odd), pairs - apart
        )
    if parameterization == "log_polar":
        magnitude, angle = ops.exp(first), _pad(second, odd)
        return Spectrum(magnitude * cos(angle), magnitude * sin(angle))
    return _log_polar_hinge(first, second, odd)


def _log_polar_hinge(log_magnitude, split, odd):
    # The real numbers beyond an angle of pi are negative ones.
    is_negative, is_positive = split <= -np.pi, split >= 0.0
    beyond = ops.where(is_negative, -np.pi - split, 0.0)
    apart = ops.where(is_positive, split, beyond)
    angle = ops.where(is_positive, 0.0, -split)
    complex_ones = ops.where(is_negative, 0.0, angle)
    sign = ops.where(is_negative, -ops.ones_like(split), 1.0)
    pairs = log_magnitude[:, : split.shape[1]]
    magnitude = ops.exp(log_magnitude + _pad(apart, odd)) * _pad(sign, odd, 1.0)
    return Spectrum(
        magnitude * cos(_pad(complex_ones, odd)),
        magnitude * sin(_pad(complex_ones, odd)),
        sign * ops.exp(pairs - apart),
    )


def _pad(values, count, filling=0.0):
    return ops.pad(values, [[0, 0], [0, count]], constant_values=filling)


def as_complex(spectrum, size):
    """All eigenvalues as a complex NumPy array (systems, size).

    The members of a pair are neighbours, and the one left over is the last.
    """
    real, imag = (
        ops.convert_to_numpy(part).astype("float64")
        for part in (spectrum.real, spectrum.imag)
    )
    pairs = size // 2
    first = real + 1j * imag
    second = np.conj(first[:, :pairs])
    if spectrum.partner is not None:
        partner = ops.convert_to_numpy(spectrum.partner).astype("float64")
        second = np.where(imag[:, :pairs] == 0, partner, second)
    neighbours = np.stack([first[:, :pairs], second], axis=-1)
    neighbours = neighbours.reshape(len(first), 2 * pairs)
    return np.concatenate([neighbours, first[:, pairs:]], axis=1)


def parameters_of(parameterization, eigenvalues):
    """The parameters of given eigenvalues: the inverse of `spectrum`.

    Args:
        parameterization: as in `spectrum`.
        eigenvalues: array (systems, size) of each system's eigenvalues, in
            any order, closed under conjugation.

    Returns:
        A dict of float64 NumPy arrays.

    Raises:
        ValueError: if they are not closed under conjugation, or the
            parameterisation has no place for them.
    """
    eigenvalues = np.atleast_2d(np.asarray(eigenvalues, "complex128"))
    if not np.isfinite(eigenvalues).all():
        raise ValueError(
            "`initial_eigenvalues` should be finite. Received: "
            f"initial_eigenvalues={eigenvalues}"
        )
    # What rounding has left of an imaginary part is no pair.
    rounding = np.abs(eigenvalues.imag) <= 1e-12 * np.abs(eigenvalues)
    eigenvalues = np.where(rounding, eigenvalues.real, eigenvalues)
    systems = [_parameters_of_one(parameterization, e) for e in eigenvalues]
    names = _PARAMETERS[parameterization]
    return {
        name: np.stack([system[i] for system in systems])
        for i, name in enumerate(names)
    }


def _parameters_of_one(parameterization, eigenvalues):
    first, second, leftover = in_pairs(eigenvalues)
    real = (np.imag(first) == 0) & (np.imag(second) == 0)
    if parameterization not in HINGES and np.any(real & (first != second)):
        raise ValueError(
            f"Two real eigenvalues are no pair of '{parameterization}', which "
            f"has conjugate ones: take one of {HINGES}. Received: "
            f"{first[real]} and {second[real]}"
        )
    if parameterization == "unit":
        _require_unit(np.concatenate([first, leftover]), leftover)
        return (np.angle(first),)
    if parameterization == "standard":
        return np.real(np.concatenate([first, leftover])), np.imag(first)
    if parameterization == "hinge":
        mean = np.real(first + second) / 2
        split = np.where(real, np.real(first - second) / 2, -np.imag(first))
        return np.concatenate([mean, np.real(leftover)]), split
    _require_logarithms(first, second, leftover, real)
    log_first, log_second = np.log(np.abs(first)), np.log(np.abs(second))
    log_leftover = np.log(np.real(leftover))
    log_magnitude = np.concatenate([(log_first + log_second) / 2, log_leftover])
    if parameterization == "log_polar":
        return log_magnitude, np.angle(first)
    apart = np.abs(log_first - log_second) / 2
    split = np.where(np.real(first) > 0, apart, -np.pi - apart)
    return log_magnitude, np.where(real, split, -np.angle(first))


def _require_unit(eigenvalues, leftover):
    if not np.allclose(np.abs(eigenvalues), 1) or not np.allclose(leftover, 1):
        raise ValueError(
            "Eigenvalues of 'unit' have magnitude 1, and one that is left "
            f"over is 1 itself. Received: {eigenvalues}"
        )


def _require_logarithms(first, second, leftover, real):
    mixed = real & (np.real(first) * np.real(second) <= 0)
    if mixed.any() or np.any(np.real(leftover) <= 0):
        raise ValueError(
            "The real eigenvalues of a pair in log-polar form should have one "
            "sign, one that is left over should be positive, and none is "
            "zero: take 'hinge'. Received: "
            f"{first[mixed]}, {second[mixed]} and {leftover}"
        )


def in_pairs(eigenvalues):
    """`(first, second, leftover)` of one system's eigenvalues.

    Conjugate pairs, first that of positive imaginary part, then the real ones
    in pairs of neighbours by size, and a real one that has no partner.

    Args:
        eigenvalues: complex array (size,), closed under conjugation.
    """
    eigenvalues = np.asarray(eigenvalues, "complex128")
    first, second, leftover = pair_order(eigenvalues)
    return eigenvalues[first], eigenvalues[second], eigenvalues[leftover]


def pair_order(eigenvalues):
    """The indices of what `in_pairs` returns.

    Raises:
        ValueError: if there is one without its conjugate.
    """
    eigenvalues = np.asarray(eigenvalues, "complex128")
    real = np.flatnonzero(eigenvalues.imag == 0)
    upper = np.flatnonzero(eigenvalues.imag > 0)
    lower = np.flatnonzero(eigenvalues.imag < 0)
    # Of rounded keys, so that conjugates which differ by rounding meet.
    keys = np.round([np.abs(eigenvalues.imag), eigenvalues.real], 9)
    upper, lower = (part[np.lexsort(keys[:, part])] for part in (upper, lower))
    if len(upper) != len(lower) or not np.allclose(
        eigenvalues[upper], eigenvalues[lower].conj()
    ):
        raise ValueError(
            "Eigenvalues of a real system should come in conjugate pairs. "
            f"Received: {eigenvalues}"
        )
    real = real[np.argsort(eigenvalues[real].real)]
    # The largest stays alone: where signs are mixed it is positive.
    leftover = real[len(real) - len(real) % 2 :]
    real = real[: len(real) - len(real) % 2]
    return (
        np.concatenate([upper, real[1::2]]),
        np.concatenate([lower, real[::2]]),
        leftover,
    )


# Where eigenvalues start.


def initial_eigenvalues(kind, parameterization, systems, size, seed=None):
    """Eigenvalues to start training from.

    Args:
        kind: `"polynomial"`, the roots of monic polynomials with coefficients
            of N(0, 1 / size), which lie near the unit circle (those outside
            it are reflected to 1 / conj(z), so that nothing grows with time);
            `"uniform"`, uniform angles on the unit circle;
            `"low_discrepancy"`, angles of the van der Corput sequence, which
            keep away from one another for large sizes too; or `"chebyshev"`:
            the Chebyshev nodes of [-1, 1] for "hinge", otherwise the points
            of the unit circle above and below them, which are evenly spaced.
        parameterization: what the eigenvalues have to fit: see `spectrum`.
        systems: integer, how many systems.
        size: integer, the states of each.
        seed: integer or `None`, the default, which draws one from Python's
            generator, as Keras' own initializers do.

    Returns:
        A complex NumPy array (systems, size), for `parameters_of`.

    Raises:
        ValueError: for an unknown kind, or "polynomial" with "unit".
    """
    require_initial(kind, parameterization)
    generator = np.random.default_rng(
        random.randrange(2**32) if seed is None else seed
    )

    def draw():
        if kind == "polynomial":
            return _polynomial_roots(parameterization, size, generator)
        if kind == "chebyshev" and parameterization == "hinge":
            return np.cos(_angles(kind, size, generator))
        return _on_circle(_angles(kind, size // 2, generator), size)

    return np.stack([_draw_distinct(draw) for _ in range(systems)])


def require_initial(kind, parameterization):
    """Raise unless `kind` names eigenvalues that the parameters can hold."""
    if kind not in INITIAL:
        raise ValueError(
            f"`initial_eigenvalues` should be one of {INITIAL} or an array. "
            f"Received: initial_eigenvalues={kind}"
        )
    if kind == "polynomial" and parameterization == "unit":
        raise ValueError(
            "Roots of polynomials do not lie on the unit circle, where those "
            "of 'unit' do. Received: initial_eigenvalues=polynomial, "
            "eigenvalues=unit"
        )


def _draw_distinct(draw):
    eigenvalues = draw()
    for _ in range(_DRAWS):
        if separation(eigenvalues) > _LEAST_SEPARATION:
            break
        eigenvalues = draw()
    return eigenvalues


def separation(eigenvalues):
    """The smallest distance between two of some eigenvalues.

    Where it is zero, the companion form's eigenvectors are no basis.

    Args:
        eigenvalues: complex array (size,).

    Returns:
        A float, infinite for a single eigenvalue.
    """
    eigenvalues = np.asarray(eigenvalues)
    distances = np.abs(eigenvalues[:, None] - eigenvalues[None])
    np.fill_diagonal(distances, np.inf)
    return float(distances.min())


def _polynomial_roots(parameterization, size, generator):
    # Eigenvalues of the companion matrix, which LAPACK balances: backward
    # stable, also for hundreds of roots.
    coefficients = generator.standard_normal(size) / np.sqrt(size)
    roots = np.roots([1.0, *coefficients])
    magnitude = np.abs(roots)
    roots = np.where(magnitude > 1, roots / magnitude**2, roots)
    if parameterization == "hinge":
        return roots
    first, second, leftover = in_pairs(roots)
    apart = (first.imag == 0) & (first != second)
    if parameterization == "log_polar_hinge":
        apart &= np.real(first * second) <= 0
    # Two real roots become a conjugate pair of the same sum and mean square.
    mean, half = (first + second) / 2, (first - second) / 2
    first = np.where(apart, mean + 1j * half, first)
    second = np.where(apart, mean - 1j * half, second)
    if parameterization != "standard":
        leftover = np.abs(leftover)
    return np.concatenate([first, second, leftover])


def _angles(kind, count, generator):
    """Angles between 0 and pi, without the ends."""
    if kind == "uniform":
        # The paper's (-2 pi, 2 pi) is the same, for a pair has both signs.
        return np.pi * generator.uniform(size=count)
    if kind == "low_discrepancy":
        return np.pi * np.array([_van_der_corput(i + 1) for i in range(count)])
    return np.pi * (np.arange(count) + 0.5) / count


def _van_der_corput(index):
    """The binary digits of `index`, mirrored at the point."""
    value, weight = 0.0, 0.5
    while index:
        value += weight * (index % 2)
        index, weight = index // 2, weight / 2
    return value


def _on_circle(angles, size):
    points = np.exp(1j * angles)
    return np.concatenate([points, points.conj(), np.ones(size % 2)])
