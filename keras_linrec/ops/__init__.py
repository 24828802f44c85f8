"""The mathematics: pure functions of tensors."""

from keras_linrec.ops.canonical_form import canonical_input as canonical_input
from keras_linrec.ops.canonical_form import leja_order as leja_order
from keras_linrec.ops.causal_convolution import (
    causal_convolution as causal_convolution,
)
from keras_linrec.ops.householder import (
    reflection_product as reflection_product,
)
from keras_linrec.ops.householder import unitary_matrix as unitary_matrix
from keras_linrec.ops.matrix_scan import matrix_scan as matrix_scan
from keras_linrec.ops.rotation import rotation_matrix as rotation_matrix
from keras_linrec.ops.scan import complex_linear_scan as complex_linear_scan
from keras_linrec.ops.scan import linear_scan as linear_scan
from keras_linrec.ops.scan import nonlinear_scan as nonlinear_scan
from keras_linrec.ops.scan import projected_scan as projected_scan
from keras_linrec.ops.symmetric_skew import symmetric_skew as symmetric_skew
