"""HiPPO systems that remember a window of length 1, under Jacobi measures.

The matrices of LSSL's theorem 8 are derived anew here. Corollary D.6 replaces u
at the end of the window by sum_k x_k p_k(-1). With the full tilting that the
derivation uses, however, u is approximated by omega(z) sum_k x_k p_k(z). The
two agree for the Legendre measure only, and omega is 0 or infinite at the end
of the window for most other measures. None of the paper's matrices A that were
tried is a memory: at N = 16, A for Chebyshev polynomials of the first kind has
an eigenvalue of +42, that for the second kind one of +4.3, and their fixed
points for a constant input are wrong by 83 and 86 percent
(tests/one_backend/torch/test_hippo_windows.py).

Instead, follow the window itself. With z = 1 now and z = -1 at the end, its
content w(z, t) obeys d_t w = 2 d_z w and w(1, t) = u(t). For a polynomial w =
sum_n x_n p_n of degree N - 1 this becomes

    d_t w = 2 d_z w + 2 phi(z) (u(t) - w(1, t)),

which is exact for inputs that are polynomials of degree N - 1, whatever the
polynomial phi. The HiPPO memory of the Legendre measure has phi = K(z, 1), the
reproducing kernel (Christoffel and Darboux), which is also the derivative of a
polynomial Phi that is proportional to the Jacobi polynomial P_N^(0,-1) and 1 at
z = 1. For other exponents, the kernel is proportional to the derivative of
P_N^(alpha,beta-1), and the characteristic polynomial is the sum over k of the
k-th derivative of that polynomial at z = 1, times s^(N-k). (Csordas,
Charalambides and Waleffe, "A new property of a class of Jacobi polynomials",
2005, prove such sums stable.) Up to N = 64 and from N = 2 on, its zeros have
negative real parts for alpha < 1, and no longer above.

So phi is the kernel of the exponents min(alpha, 0) and max(beta, 0). It is
stable for every measure, N = 1 included, and approximates as well as the
measure's own kernel where that one is stable: for a sine of up to 16 radians in
a window, at N = 16 and for exponents from -0.8 to 2, the error is 1.04 to 1.9
times the least possible one; LegT's is 1.5 times.
"""

import math

import numpy as np

from keras_linrec.ops.structured.orthogonal_polynomials import jacobi
from keras_linrec.ops.structured.orthogonal_polynomials import (
    jacobi_derivatives,
)
from keras_linrec.ops.structured.orthogonal_polynomials import jacobi_nodes


def window_matrices(size, alpha, beta):
    """A, (size, size), and B, (size,), for (1 - z)^alpha (1 + z)^beta."""
    # Gauss' quadrature with N points is exact for products of polynomials of
    # degree N - 1, and these weights keep their relative precision even where
    # they are tiny.
    nodes = jacobi_nodes(size, alpha, beta)
    basis = jacobi(nodes, size, alpha, beta)
    weighted = basis / (basis**2).sum(0)
    derivatives = jacobi_derivatives(nodes, size, alpha, beta)
    # p_n' has no components p_k with k >= n but those of rounding.
    derivation = np.tril(derivatives @ weighted.T, -1)

    boundary = weighted @ _boundary_polynomial(nodes, size, alpha, beta)
    now = jacobi(np.ones(1), size, alpha, beta)[:, 0]
    matrix = 2 * (derivation.T - boundary[:, None] * now)
    return matrix, 2 * boundary


def _boundary_polynomial(z, size, alpha, beta):
    """phi(z): the reproducing kernel K(z, 1), scaled."""
    alpha, beta = min(alpha, 0.0), max(beta, 0.0)
    now = jacobi(np.ones(1), size, alpha, beta)[:, 0]
    at_one = size * (size + alpha + beta) / (2 * (alpha + 1))
    return at_one / (now @ now) * (now @ jacobi(z, size, alpha, beta))


def structured_window(size, beta):
    """P, D, Q, T and B for (1 + z)^beta, with A = P (D + T^-1) Q.

    T^-1 has ones on and below the diagonal; above it, its entries are
    (-1)^(n - k) g_n / g_k with g_n = Gamma(n + beta + 1) / n!.
    """
    n = np.arange(size, dtype="float64")
    root = np.sqrt(2 * n + beta + 1)
    above = (n + 1) / (2 * n + beta + 2)
    below = 1 - above
    above[-1] = below[-1] = 0.0
    diagonal = 1 - above
    diagonal[1:] -= above[:-1]
    bands = np.stack([above, diagonal, -below])
    vector = root * math.sqrt(beta + 1)
    return -root, np.zeros(size), root.copy(), bands, vector
