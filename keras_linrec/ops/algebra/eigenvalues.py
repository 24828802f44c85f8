"""Eigenvalues of real systems: their parameterisations and initial values.

The eigenvalues of a real system of `size` states come in pairs, with one real
eigenvalue left unpaired if the size is odd. A pair is z and its conjugate or,
in "hinge" parameterisations, two real numbers. Because pairs are exact,
outputs are exactly real (LDStack, section 3 and appendix).
"""

import random
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_linrec.double_precision import cos
from keras_linrec.double_precision import sin
from keras_linrec.validation import require_choice

# The names of the parameters. If the size is odd, the first of two has an
# additional entry for the unpaired eigenvalue.
_PARAMETERS = {
    "standard": ("eigenvalue_real", "eigenvalue_imag"),
    "unit": ("angle",),
    "hinge": ("eigenvalue_mean", "eigenvalue_split"),
    "log_polar": ("log_magnitude", "angle"),
    "log_polar_hinge": ("log_magnitude", "log_split"),
}
PARAMETERIZATIONS = tuple(_PARAMETERS)
INITIAL = ("polynomial", "uniform", "low_discrepancy", "chebyshev")
# The parameterisations whose pairs may be two real numbers.
HINGES = ("hinge", "log_polar_hinge")
# Random eigenvalues are drawn again, up to `_DRAWS` times, while two of them
# are closer than this.
_LEAST_SEPARATION = 1e-5
_DRAWS = 10


class Spectrum(NamedTuple):
    """The eigenvalues of systems of the same size, by pairs.

    Attributes:
        real, imag: tensors (systems, ceil(size / 2)), the first eigenvalue of
            each pair, followed by the unpaired one if the size is odd.
        partner: tensor (systems, size // 2), the second eigenvalue of each
            pair of real numbers. It counts only where `imag` is zero. `None`
            if all pairs are conjugate.
    """

    real: object
    imag: object
    partner: object = None


def require_parameterization(value):
    """Raise unless `value` names a parameterisation."""
    require_choice("eigenvalues", value, PARAMETERIZATIONS)


def parameter_names(parameterization):
    """The names of the parameters of a parameterisation."""
    return _PARAMETERS[parameterization]


def spectrum(parameterization, parameters, size):
    """The eigenvalues for given parameters.

    With the parameters a, b of a pair, in the order of `parameter_names`, the
    pair is

        standard         a + i b, a - i b
        unit             exp(i a), exp(-i a)
        hinge            a + b, a - b if b >= 0, else a - i b, a + i b
        log_polar        exp(a + i b), exp(a - i b)
        log_polar_hinge  exp(a + b), exp(a - b) if b >= 0,
                         exp(a - i b), exp(a + i b) if -pi < b < 0,
                         -exp(a + c), -exp(a - c) if c = -b - pi >= 0

    and the unpaired eigenvalue is a, or exp(a) in the last two; for "unit" it
    is 1. A hinge is continuous where two real numbers meet and become a
    conjugate pair. Logarithms resolve small magnitudes.

    Args:
        parameterization: `"standard"`, `"unit"`, `"hinge"`, `"log_polar"` or
            `"log_polar_hinge"`.
        parameters: dict of tensors by the names of `parameter_names`, each
            (systems, size // 2); the first of two is (systems,
            ceil(size / 2)).
        size: integer, the number of states of a system.

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
        # At two equal eigenvalues, use the derivative of the real case; with a
        # derivative of zero the pair would never separate.
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
    # Beyond an angle of pi the pair is real and negative.
    is_negative, is_positive = split <= -np.pi, split >= 0.0
    beyond = ops.where(is_negative, -np.pi - split, 0.0)
    apart = ops.where(is_positive, split, beyond)
    angle = ops.where(is_positive, 0.0, -split)
    angle = ops.where(is_negative, 0.0, angle)
    sign = ops.where(is_negative, -ops.ones_like(split), 1.0)
    pairs = log_magnitude[:, : split.shape[1]]
    magnitude = ops.exp(log_magnitude + _pad(apart, odd)) * _pad(sign, odd, 1.0)
    return Spectrum(
        magnitude * cos(_pad(angle, odd)),
        magnitude * sin(_pad(angle, odd)),
        sign * ops.exp(pairs - apart),
    )


def _pad(values, count, filling=0.0):
    return ops.pad(values, [[0, 0], [0, count]], constant_values=filling)


def as_complex(spectrum, size):
    """All eigenvalues as a complex NumPy array (systems, size).

    The members of a pair are adjacent, and the unpaired eigenvalue is last.
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
    """The parameters for given eigenvalues: the inverse of `spectrum`.

    Args:
        parameterization: as in `spectrum`.
        eigenvalues: array (systems, size), each system's eigenvalues in any
            order, closed under conjugation.

    Returns:
        A dict of float64 NumPy arrays.

    Raises:
        ValueError: if the eigenvalues are not finite, not closed under
            conjugation, or cannot be expressed in the parameterisation.
    """
    eigenvalues = np.atleast_2d(np.asarray(eigenvalues, "complex128"))
    if not np.isfinite(eigenvalues).all():
        raise ValueError(
            "`initial_eigenvalues` should be finite. Received: "
            f"initial_eigenvalues={eigenvalues}"
        )
    # An imaginary part of the size of rounding does not make a pair.
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
            f"'{parameterization}' has conjugate pairs only and cannot hold "
            f"two distinct real eigenvalues: use one of {HINGES}. Received: "
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
            "Eigenvalues of 'unit' should have magnitude 1, and the unpaired "
            f"one should be 1. Received: {eigenvalues}"
        )


def _require_logarithms(first, second, leftover, real):
    mixed = real & (np.real(first) * np.real(second) <= 0)
    if mixed.any() or np.any(np.real(leftover) <= 0):
        raise ValueError(
            "In log-polar form, the two eigenvalues of a real pair should have "
            "the same sign, the unpaired one should be positive, and none may "
            "be zero: use 'hinge'. Received: "
            f"{first[mixed]}, {second[mixed]} and {leftover}"
        )


def in_pairs(eigenvalues):
    """Split one system's eigenvalues into `(first, second, leftover)`.

    Conjugate pairs come before real pairs. In a conjugate pair the eigenvalue
    with positive imaginary part is first; a real pair consists of neighbours
    by size. `leftover` holds the unpaired real eigenvalue, if there is one.

    Args:
        eigenvalues: complex array (size,), closed under conjugation.

    Raises:
        ValueError: as `pair_order`.
    """
    eigenvalues = np.asarray(eigenvalues, "complex128")
    first, second, leftover = pair_order(eigenvalues)
    return eigenvalues[first], eigenvalues[second], eigenvalues[leftover]


def pair_order(eigenvalues):
    """The indices of the three arrays that `in_pairs` returns.

    Raises:
        ValueError: if the eigenvalues are not closed under conjugation.
    """
    eigenvalues = np.asarray(eigenvalues, "complex128")
    real = np.flatnonzero(eigenvalues.imag == 0)
    upper = np.flatnonzero(eigenvalues.imag > 0)
    lower = np.flatnonzero(eigenvalues.imag < 0)
    # Rounded, so that the order does not depend on the last digits.
    keys = np.round([np.abs(eigenvalues.imag), eigenvalues.real], 9)
    upper = upper[np.lexsort(keys[:, upper])]
    lower = _nearest(eigenvalues[upper].conj(), eigenvalues, lower)
    if len(upper) != len(lower) or not np.allclose(
        eigenvalues[upper], eigenvalues[lower].conj(), atol=0
    ):
        raise ValueError(
            "Eigenvalues of a real system should come in conjugate pairs. "
            f"Received: {eigenvalues}"
        )
    real = real[np.argsort(eigenvalues[real].real)]
    # The largest one stays unpaired: it is positive if signs are mixed.
    leftover = real[len(real) - len(real) % 2 :]
    real = real[: len(real) - len(real) % 2]
    return (
        np.concatenate([upper, real[1::2]]),
        np.concatenate([lower, real[::2]]),
        leftover,
    )


def _nearest(wanted, values, places):
    """The places of the values nearest to those wanted, each taken once."""
    places, taken = list(places), []
    for value in wanted[: len(places)]:
        distances = np.abs(values[places] - value)
        taken.append(places.pop(int(np.argmin(distances))))
    return np.array(taken + places, int)


# Initial values.


def initial_eigenvalues(kind, parameterization, systems, size, seed=None):
    """Eigenvalues at the start of training.

    Args:
        kind: `"polynomial"`, the roots of monic polynomials with coefficients
            from N(0, 1 / size), which lie near the unit circle (roots outside
            it are reflected to 1 / conj(z), so that no state grows with
            time); `"uniform"`, uniform angles on the unit circle;
            `"low_discrepancy"`, angles from the van der Corput sequence, which
            are well separated for large sizes too; or `"chebyshev"`, the
            Chebyshev nodes of [-1, 1] for "hinge", otherwise the points of
            the unit circle above and below them, which are evenly spaced.
        parameterization: the parameterisation that must be able to hold the
            eigenvalues; see `spectrum`.
        systems: integer, the number of systems.
        size: integer, the number of states of each.
        seed: integer. Defaults to `None`: drawn from Python's generator, as
            Keras' own initializers do.

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
    """Raise unless `kind` exists and suits the parameterisation."""
    if kind not in INITIAL:
        raise ValueError(
            f"`initial_eigenvalues` should be one of {INITIAL} or an array. "
            f"Received: initial_eigenvalues={kind}"
        )
    if kind == "polynomial" and parameterization == "unit":
        raise ValueError(
            "Roots of random polynomials do not lie on the unit circle, as "
            "eigenvalues of 'unit' must. Received: "
            "initial_eigenvalues=polynomial, eigenvalues=unit"
        )


def _draw_distinct(draw):
    eigenvalues = draw()
    for _ in range(_DRAWS):
        if separation(eigenvalues) > _LEAST_SEPARATION:
            break
        eigenvalues = draw()
    return eigenvalues


def separation(eigenvalues):
    """The smallest distance between two eigenvalues.

    If it is zero, the companion form's eigenvectors do not form a basis.

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
    # NumPy computes the eigenvalues of the companion matrix, which LAPACK
    # balances: backward stable even for hundreds of roots.
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
    # Replace two real roots by a conjugate pair with the same mean, offset by
    # half their distance along the imaginary axis.
    mean, half = (first + second) / 2, (first - second) / 2
    first = np.where(apart, mean + 1j * half, first)
    second = np.where(apart, mean - 1j * half, second)
    if parameterization != "standard":
        leftover = np.abs(leftover)
    return np.concatenate([first, second, leftover])


def _angles(kind, count, generator):
    """Angles in the open interval from 0 to pi."""
    if kind == "uniform":
        # Equivalent to the paper's (-2 pi, 2 pi): a pair has both signs.
        return np.pi * generator.uniform(size=count)
    if kind == "low_discrepancy":
        return np.pi * np.array([_van_der_corput(i + 1) for i in range(count)])
    return np.pi * (np.arange(count) + 0.5) / count


def _van_der_corput(index):
    """The binary digits of `index`, mirrored at the radix point."""
    value, weight = 0.0, 0.5
    while index:
        value += weight * (index % 2)
        index, weight = index // 2, weight / 2
    return value


def _on_circle(angles, size):
    points = np.exp(1j * angles)
    return np.concatenate([points, points.conj(), np.ones(size % 2)])
