"""The linear system of a layer as real float64 NumPy matrices.

NumPy, because not every backend has float64 tensors. m are the modal
coordinates of `modal_form.py`, z_j the eigenvalues, and s_j = (T m)_j the
coordinates in which a step is s_j <- z_j s_j.
"""

import numpy as np
from keras import ops

from keras_linrec.ops.canonical_form import leja_order

FORMS = ("transpose", "companion")
# Above this condition number, float64 cannot separate the eigenvectors.
_CONDITION_MAX = 1e12


def modal_transition(eigenvalues):
    """The transition matrix of all systems in modal coordinates.

    Args:
        eigenvalues: complex array (systems, size), the members of a pair next
            to each other and the unpaired one last.
    """
    return block_diagonal([_modal_transition(row) for row in eigenvalues])


def _modal_transition(eigenvalues):
    to_eigenvectors = _to_eigenvectors(eigenvalues)
    scaled = eigenvalues[:, None] * to_eigenvectors
    return np.linalg.solve(to_eigenvectors, scaled).real


def block_diagonal(blocks):
    """The block-diagonal matrix of the blocks."""
    rows = np.cumsum([0, *(len(block) for block in blocks)])
    columns = np.cumsum([0, *(block.shape[1] for block in blocks)])
    matrix = np.zeros((rows[-1], columns[-1]))
    for index, block in enumerate(blocks):
        matrix[
            rows[index] : rows[index + 1], columns[index] : columns[index + 1]
        ] = block
    return matrix


def canonical_system(form, eigenvalues, inputs, outputs):
    """`(A, B, C)` of one system in a companion form.

    With a single input, B and C follow from the response sum_j r_j z_j^t,
    which tolerates equal eigenvalues. With several inputs, they are computed
    in a basis of eigenvectors, which must be distinct.

    Args:
        form: `"transpose"` or `"companion"`.
        eigenvalues: complex array (size,), as in `modal_transition`.
        inputs, outputs: arrays (size, features) and (units, size), B and C in
            modal coordinates.

    Raises:
        ValueError: as `companion_basis`, for several inputs.
    """
    size = len(eigenvalues)
    transition = companion_transition(form, eigenvalues)
    if inputs.shape[1] > 1:
        basis = companion_basis(form, eigenvalues)
        return transition, basis @ inputs, outputs @ np.linalg.inv(basis)
    to_eigenvectors = _to_eigenvectors(eigenvalues)
    residues = (outputs @ np.linalg.inv(to_eigenvectors)) * (
        to_eigenvectors @ inputs[:, 0]
    )
    if form == "companion":
        response = residues @ np.vander(eigenvalues, increasing=True)
        return transition, np.eye(size)[:, :1], response.real
    # C holds the transfer function's numerator, lowest power first.
    others = [_polynomial(np.delete(eigenvalues, j)) for j in range(size)]
    numerator = (residues @ np.array(others))[:, ::-1]
    return transition, np.eye(size)[:, -1:], numerator.real


def companion_transition(form, eigenvalues):
    """A of one system in a companion form."""
    transition = np.eye(len(eigenvalues), k=-1)
    transition[:, -1] -= _polynomial(eigenvalues).real[:0:-1]
    return transition.T if form == "transpose" else transition


def companion_basis(form, eigenvalues):
    """The matrix S that maps modal coordinates m to canonical states S m.

    Raises:
        ValueError: if eigenvalues are so close that S is singular.
    """
    powers = np.vander(eigenvalues, increasing=True)
    to_eigenvectors = _to_eigenvectors(eigenvalues)
    if np.linalg.cond(powers) > _CONDITION_MAX:
        raise ValueError(
            "Eigenvalues are too close to one another for a canonical form. "
            f"Received: eigenvalues {np.sort(eigenvalues)}"
        )
    if form == "companion":
        return np.linalg.solve(powers, to_eigenvectors).real
    apart = eigenvalues[:, None] - eigenvalues[None] + np.eye(len(eigenvalues))
    # Lemma 3 without its powers of z_j, which only scale the columns.
    return ((powers.T / apart.prod(axis=1)) @ to_eigenvectors).real


def _polynomial(roots):
    """Coefficients from roots, in an order that keeps them accurate."""
    if len(roots) == 0:
        return np.ones(1)
    order = leja_order((roots.real, roots.imag))
    return np.poly(roots[ops.convert_to_numpy(order)])


def _to_eigenvectors(eigenvalues):
    """T: u + iv, u - iv for a conjugate pair; u + v, u - v for a real one."""
    size = len(eigenvalues)
    matrix = np.eye(size, dtype="complex128")
    for first in range(0, size - 1, 2):
        turn = 1 if eigenvalues[first].imag == 0 else 1j
        matrix[first : first + 2, first : first + 2] = [[1, turn], [1, -turn]]
    return matrix
