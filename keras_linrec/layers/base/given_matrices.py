"""What layers need that are made from given matrices: checks, eigenvalues."""

import warnings

import numpy as np

from keras_linrec.ops.algebra.eigenvalues import pair_order

# The condition number of a basis beyond which float32 keeps too few digits.
CONDITION_MAX = 2e3
# The one beyond which it keeps none.
_CONDITION_IMPOSSIBLE = 1e5


def require_unset(arguments, source, names):
    """Raise if arguments are given that follow from what a layer is made of.

    Args:
        arguments: dictionary, those that are given.
        source: string, what decides about them.
        names: tuple of strings, those that it decides about.
    """
    given = [name for name in names if name in arguments]
    if given:
        raise ValueError(
            f"Of a layer that is made from them, {source} decide about "
            f"{', '.join(names)}. Received: {', '.join(given)}"
        )


def checked_matrices(given, **axes):
    """The arrays in float64, in the order of `given`.

    Args:
        given: dictionary of arrays, `None` where one may be left out.
        **axes: the names of the axes of each, which have one size each. The
            first array decides about the sizes of its axes, the next about
            those that it does not have.

    Raises:
        ValueError: if a shape is wrong or a number not real and finite.
    """
    arrays = {
        name: None if value is None else np.asarray(value)
        for name, value in given.items()
    }
    sizes = {}
    for name, names in axes.items():
        array = arrays[name]
        if array is None:
            continue
        if array.ndim != len(names) or not array.size:
            kind = "matrix" if len(names) == 2 else "vector"
            raise ValueError(
                f"`{name}` should be a {kind} of the axes {names}. "
                f"Received: {name}.shape={array.shape}"
            )
        expected = tuple(
            sizes.setdefault(axis, size)
            for axis, size in zip(names, array.shape)
        )
        if array.shape != expected:
            raise ValueError(
                f"`{name}` should have the shape {expected} beside the other "
                f"arrays. Received: {name}.shape={array.shape}"
            )
        if not np.isrealobj(array) or not np.isfinite(array).all():
            raise ValueError(
                f"`{name}` should be of finite real numbers. "
                f"Received: {name}={array}"
            )
    return [
        None if array is None else array.astype("float64")
        for array in arrays.values()
    ]


def diagonalise(transition):
    """Eigenvalues (size,), and S with A = S R S^-1 for their modal step R.

    R is as `ops/algebra/modal_form.py` says.
    """
    eigenvalues, one, other, leftover = eigenvectors(transition)
    split = np.isreal(eigenvalues[: 2 * one.shape[1] : 2])
    # The states are Re(vector (u + iv)), or those of u + v and u - v.
    u = np.where(split, one + other, one).real
    v = np.where(split, one - other, 1j * one).real
    basis = np.stack([u, v], axis=-1).reshape(len(transition), -1)
    basis = np.concatenate([basis, leftover.real], axis=1)
    require_basis(basis)
    return eigenvalues, basis


def eigenvectors(transition):
    """The eigenvalues by pairs, the vectors of both of a pair, and the rest."""
    eigenvalues, vectors = np.linalg.eig(transition)
    first, second, leftover = pair_order(eigenvalues)
    pairs = np.stack([first, second], axis=-1).reshape(-1)
    order = np.concatenate([pairs, leftover])
    return (
        eigenvalues[order],
        vectors[:, first],
        vectors[:, second],
        vectors[:, leftover],
    )


def require_basis(basis):
    """Raise if the columns are no basis in float32; warn if hardly one."""
    condition = np.linalg.cond(basis)
    if not condition < _CONDITION_IMPOSSIBLE:
        raise ValueError(
            "`transition` should be diagonalisable. Received: a matrix whose "
            f"eigenvectors have the condition number {condition:.0e}"
        )
    if condition > CONDITION_MAX:
        warn_of_condition("A", condition)


def warn_of_condition(what, condition):
    warnings.warn(
        f"{what} loses digits in float32: its eigenvectors have the condition "
        f"number {condition:.0e}. Use fewer states for a companion form, or "
        "eigenvalues that are further apart; basis='learned' starts without "
        "this loss.",
        stacklevel=3,
    )
