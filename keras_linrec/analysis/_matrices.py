"""The matrices of units as float64 arrays."""

import keras
import numpy as np


def unit_matrices(layer_or_matrices):
    """alpha A and W of a unit as float64 arrays."""
    if isinstance(layer_or_matrices, (tuple, list)):
        if len(layer_or_matrices) != 2:
            raise ValueError(
                "`layer_or_matrices` should be a layer or a pair (A, W). "
                f"Received: {len(layer_or_matrices)} matrices"
            )
        linear, recurrent = (
            real_matrix(matrix, "layer_or_matrices")
            for matrix in layer_or_matrices
        )
    else:
        linear, recurrent = _matrices_of(layer_or_matrices)
    if linear.shape != recurrent.shape:
        raise ValueError(
            "A and W of `layer_or_matrices` should have the same shape. "
            f"Received: A.shape={linear.shape}, W.shape={recurrent.shape}"
        )
    return linear, recurrent


def has_unit_matrices(layer):
    """Whether `stability_certificate` applies to a layer."""
    return callable(getattr(layer, "recurrent_matrix", None))


def _matrices_of(layer):
    if not has_unit_matrices(layer):
        raise ValueError(
            "`layer_or_matrices` should be a layer with the method "
            "`recurrent_matrix`, such as LipschitzRNN, or a pair of matrices "
            f"(A, W). Received: layer_or_matrices={layer}"
        )
    require_built(layer, "layer_or_matrices")
    recurrent = real_matrix(layer.recurrent_matrix())
    if not getattr(layer, "alpha", 0):
        return np.zeros_like(recurrent), recurrent
    return layer.alpha * real_matrix(layer.linear_matrix()), recurrent


def require_built(layer, name="layer"):
    """Raise unless a layer, an argument called `name`, is built."""
    if not getattr(layer, "built", True):
        raise ValueError(
            f"`{name}` should be built: call the layer or its model once. "
            f"Received: {name}={layer}"
        )


def has_transition_matrix(layer):
    """Whether `orthogonality_defect` applies to a layer."""
    return callable(getattr(layer, "transition_matrix", None))


def square_matrix(matrix, name="matrix"):
    """A square matrix in float64 or complex128, an argument called `name`."""
    if isinstance(matrix, keras.layers.Layer):
        raise ValueError(
            f"`{name}` should be square, or a layer with the method that "
            f"returns it. Received: {name}={matrix}"
        )
    if not isinstance(matrix, (np.ndarray, list)) and hasattr(matrix, "shape"):
        matrix = keras.ops.convert_to_numpy(matrix)
    try:
        matrix = np.asarray(matrix)
    except ValueError:
        matrix = np.zeros(0)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"`{name}` should be square. Received: {name}.shape={matrix.shape}"
        )
    if matrix.dtype.kind not in "biufc":
        raise ValueError(
            f"`{name}` should be of numbers. "
            f"Received: {name}.dtype={matrix.dtype}"
        )
    is_complex = np.iscomplexobj(matrix)
    matrix = matrix.astype("complex128" if is_complex else "float64")
    return matrix


def real_matrix(matrix, name="matrix"):
    """A square matrix in float64 that has entries."""
    matrix = square_matrix(matrix, name)
    if np.iscomplexobj(matrix) or not matrix.size:
        raise ValueError(
            f"`{name}` should be real and have entries. Received: "
            f"{name}.dtype={matrix.dtype}, {name}.shape={matrix.shape}"
        )
    return matrix


def are_finite(matrices):
    """Whether no entry is NaN or infinite."""
    return all(np.isfinite(matrix).all() for matrix in matrices)


def eigenvalues(symmetric):
    """The eigenvalues of a symmetric matrix in ascending order, as floats."""
    return [float(value) for value in np.linalg.eigvalsh(symmetric)]
