"""Spectra of a unit's matrices, and the distance to orthogonality."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_linrec import types
from keras_linrec.analysis._matrices import are_finite
from keras_linrec.analysis._matrices import eigenvalues
from keras_linrec.analysis._matrices import has_transition_matrix
from keras_linrec.analysis._matrices import real_matrix
from keras_linrec.analysis._matrices import require_built
from keras_linrec.analysis._matrices import square_matrix
from keras_linrec.validation import checked_seed
from keras_linrec.validation import require_between
from keras_linrec.validation import require_count
from keras_linrec.validation import require_finite
from keras_linrec.validation import require_tensors


def spectrum_bounds(
    matrix: types.Tensor, beta: float, gamma: float
) -> tuple[float, float]:
    """An interval that contains the real parts of the eigenvalues of S(M).

        S(M) = (1 - beta) (M + M^T) + beta (M - M^T) - gamma I

    This is proposition 1 of the paper with a factor of 2 restored: with
    M_sym = (M + M^T) / 2, the symmetric part of S is 2 (1 - beta) M_sym
    - gamma I, so that the interval is

        [2 (1 - beta) lambda_min(M_sym) - gamma,
         2 (1 - beta) lambda_max(M_sym) - gamma].

    The interval as printed, with half the width, excludes eigenvalues of most
    matrices.

    Args:
        matrix: array or tensor (units, units), M, such as `linear_kernel` or
            `recurrent_kernel` of a `LipschitzRNN` without
            `stable_transition`.
        beta: float in [0, 1].
        gamma: float.

    Returns:
        `(low, high)`, floats.

    Raises:
        ValueError: if `matrix` is not square, real and finite, `beta` is not
            in [0, 1], or `gamma` is not finite.

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), section 4 and appendix A.2.

    Example:

    >>> import numpy as np
    >>> from keras_linrec.analysis import spectrum_bounds
    >>> spectrum_bounds(np.diag([-1.0, 2.0]), beta=0.75, gamma=0.5)
    (-1.0, 0.5)
    """
    matrix = real_matrix(matrix)
    if not are_finite([matrix]):
        raise ValueError(
            f"`matrix` should be finite. Received: matrix={matrix}"
        )
    require_between("beta", beta, 0, 1)
    require_finite("gamma", gamma)
    found = eigenvalues((matrix + matrix.T) / 2)
    low, high = (2 * (1 - beta) * found[end] - gamma for end in (0, -1))
    return low, high


def real_parts(matrix: types.Tensor) -> types.Tensor:
    """The real parts of a matrix's eigenvalues, in ascending order.

    Args:
        matrix: array or tensor (units, units).

    Returns:
        float64 array (units,).

    Raises:
        ValueError: if `matrix` is not square.

    Example:

    >>> from keras_linrec.analysis import real_parts
    >>> [float(part) for part in real_parts([[-1.0, 5.0], [-5.0, -1.0]])]
    [-1.0, -1.0]
    """
    return np.sort(np.linalg.eigvals(square_matrix(matrix)).real)


@dataclass(frozen=True)
class EigenvalueBands:
    """The range of the real parts of S(M)'s eigenvalues for several beta.

    Attributes:
        betas: array (count,).
        smallest, largest: arrays (trials, count), the extreme real parts.
        low, high: arrays (trials, count), the results of `spectrum_bounds`.
    """

    betas: np.ndarray
    smallest: np.ndarray
    largest: np.ndarray
    low: np.ndarray
    high: np.ndarray


def eigenvalue_bands(
    size: int,
    betas: types.Numbers | None = None,
    gamma: float = 0.0,
    trials: int = 10,
    seed: types.Seed = None,
    stddev: float | None = None,
) -> EigenvalueBands:
    """The ranges of real parts for random M and several beta (figure 4).

    Each trial draws one M with normal entries, used for all of `betas`.

    Args:
        size: integer, the size of the matrices.
        betas: floats in [0, 1]. Defaults to `None`: 21 from 0.5 to 1.
        gamma: float. Defaults to 0.
        trials: integer, the number of matrices. Defaults to 10.
        seed: integer. Defaults to `None`: random.
        stddev: float, the standard deviation of the entries of M. Defaults to
            `None`: size^-1/2, which makes the bands nearly independent of the
            size.

    Returns:
        `EigenvalueBands`, for `plot_eigenvalue_bands`.

    Raises:
        ValueError: if one of `betas` is not in [0, 1], `size` or `trials` is
            not a positive integer, `gamma` is not finite, or `stddev` is not
            positive.

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), appendix A.2, figure 4.

    Example:

    >>> from keras_linrec.analysis import eigenvalue_bands
    >>> bands = eigenvalue_bands(8, betas=[0.5, 0.75, 1.0], trials=2, seed=0)
    >>> bands.largest.shape
    (2, 3)
    >>> bool((bands.largest <= bands.high + 1e-12).all())
    True
    """
    require_count("size", size)
    require_count("trials", trials)
    require_finite("gamma", gamma)
    if stddev is not None:
        require_between("stddev", stddev, 0, math.inf, "()")
    betas = _checked_betas(
        np.linspace(0.5, 1.0, 21) if betas is None else betas
    )
    generator = np.random.default_rng(checked_seed(seed))
    stddev = size**-0.5 if stddev is None else stddev
    rows = []
    for _ in range(trials):
        matrix = stddev * generator.standard_normal((size, size))
        rows.append([_band(matrix, float(beta), gamma) for beta in betas])
    smallest, largest, low, high = np.moveaxis(np.array(rows), -1, 0)
    return EigenvalueBands(betas, smallest, largest, low, high)


def _checked_betas(betas):
    """A vector of numbers in [0, 1]."""
    require_tensors(betas=betas)
    array = np.asarray(betas, "float64")
    fits = (array >= 0) & (array <= 1)
    if array.ndim != 1 or not array.size or not fits.all():
        raise ValueError(
            "`betas` should be a list of numbers in [0, 1], at least one. "
            f"Received: betas={betas}"
        )
    return array


def _band(matrix, beta, gamma):
    bounds = spectrum_bounds(matrix, beta, gamma)
    parts = real_parts(_float64_symmetric_skew(matrix, beta, gamma))
    return parts[0], parts[-1], *bounds


def _float64_symmetric_skew(matrix, beta, gamma):
    # `ops.symmetric_skew` is float32 on JAX, which is too coarse to compare
    # with the bounds.
    matrix = square_matrix(matrix)
    symmetric, skew = matrix + matrix.T, matrix - matrix.T
    return (1 - beta) * symmetric + beta * skew - gamma * np.eye(len(matrix))


def orthogonality_defect(layer_or_matrix: Any) -> float:
    """max |W^T W - I|, the deviation of a matrix from orthogonality.

    Args:
        layer_or_matrix: a built `OrthogonalRNN` or another layer with the
            method `transition_matrix()`; or W itself, (units, units). For a
            complex W, or a pair of its real and imaginary parts, the
            deviation from a unitary matrix is computed.

    Returns:
        A float, about 1e-6 for an orthogonal matrix in float32.

    Raises:
        ValueError: if the matrix is not square, or the layer is not built or
            has no such method.

    Example:

    >>> import numpy as np
    >>> from keras_linrec.analysis import orthogonality_defect
    >>> orthogonality_defect(np.eye(4))
    0.0
    >>> orthogonality_defect(2 * np.eye(4))
    3.0
    """
    matrix = layer_or_matrix
    if has_transition_matrix(layer_or_matrix):
        require_built(layer_or_matrix, "layer_or_matrix")
        matrix = layer_or_matrix.transition_matrix()
    if isinstance(matrix, tuple):
        real, imag = (square_matrix(part, "layer_or_matrix") for part in matrix)
        matrix = real + 1j * imag
    matrix = square_matrix(matrix, "layer_or_matrix")
    if not matrix.size:
        raise ValueError(
            "`layer_or_matrix` should have entries. "
            f"Received: layer_or_matrix.shape={matrix.shape}"
        )
    product = matrix.conj().T @ matrix
    return float(np.abs(product - np.eye(len(matrix))).max())
