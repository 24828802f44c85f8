"""Moving the rows of a tensor, as a band of a matrix moves a vector."""

from keras import ops


def from_above(rows):
    """Each row moves one down; the first becomes zero."""
    return ops.concatenate([ops.zeros_like(rows[:1]), rows[:-1]], axis=0)


def from_below(rows):
    """Each row moves one up; the last becomes zero."""
    return ops.concatenate([rows[1:], ops.zeros_like(rows[:1])], axis=0)
