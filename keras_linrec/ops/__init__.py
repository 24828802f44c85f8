"""The mathematics: pure functions of tensors."""

from keras_linrec.ops.canonical_form import canonical_input
from keras_linrec.ops.canonical_form import leja_order
from keras_linrec.ops.causal_convolution import causal_convolution
from keras_linrec.ops.householder import reflection_product
from keras_linrec.ops.householder import unitary_matrix
from keras_linrec.ops.matrix_scan import matrix_scan
from keras_linrec.ops.reflectors import reflectors_of
from keras_linrec.ops.rotation import rotation_matrix
from keras_linrec.ops.scan import complex_linear_scan
from keras_linrec.ops.scan import linear_scan
from keras_linrec.ops.scan import nonlinear_scan
from keras_linrec.ops.scan import projected_scan
from keras_linrec.ops.symmetric_skew import symmetric_skew

__all__ = [
    "canonical_input",
    "causal_convolution",
    "complex_linear_scan",
    "leja_order",
    "linear_scan",
    "matrix_scan",
    "nonlinear_scan",
    "projected_scan",
    "reflection_product",
    "reflectors_of",
    "rotation_matrix",
    "symmetric_skew",
    "unitary_matrix",
]
