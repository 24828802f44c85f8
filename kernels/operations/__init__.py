"""The operations of the hot path, a file for each.

A file has the plain form of its operation, in `keras.ops`, and `OPERATION`: the
forms in which it runs, the rule that chooses one, its self-test, and how it is
called in native code. To add an operation is to add its file here and its name
below; CONTRIBUTING.md says what native code needs.
"""

from functools import partial

from keras_linrec.kernels.operations import causal_convolution
from keras_linrec.kernels.operations import diagonal_scan_irregular
from keras_linrec.kernels.operations import gated_scan
from keras_linrec.kernels.operations import matrix_scan
from keras_linrec.kernels.operations import move_steps
from keras_linrec.kernels.operations import nonlinear_recurrence
from keras_linrec.kernels.operations import oscillator_scan_irregular
from keras_linrec.kernels.operations import projected_scan
from keras_linrec.kernels.operations import scan
from keras_linrec.kernels.operations.structured import impulse_response
from keras_linrec.kernels.operations.structured import irregular_scan
from keras_linrec.kernels.operations.structured import scan as structured_scan

OPERATIONS = {
    "linear_scan": scan.OPERATION,
    "gated_scan": gated_scan.OPERATION,
    "projected_scan": projected_scan.OPERATION,
    "nonlinear_scan": nonlinear_recurrence.OPERATION,
    "causal_convolution": causal_convolution.OPERATION,
    "move_steps": move_steps.OPERATION,
    "matrix_scan": matrix_scan.OPERATION,
    "diagonal_scan_irregular": diagonal_scan_irregular.OPERATION,
    "oscillator_scan_irregular": oscillator_scan_irregular.OPERATION,
    "structured_scan_irregular": irregular_scan.OPERATION,
    "structured_scan": structured_scan.OPERATION,
    "impulse_response": impulse_response.OPERATION,
}


def native_functions(run):
    """The functions of a native `Kernel`, a dict by name.

    Args:
        run: `run(call, *quantities)` of a framework, see `record.py`.
    """
    return {
        operation.function: partial(operation.call_native, run)
        for operation in OPERATIONS.values()
    }
