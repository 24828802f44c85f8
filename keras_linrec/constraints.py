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

Keras' optimizers apply a constraint to the stored weight after each update.
Other optimizers, assignments and files do not, so that no layer relies on it:
what a layer computes with is `constraint.within(weight)`, which fulfils the
condition whatever is stored, and is the weight itself where that does. Outside
the permitted set, `within` does not return the nearest point, whose slopes
across the boundary are zero, so that the weight could not leave it again. It
folds the weight inwards, like a mirror at the boundary: the derivative is the
true one and never zero, and a weight that an update carries outside goes on
learning. Where values can be read at no cost, a permitted weight is returned
after a look at them: the operations of the fold would take 4 ms of an eager
call on PyTorch.
(`UnitReflectors` needs no such method: `ops.reflection_product` takes vectors
of any length, and ignores what is above the diagonal.)
"""

import math

import keras
import numpy as np
from keras import ops

from keras_linrec.ops.concrete_values import values_of
from keras_linrec.ops.householder import unit_columns
from keras_linrec.ops.precision import accumulation_dtype
from keras_linrec.validation import require_between
from keras_linrec.validation import require_count

__all__ = [
    "AccretiveBands",
    "Between",
    "ContractiveBands",
    "Sign",
    "UnitReflectors",
]


_ROUNDING = {"float32": 2.0**-20, "float64": 2.0**-49}


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

    def __init__(
        self, minimum: float | None = None, maximum: float | None = None
    ):
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

    def within(self, weight):
        """The entries, those outside the interval reflected at its ends.

        Args:
            weight: float tensor.
        """
        weight = ops.convert_to_tensor(weight)
        if _is_known_to(self._permit, weight):
            return weight
        if self.minimum is not None:
            least = ops.convert_to_tensor(self.minimum, weight.dtype)
            weight = ops.where(weight < least, 2.0 * least - weight, weight)
        if self.maximum is not None:
            most = ops.convert_to_tensor(self.maximum, weight.dtype)
            weight = ops.where(weight > most, 2.0 * most - weight, weight)
        if None in (self.minimum, self.maximum):
            return weight
        # Further outside than the interval is wide.
        return self(weight)

    def _permit(self, values):
        least = -math.inf if self.minimum is None else self.minimum
        most = math.inf if self.maximum is None else self.maximum
        return np.all((values >= least) & (values <= most))

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

    def within(self, weight):
        """The signs, with the derivative 1.

        The true derivative is zero, and would leave a sign as it is for ever.
        This one is that of a matrix product with the sign, so that an
        optimizer moves the weight, in the end across zero.

        Args:
            weight: float tensor.
        """
        weight = ops.convert_to_tensor(weight)
        # Zero in value: the sum is 1 or -1 to the last digit.
        passing = weight - ops.stop_gradient(weight)
        return ops.stop_gradient(self(weight)) + passing


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

    def __init__(self, matrices: int = 1):
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
    >>> from keras_linrec.ops.structured.hippo import hippo
    >>> bands = hippo("legs", 5).t
    >>> bool(np.allclose(ContractiveBands()(bands), bands))
    True
    """

    def __call__(self, weight):
        return self._scaled(weight, _shrinking)

    def within(self, weight):
        """T, where rows and columns of I - T with a larger sum are inverted.

        Divided by its sum twice, a row of the sum r gets the sum 1 / r.

        Args:
            weight: float tensor (3, N).
        """
        weight = ops.convert_to_tensor(weight)
        if _is_known_to(self._permit, weight):
            return weight
        return self._scaled(weight, _inverting)

    def _permit(self, values):
        above, diagonal, below = np.abs(values - [[0], [1], [0]])
        most = 1.0 + _rounding(values)
        return all(
            np.all(left + diagonal + right <= most)
            for left, right in (
                (above, np.roll(below, 1)),
                (np.roll(above, 1), below),
            )
        )

    def _scaled(self, weight, factors_of):
        """T, the rows of I - T, then its columns, times factors of the sums."""
        above, diagonal, below = ops.unstack(ops.convert_to_tensor(weight))
        above, below = above[:-1], below[:-1]
        rest = 1.0 - diagonal
        rows = factors_of(_row_sums(above, rest, below))
        above, scaled, below = above * rows[:-1], rest * rows, below * rows[1:]
        # Column sums are the row sums of the transpose.
        columns = factors_of(_row_sums(below, scaled, above))
        above, below = above * columns[1:], below * columns[:-1]
        # Not 1 - (1 - diagonal), which would round what stays as it is.
        diagonal = diagonal + (1.0 - rows * columns) * rest
        above, below = (ops.pad(band, [[0, 1]]) for band in (above, below))
        return ops.stack([above, diagonal, below])


@keras.saving.register_keras_serializable("keras_linrec")
class AccretiveBands(keras.constraints.Constraint):
    """Make T + T^T positive semidefinite; T is tridiagonal, as bands (3, N).

    Each diagonal entry of T + T^T is raised to at least the absolute sum of
    the entries beside it (Gershgorin's theorem).

    Example: T of LegT fulfils this and is left unchanged.

    >>> import numpy as np
    >>> from keras_linrec.constraints import AccretiveBands
    >>> from keras_linrec.ops.structured.hippo import hippo
    >>> bands = hippo("legt", 5).t
    >>> bool(np.allclose(AccretiveBands()(bands), bands))
    True
    """

    def __call__(self, weight):
        above, diagonal, below, least = self._bands(weight)
        diagonal = ops.where(diagonal < least, least, diagonal)
        return ops.stack([above, diagonal, below])

    def within(self, weight):
        """T, smaller diagonal entries reflected at the least one.

        Args:
            weight: float tensor (3, N).
        """
        weight = ops.convert_to_tensor(weight)
        if _is_known_to(self._permit, weight):
            return weight
        above, diagonal, below, least = self._bands(weight)
        missing = least - diagonal
        is_rounding = missing <= _rounding(least) * (least + 1.0)
        diagonal = ops.where(is_rounding, diagonal, least + missing)
        return ops.stack([above, diagonal, below])

    def _permit(self, values):
        above, diagonal, below = values
        off_diagonal = 0.5 * np.abs(above + below)
        off_diagonal[-1] = 0
        least = off_diagonal + np.roll(off_diagonal, 1)
        return np.all(least - diagonal <= _rounding(values) * (least + 1.0))

    def _bands(self, weight):
        """The three bands, and the least diagonal entries."""
        above, diagonal, below = ops.unstack(ops.convert_to_tensor(weight))
        off_diagonal = 0.5 * (above[:-1] + below[:-1])
        least = _row_sums(off_diagonal, ops.zeros_like(diagonal), off_diagonal)
        return above, diagonal, below, least


def _shrinking(sums):
    """What brings sums above 1 down to 1."""
    return 1.0 / _at_least_one(sums)


def _inverting(sums):
    """What makes 1 / r of a sum r above 1."""
    # A constrained weight lies on the boundary up to rounding, and stays as it
    # is.
    sums = ops.where(sums <= 1.0 + _rounding(sums), 1.0, sums)
    return 1.0 / (sums * sums)


def _is_known_to(permit, weight):
    """Whether the values of a weight can be read, and are permitted."""
    values = values_of(weight)
    return values is not None and permit(values)


def _rounding(tensor):
    """The rounding of a sum of a few numbers near 1: eight last digits."""
    return _ROUNDING[accumulation_dtype(tensor)]


def _at_least_one(numbers):
    # Not `ops.maximum`, which is float32 on PyTorch.
    return ops.where(numbers > 1.0, numbers, ops.ones_like(numbers))


def _row_sums(above, diagonal, below):
    """The absolute row sums of a tridiagonal matrix, from its bands."""
    above, diagonal, below = (
        # Unlike `ops.abs`, whose slope at 0 is 1 under JAX: 0 there, the mean
        # of both sides. The superdiagonal of LegS is 0.
        band * ops.sign(band)
        for band in (above, diagonal, below)
    )
    return diagonal + ops.pad(above, [[0, 1]]) + ops.pad(below, [[1, 0]])
