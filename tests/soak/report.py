"""What a case has shown."""

import math

from soak.tolerances import error_share


class OutOfRange(Exception):
    """The float64 result is too large for the dtypes of the case."""


class Report:
    """The checks of a case, each with its largest error.

    Attributes:
        shares: by check, the largest error as a share of its bound.
        case: the case in words.
    """

    def __init__(self):
        self.shares = {}
        self.case = ""

    def describe(self, case):
        self.case = str(case)

    def compare(self, check, got, expected):
        """Require each result to be within its bound.

        Args:
            check: the name of the check.
            got: list of arrays.
            expected: list of `Bounded`.
        """
        assert len(got) == len(expected), (
            f"{check}: {len(expected)} results expected, {len(got)} received"
        )
        for index, (one, other) in enumerate(zip(got, expected)):
            share = error_share(one, other)
            self.shares[check] = max(self.shares.get(check, 0.0), share)
            assert share <= 1, (
                f"{check}, result {index} of shape {one.shape}: the error is "
                f"{share:.3g} times its bound, {other.bound:.3g}"
            )

    def require(self, check, holds, message):
        """Require a statement about the case."""
        self.shares[check] = max(self.shares.get(check, 0.0), 0.0)
        assert holds, f"{check}: {message}"


def require_in_range(expected, setting):
    """Leave a case whose results overflow, or nearly do."""
    largest = {"float16": 1e4}.get(setting.outputs, 1e12)
    for part in expected:
        size = abs(part.value).max(initial=0.0)
        if not math.isfinite(size) or size > largest:
            raise OutOfRange(f"results of {size:.3g}")
