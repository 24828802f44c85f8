"""Orthonormal Jacobi and Laguerre polynomials, in float64 NumPy."""

import math

import numpy as np


def jacobi(z, size, alpha, beta):
    """p_n(z) for n < size, orthonormal for (1 - z)^alpha (1 + z)^beta.

    The measure is scaled to an integral of 1.

    Args:
        z: array (points,) in [-1, 1].
        size: integer, the number of polynomials.
        alpha, beta: floats above -1.

    Returns:
        An array (size, points).
    """
    centre, coupling = _jacobi_coefficients(size, alpha, beta)
    return _three_terms(z, np.ones_like(z), centre, coupling)


def jacobi_nodes(size, alpha, beta):
    """The zeros of p_size, which are the nodes of Gauss' quadrature."""
    centre, coupling = _jacobi_coefficients(size, alpha, beta)
    return np.linalg.eigvalsh(np.diag(centre) + np.diag(coupling[1:], -1))


def jacobi_derivatives(z, size, alpha, beta):
    """p_n'(z), by equation 33 of the LSSL paper; as `jacobi`."""
    n = np.arange(size)[:, None]
    total = alpha + beta + 2
    mean = 4 * (alpha + 1) * (beta + 1) / (total * (total + 1))
    lower = jacobi(z, size, alpha + 1, beta + 1)
    # The last row, which `roll` moves to the front, is multiplied by n = 0.
    return np.sqrt(n * (n + alpha + beta + 1) / mean) * np.roll(lower, 1, 0)


def laguerre(s, size, order, weight):
    """p_n(s) weight(s) for n < size, orthonormal for s^order exp(-s).

    Args:
        s: array (points,), 0 or more.
        size: integer, the number of polynomials.
        order: float above -1.
        weight: array (points,), multiplied with every polynomial.

    Returns:
        An array (size, points).
    """
    n = np.arange(size)
    centre = 2 * n + order + 1
    # Negative, so that p_n(0) > 0 as in the usual definition.
    coupling = -np.sqrt(n * (n + order))
    norm = math.exp(-0.5 * math.lgamma(order + 1))
    return _three_terms(s, norm * weight, centre, coupling)


def _jacobi_coefficients(size, alpha, beta):
    """a_n, b_n of z p_n = b_(n+1) p_(n+1) + a_n p_n + b_n p_(n-1)."""
    n = np.arange(2.0, size)
    total = 2 * n + alpha + beta
    centre = (beta**2 - alpha**2) / (total * (total + 2))
    coupling = (4 * n * (n + alpha) * (n + beta) * (n + alpha + beta)) / (
        total**2 * (total + 1) * (total - 1)
    )
    # For these three coefficients the general form is 0 / 0 where
    # alpha + beta is 0 or -1.
    total = alpha + beta + 2
    first = (beta - alpha) / total
    second = (beta**2 - alpha**2) / (total * (total + 2))
    step = 4 * (alpha + 1) * (beta + 1) / (total**2 * (total + 1))
    centre = np.concatenate([[first, second], centre])[:size]
    coupling = np.sqrt(np.concatenate([[0.0, step], coupling])[:size])
    return centre, coupling


def _three_terms(z, start, centre, coupling):
    """Polynomials by their three-term recurrence, from p_0 = start."""
    rows = [np.zeros_like(z), start]
    for n in range(len(centre) - 1):
        row = (z - centre[n]) * rows[-1] - coupling[n] * rows[-2]
        rows.append(row / coupling[n + 1])
    return np.stack(rows[1:])
