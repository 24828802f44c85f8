"""What keeps weights where a unit is stable.

A = P (D + T^-1) Q of `LSSL` is stable where three things hold, each of which
is about one weight, so that each can be a constraint of its own:

1. P Q < 0, entry by entry. Then W = (-Q / P)^(1/2) and R = (-P Q)^(1/2) give
   W A W^-1 = -R (D + T^-1) R.
2. D >= c.
3. T + T^T + 2 c T T^T is positive semidefinite, and so, from both sides by
   T^-1, is T^-1 + T^-T + 2 c I.

For then W A W^-1 + (W A W^-1)^T = -R (2 D + T^-1 + T^-T) R is negative
semidefinite: left to itself the system never grows in the norm of W x, and no
eigenvalue of A has a positive real part. The bilinear transform keeps that
norm from growing too, at any timescale (alpha >= 1/2). At the edge T may be
singular; then there is no A, but Abar, its limit, does not grow either.

With c = -1/2 the third says |I - T| <= 1 in the spectral norm, where LegS and
the Laguerre measures are (I - T is a shift); with c = 0 it says that T's
symmetric part is positive semidefinite, as that of windows is.
"""

import keras
from keras import ops

from keras_linrec.ops.householder import unit_columns


@keras.saving.register_keras_serializable("keras_linrec")
class Between(keras.constraints.Constraint):
    """Entries are moved into an interval.

    Args:
        minimum: float or `None`, the default, for none.
        maximum: float or `None`, the default, for none.

    Example:

    >>> import numpy as np
    >>> from keras_linrec.constraints import Between
    >>> np.asarray(Between(minimum=0.5)(np.array([0.2, 0.7]))).tolist()
    [0.5, 0.7]
    """

    def __init__(self, minimum=None, maximum=None):
        self.minimum = minimum
        self.maximum = maximum

    def __call__(self, weight):
        weight = ops.convert_to_tensor(weight)
        if self.minimum is not None:
            weight = ops.where(weight < self.minimum, self.minimum, weight)
        if self.maximum is not None:
            weight = ops.where(weight > self.maximum, self.maximum, weight)
        return weight

    def get_config(self):
        return {"minimum": self.minimum, "maximum": self.maximum}


@keras.saving.register_keras_serializable("keras_linrec")
class Sign(keras.constraints.Constraint):
    """1 where a weight is positive, else -1 - Mhammedi et al. 2017, section 5.

    Example:

    >>> import numpy as np
    >>> from keras_linrec.constraints import Sign
    >>> [float(value) for value in Sign()(np.array([0.3, -2.0, 0.0]))]
    [1.0, -1.0, -1.0]
    """

    def __call__(self, weight):
        weight = ops.convert_to_tensor(weight)
        one = ops.ones_like(weight)
        return ops.where(weight > 0, one, -one)


@keras.saving.register_keras_serializable("keras_linrec")
class UnitReflectors(keras.constraints.Constraint):
    """Columns of length 1, with zeros above the diagonal.

    The vectors of Householder reflections (Mhammedi et al. 2017), whose length
    has no effect on the reflections. A column of zeros stays as it is.

    Args:
        matrices: integer, the number of matrices stacked in the weight: 2 for
            the real and imaginary parts of complex vectors, whose length is
            that of both together. Defaults to 1.

    Example:

    >>> import numpy as np
    >>> from keras_linrec.constraints import UnitReflectors
    >>> weight = np.array([[2.0, 5.0], [0.0, 3.0], [0.0, 4.0]], "float32")
    >>> np.asarray(UnitReflectors()(weight)).round(3).tolist()
    [[1.0, 0.0], [0.0, 0.6], [0.0, 0.8]]
    """

    def __init__(self, matrices=1):
        self.matrices = matrices

    def __call__(self, weight):
        parts = ops.split(ops.convert_to_tensor(weight), self.matrices, axis=0)
        return ops.concatenate(unit_columns(parts), axis=0)

    def get_config(self):
        return {"matrices": self.matrices}


@keras.saving.register_keras_serializable("keras_linrec")
class ContractiveBands(keras.constraints.Constraint):
    """|I - T| <= 1 for a tridiagonal T, given as its bands (3, N).

    Rows of I - T whose absolute sum is above 1 are divided by it, and then
    columns: the product of the largest two such sums bounds the square of the
    spectral norm. Rows and columns below 1 stay as they are.

    Example: the matrix T of LegS is at the edge, and stays.

    >>> import numpy as np
    >>> from keras_linrec.constraints import ContractiveBands
    >>> from keras_linrec.ops.hippo import hippo
    >>> bands = hippo("legs", 5).t
    >>> bool(np.allclose(ContractiveBands()(bands), bands))
    True
    """

    def __call__(self, weight):
        above, diagonal, below = ops.unstack(ops.convert_to_tensor(weight))
        above, diagonal, below = -above[:-1], 1.0 - diagonal, -below[:-1]
        rows = ops.maximum(_row_sums(above, diagonal, below), 1.0)
        above = above / rows[:-1]
        diagonal = diagonal / rows
        below = below / rows[1:]
        # Those of the columns are those of the transpose's rows.
        columns = ops.maximum(_row_sums(below, diagonal, above), 1.0)
        above = above / columns[1:]
        diagonal = diagonal / columns
        below = below / columns[:-1]
        above, below = (ops.pad(-band, [[0, 1]]) for band in (above, below))
        return ops.stack([above, 1.0 - diagonal, below])


@keras.saving.register_keras_serializable("keras_linrec")
class AccretiveBands(keras.constraints.Constraint):
    """T + T^T positive semidefinite for a tridiagonal T, as bands (3, N).

    Entries of the diagonal that are below half the absolute sum of what is
    beside them in T + T^T are raised to it (Gershgorin's theorem).

    Example: the matrix T of LegT is skew but at its ends, and stays.

    >>> import numpy as np
    >>> from keras_linrec.constraints import AccretiveBands
    >>> from keras_linrec.ops.hippo import hippo
    >>> bands = hippo("legt", 5).t
    >>> bool(np.allclose(AccretiveBands()(bands), bands))
    True
    """

    def __call__(self, weight):
        above, diagonal, below = ops.unstack(ops.convert_to_tensor(weight))
        beside = 0.5 * (above[:-1] + below[:-1])
        least = _row_sums(beside, ops.zeros_like(diagonal), beside)
        diagonal = ops.where(diagonal < least, least, diagonal)
        return ops.stack([above, diagonal, below])


def _row_sums(above, diagonal, below):
    """The absolute sums of a tridiagonal matrix' rows, from its bands."""
    return (
        ops.abs(diagonal)
        + ops.pad(ops.abs(above), [[0, 1]])
        + ops.pad(ops.abs(below), [[1, 0]])
    )
