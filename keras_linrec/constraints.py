"""Constraints that keep units stable.

The transition A = P (D + T^-1) Q of `LSSL` is stable under three conditions,
which separate constraints on its weights can enforce:

1. P Q < 0, entry by entry. Then W = (-Q / P)^(1/2) and R = (-P Q)^(1/2) give
   W A W^-1 = -R (D + T^-1) R.
2. D >= c.
3. T + T^T + 2 c T T^T is positive semidefinite. So is then, by a product with
   T^-1 from the left and T^-T from the right, T^-1 + T^-T + 2 c I.

Then W A W^-1 + (W A W^-1)^T = -R (2 D + T^-1 + T^-T) R is negative
semidefinite: without input, the norm of W x never grows, and no eigenvalue of A
has a positive real part. The same holds for the discrete system at any
timescale (alpha >= 1/2). On the boundary T may be singular; A does not exist
then, but the norm does not grow under its limit Abar either.

With c = -1/2, condition 3 is |I - T| <= 1 in the spectral norm, which LegS and
the Laguerre measures fulfil (their I - T is a shift). With c = 0, it is that
the symmetric part of T is positive semidefinite, as it is for windows.
"""

import math

import keras
from keras import ops

from keras_linrec.ops.householder import unit_columns
from keras_linrec.validation import require_between
from keras_linrec.validation import require_count


@keras.saving.register_keras_serializable("keras_linrec")
class Between(keras.constraints.Constraint):
    """Clip entries to an interval.

    Args:
        minimum: float. Defaults to `None`: no lower bound.
        maximum: float. Defaults to `None`: no upper bound.

    Raises:
        ValueError: if a bound is no number, or they exclude each other.

    Example:

    >>> import numpy as np
    >>> from keras_linrec.constraints import Between
    >>> np.asarray(Between(minimum=0.5)(np.array([0.2, 0.7]))).tolist()
    [0.5, 0.7]
    """

    def __init__(self, minimum=None, maximum=None):
        for name, value in (("minimum", minimum), ("maximum", maximum)):
            if value is not None:
                require_between(name, value, -math.inf, math.inf)
        if None not in (minimum, maximum) and minimum > maximum:
            raise ValueError(
                "`minimum` should be `maximum` or less. Received: "
                f"minimum={minimum}, maximum={maximum}"
            )
        self.minimum = minimum
        self.maximum = maximum

    def __call__(self, weight):
        weight = ops.convert_to_tensor(weight)
        # As tensors of its dtype: PyTorch makes float32 of a Python number.
        if self.minimum is not None:
            least = ops.convert_to_tensor(self.minimum, weight.dtype)
            weight = ops.where(weight < least, least, weight)
        if self.maximum is not None:
            most = ops.convert_to_tensor(self.maximum, weight.dtype)
            weight = ops.where(weight > most, most, weight)
        return weight

    def get_config(self):
        return {"minimum": self.minimum, "maximum": self.maximum}


@keras.saving.register_keras_serializable("keras_linrec")
class Sign(keras.constraints.Constraint):
    """Replace positive entries by 1 and all others by -1.

    The sign u_1 of Mhammedi et al. 2017, section 5, stays in {-1, 1} this way.

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
    """Scale columns to length 1, and set entries above the diagonal to zero.

    The columns are vectors of Householder reflections (Mhammedi et al. 2017),
    whose length has no effect on the reflections. Columns of zeros stay
    unchanged.

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
        require_count("matrices", matrices)
        self.matrices = int(matrices)

    def __call__(self, weight):
        parts = ops.split(ops.convert_to_tensor(weight), self.matrices, axis=0)
        return ops.concatenate(unit_columns(parts), axis=0)

    def get_config(self):
        return {"matrices": self.matrices}


@keras.saving.register_keras_serializable("keras_linrec")
class ContractiveBands(keras.constraints.Constraint):
    """Enforce |I - T| <= 1 for a tridiagonal T, given as its bands (3, N).

    Each row of I - T whose absolute sum exceeds 1 is divided by that sum, then
    each column likewise: the largest row sum times the largest column sum
    bounds the square of the spectral norm. Other rows and columns stay.

    Example: T of LegS lies on the boundary and is left unchanged.

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
        rows = _at_least_one(_row_sums(above, diagonal, below))
        above = above / rows[:-1]
        diagonal = diagonal / rows
        below = below / rows[1:]
        # Column sums are the row sums of the transpose.
        columns = _at_least_one(_row_sums(below, diagonal, above))
        above = above / columns[1:]
        diagonal = diagonal / columns
        below = below / columns[:-1]
        above, below = (ops.pad(-band, [[0, 1]]) for band in (above, below))
        return ops.stack([above, 1.0 - diagonal, below])


@keras.saving.register_keras_serializable("keras_linrec")
class AccretiveBands(keras.constraints.Constraint):
    """Make T + T^T positive semidefinite; T is tridiagonal, as bands (3, N).

    Each diagonal entry of T + T^T is raised to at least the absolute sum of
    the entries beside it (Gershgorin's theorem).

    Example: T of LegT fulfils this and is left unchanged.

    >>> import numpy as np
    >>> from keras_linrec.constraints import AccretiveBands
    >>> from keras_linrec.ops.hippo import hippo
    >>> bands = hippo("legt", 5).t
    >>> bool(np.allclose(AccretiveBands()(bands), bands))
    True
    """

    def __call__(self, weight):
        above, diagonal, below = ops.unstack(ops.convert_to_tensor(weight))
        off_diagonal = 0.5 * (above[:-1] + below[:-1])
        least = _row_sums(off_diagonal, ops.zeros_like(diagonal), off_diagonal)
        diagonal = ops.where(diagonal < least, least, diagonal)
        return ops.stack([above, diagonal, below])


def _at_least_one(numbers):
    # Not `ops.maximum`, which is float32 on PyTorch.
    return ops.where(numbers > 1.0, numbers, ops.ones_like(numbers))


def _row_sums(above, diagonal, below):
    """The absolute row sums of a tridiagonal matrix, from its bands."""
    return (
        ops.abs(diagonal)
        + ops.pad(ops.abs(above), [[0, 1]])
        + ops.pad(ops.abs(below), [[1, 0]])
    )
