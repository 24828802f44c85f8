"""The matrices of units, as arrays in double precision."""

import keras
import numpy as np


def unit_matrices(layer_or_matrices):
    """A, with alpha, and W of a unit as float64 arrays."""
    if isinstance(layer_or_matrices, (tuple, list)):
        if len(layer_or_matrices) != 2:
            raise ValueError(
                "`layer_or_matrices` should be a layer or a pair (A, W). "
                f"Received: {len(layer_or_matrices)} matrices"
            )
        linear, recurrent = map(square_matrix, layer_or_matrices)
    else:
        linear, recurrent = _matrices_of(layer_or_matrices)
    if linear.shape != recurrent.shape:
        raise ValueError(
            "A and W of `layer_or_matrices` should have one shape. Received: "
            f"A.shape={linear.shape}, W.shape={recurrent.shape}"
        )
    return linear, recurrent


def has_unit_matrices(layer):
    """Whether a layer is one that has a stability certificate."""
    return callable(getattr(layer, "recurrent_matrix", None))


def _matrices_of(layer):
    if not has_unit_matrices(layer):
        raise ValueError(
            "`layer_or_matrices` should have the method `recurrent_matrix`, "
            "as a LipschitzRNN has, or be a pair of matrices (A, W). "
            f"Received: layer_or_matrices={layer}"
        )
    require_built(layer)
    recurrent = square_matrix(layer.recurrent_matrix())
    if not getattr(layer, "alpha", 0):
        return np.zeros_like(recurrent), recurrent
    return layer.alpha * square_matrix(layer.linear_matrix()), recurrent


def require_built(layer):
    """Raise unless a layer has its weights."""
    if not getattr(layer, "built", True):
        raise ValueError(
            "`layer` should be built: call it, or the model that it is in, "
            f"once. Received: layer={layer}"
        )


def has_transition_matrix(layer):
    """Whether a layer is one that has an orthogonality defect."""
    return callable(getattr(layer, "transition_matrix", None))


def square_matrix(matrix):
    """A matrix in double precision, complex if it was."""
    if isinstance(matrix, keras.layers.Layer):
        raise ValueError(
            "A square matrix was expected, or a layer that has one. "
            f"Received: {matrix}"
        )
    if not isinstance(matrix, (np.ndarray, list)):
        matrix = keras.ops.convert_to_numpy(matrix)
    matrix = np.asarray(matrix)
    wide = np.iscomplexobj(matrix)
    matrix = matrix.astype("complex128" if wide else "float64")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            "A square matrix was expected. "
            f"Received: matrix.shape={matrix.shape}"
        )
    return matrix


def eigenvalues(symmetric):
    """Those of a symmetric matrix, from the smallest, as floats."""
    return [float(value) for value in np.linalg.eigvalsh(symmetric)]
