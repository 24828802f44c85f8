"""The function that computes an operation: where `ops` reach the kernels."""

import keras

from keras_linrec.kernels import backends
from keras_linrec.kernels.resolver import Case
from keras_linrec.kernels.resolver import implementation


def kernel_for(operation, sequences, decay=None, **facts):
    """The function that computes an operation on tensors of these shapes.

    All operations resolve their kernel here.

    Args:
        operation: a name that `keras_linrec.kernels.explain` takes.
        sequences: tensor (batch, time, ...), the inputs of a scan.
        decay: tuple of tensors, the decay of a linear or projected scan.
            Defaults to `None`.
        **facts: other fields of `keras_linrec.kernels.resolver.Case`.
    """
    if decay is not None:
        facts["channels"] = len(decay) * decay[0].shape[-1]
        facts["per_step"] = len(decay[0].shape) == 3
    batch, time = sequences.shape[:2]
    case = Case(
        operation,
        dtype=keras.backend.standardize_dtype(sequences.dtype),
        batch=batch,
        time=time,
        **backends.current().describe(sequences),
    )
    return implementation(case._replace(**facts))
