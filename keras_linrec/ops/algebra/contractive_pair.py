"""Matrices with which every step of a LipschitzRNN contracts."""

from keras import ops

from keras_linrec.ops.precision import matmul
from keras_linrec.ops.symmetric_skew import symmetric_skew

# r of `contractive_pair`, by solver: a step contracts if A leaves room for W r
# times.
ROOM = {"euler": 1.0, "rk2": 3.0}

# Larger entries of M are cut off: their squares have to be finite in float32.
_LARGEST = 1e6
# Keeps nu positive where W is zero.
_LEAST_NU = 1e-3


def contractive_pair(
    linear, recurrent, beta, gamma, step_size, solver="euler", alpha=1.0
):
    """alpha A and W with which h' = alpha A h + sigma(W h + v) is stable.

    For every sigma with slopes in [0, 1], all inputs v and all M_A and M_W, a
    step of length dt brings any two states closer together. With S of
    `symmetric_skew`, r = 1 for Euler's method and 3 for the midpoint method,
    and N = diag(nu), where nu_i is the norm of row i of S(M_W) for Euler's
    method, and the root mean square of these norms for the midpoint method,

        X   = alpha (beta_A (M_A - M_A^T) - (1 - beta_A) (M_A + M_A^T)^2)
              - r / 4 S(M_W)^T (N^-1 + r dt / 2 I) S(M_W)
        Z   = s dt X,  K = I + Z / 2 + Z^2 / 6,  G = I + Z K
        W   = rho sqrt(s) S(M_W) K
        alpha A = (rho (I + r dt / 2 N)^-1/2 G - I) / dt - W / 2

    and rho = 1 / (1 + alpha gamma_A dt). s = (1 + sum_i sigma_i^8)^-1/8, where
    sigma_i are the singular values of dt X, keeps |Z| < 1. It is close to 1
    unless X is too fast for steps of dt. Z is dt X, and G its exponential to
    the third order.

    Proof. X has a negative semidefinite symmetric part, and so has Z; let R be
    the square root of the negative of it. As <a, Z b> + <Z a, b> = -2 <R a,
    R b> and |Z| <= 1, expanding |G v|^2 gives

        |G v|^2 <= |v|^2 - 2 |R K v|^2 - 1/6 |R (Z + Z^2) v|^2.

    Let B = I + dt (alpha A + W / 2), H = dt / 2 W and c_i = r dt nu_i / (2 +
    r dt nu_i). The last term of X makes 2 |R K v|^2 at least the sum of
    (r H v)_i^2 / (c_i rho^2), so that

        sum_i (B v)_i^2 / (1 - c_i) + (r H v)_i^2 / c_i <= rho^2 |v|^2.

    The difference of two values of sigma is that of its arguments times
    (I + E) / 2, E diagonal with entries in [-1, 1]. Euler's method hence maps
    the difference d of two states to T d = (B + E H) d. By Cauchy and Schwarz
    in each coordinate, |T d| <= rho |d|. The midpoint method maps d to
    (I + T' T + T' - T) d / 2, with another E in T'. As c_i = c for all i,
    |B d| + 3 |H d| <= rho |d|, so that |T d| + |(T' - T) d| <= rho |d|, and a
    step multiplies |d| by at most (1 + rho) / 2. Shorter steps contract too,
    their T being between I and this one. The differential equation contracts
    at the rate (1 - rho) / dt, because (|T| - 1) / dt bounds the logarithmic
    norm of its Jacobian.

    Args:
        linear, recurrent: float tensors (n, n), M_A and M_W.
        beta, gamma: pairs of floats, for A and for W.
        step_size: positive float or scalar tensor, dt.
        solver: `"euler"` or `"rk2"`.
        alpha: positive float.

    Returns:
        A tuple of two tensors (n, n): alpha A and W.

    Example:

    >>> import numpy as np
    >>> from keras_linrec.ops.algebra.contractive_pair import contractive_pair
    >>> m = 100 * np.random.rand(2, 3, 3).astype("float32")
    >>> a, w = contractive_pair(*m, (0.75, 0.75), (0.001, 0.001), 0.1)
    >>> a, w = (np.array(matrix, "float64") for matrix in (a, w))
    >>> bool(np.linalg.norm(np.eye(3) + 0.1 * a, 2) < 1)
    True
    """
    linear, recurrent = (
        ops.clip(ops.convert_to_tensor(matrix), -_LARGEST, _LARGEST)
        for matrix in (linear, recurrent)
    )
    identity = ops.eye(linear.shape[0], dtype=linear.dtype)
    room = ROOM[solver]
    recurrent = symmetric_skew(recurrent, beta[1], gamma[1])
    nu = ops.sum(ops.square(recurrent), axis=1, keepdims=True)
    if solver != "euler":
        # Not `ops.mean`, which is float32 on PyTorch and JAX.
        nu = ops.sum(nu, axis=0, keepdims=True) / linear.shape[0]
    nu = ops.sqrt(nu + _LEAST_NU**2)
    symmetric = linear + ops.transpose(linear)
    skew = linear - ops.transpose(linear)
    square = matmul(symmetric, symmetric)
    own = beta[0] * skew - (1.0 - beta[0]) * square
    share = room / 4.0 * (1.0 / nu + room * step_size / 2.0)
    rate = alpha * own - matmul(ops.transpose(recurrent), share * recurrent)
    shrinkage = _into_unit_ball(step_size * rate)
    rate = shrinkage * rate
    exponent = step_size * rate
    mean = identity + 0.5 * exponent + matmul(exponent, exponent) / 6.0
    decay = 1.0 / (1.0 + alpha * gamma[0] * step_size)
    recurrent = decay * ops.sqrt(shrinkage) * matmul(recurrent, mean)
    # (decay / root - 1) / dt, without the difference of numbers near 1.
    loss = room * nu / 2.0
    root = ops.sqrt(1.0 + step_size * loss)
    falling = decay * (alpha * gamma[0] + loss / (root * (1.0 + root)))
    change = decay / root * matmul(rate, mean) - falling * identity
    return change - 0.5 * recurrent, recurrent


def _into_unit_ball(matrix):
    """s of `contractive_pair`: (1 + the sum of sigma_i^8)^-1/8."""
    # The result does not depend on `size`, which keeps the powers finite.
    largest = ops.stop_gradient(ops.amax(ops.abs(matrix)))
    size = ops.where(largest > 1.0, largest, ops.ones_like(largest))
    matrix = matrix / size
    gram = matmul(ops.transpose(matrix), matrix)
    total = ops.sum(ops.square(matmul(gram, gram)))
    return (size**-8.0 + total) ** -0.125 / size
