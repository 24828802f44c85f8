"""The operations of the hot path, a file for each.

A file has the plain form of its operation, in `keras.ops`, and `OPERATION`: the
forms in which it runs, the rule that chooses one, its self-test, and how it is
called in native code. To add an operation is to add its file here and its name
below; CONTRIBUTING.md says what native code needs.
"""

from keras_linrec.kernels.operations import carried_response
from keras_linrec.kernels.operations import causal_convolution
from keras_linrec.kernels.operations import impulse_response
from keras_linrec.kernels.operations import move_steps
from keras_linrec.kernels.operations import nonlinear_recurrence
from keras_linrec.kernels.operations import projected_scan
from keras_linrec.kernels.operations import scan
from keras_linrec.kernels.operations import varying_response

OPERATIONS = {
    "linear_scan": scan.OPERATION,
    "projected_scan": projected_scan.OPERATION,
    "nonlinear_scan": nonlinear_recurrence.OPERATION,
    "causal_convolution": causal_convolution.OPERATION,
    "move_steps": move_steps.OPERATION,
    "varying_response": varying_response.OPERATION,
    "carried_response": carried_response.OPERATION,
    "impulse_response": impulse_response.OPERATION,
}
