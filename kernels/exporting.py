"""What is written to a file holds no native code, and nothing wrong.

A file is run where this package is not installed. Three things say that one is
being written: the scope `keras_linrec.config.portable_kernels`, what a
framework says of itself (`exporting` in its folder; on JAX, what a program is
lowered for, see `jax/lowering.py`), and `keras.Model.export`, which opens the
scope.
"""

import inspect
from functools import wraps

import keras

from keras_linrec import settings
from keras_linrec.kernels import backends


def exporting():
    """Whether what runs now is traced for a file.

    `torch.export` by itself keeps custom operators, and is not among them.
    """
    return backends.current().exporting()


def require_exportable(layer, whole=True):
    """Raise where a layer's part of a file would be wrong, or not load.

    Args:
        layer: the layer's name.
        whole: whether it is called with whole sequences, or with one step.
    """
    export = settings.current_export()
    if export is None or export.format != "onnx":
        return
    backend = keras.backend.backend()
    if backend == "tensorflow":
        raise ValueError(
            f"The layer '{layer}' cannot be exported to ONNX from "
            "TensorFlow: what tf2onnx makes of loops is wrong or does not "
            "load. Load the model under PyTorch and export it there, or "
            "export a SavedModel. Received: format='onnx'"
        )
    # PyTorch's older exporter, which Keras takes for sizes that are not fixed,
    # writes loops over time out as it finds them.
    if backend == "torch" and whole and export.is_dynamic:
        raise ValueError(
            f"The layer '{layer}' can be exported to ONNX from PyTorch for "
            "one batch size and one number of steps only. Give `model.export` "
            "an `input_signature` in which both are fixed; export what "
            "`keras_linrec.export_step(model)` returns, which takes any "
            "batch; or export a SavedModel under TensorFlow or JAX. "
            "Received: inputs of more than one size"
        )


def with_fixed_sizes(sequences):
    """Sequences that have their sizes in a file too, and no others.

    `torch.jit.trace`, and PyTorch's older ONNX exporter by it, write loops over
    time out as they find them, whatever axes they are told are dynamic: what
    they write then fails at other sizes, instead of giving wrong numbers.
    """
    if keras.backend.backend() != "torch":
        return sequences
    return backends.current().with_fixed_sizes(sequences)


def open_scope_in_keras():
    """Let `keras.Model.export` open the scope of portable kernels.

    Keras tells layers nothing of an export (3.12 to 3.15), and TensorFlow only
    of what it traces within `tf.saved_model.save`, which is not where Keras
    traces.
    """
    plain = keras.Model.export
    if getattr(plain, "opens_portable_scope", False):
        return
    signature = inspect.signature(plain)

    @wraps(plain)
    def export(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        scope = settings.Export(given.get("format"), _is_dynamic(given))
        with settings.exporting(scope):
            return plain(*args, **kwargs)

    export.opens_portable_scope = True
    keras.Model.export = export


def _is_dynamic(given):
    """Whether the inputs of a model to be exported may have several sizes."""
    specs = given.get("input_signature")
    if specs is None:
        specs = getattr(given["self"], "inputs", None)
    if not specs:
        # A model that is not functional: Keras leaves its batch size open.
        return True
    shapes = (getattr(spec, "shape", ()) for spec in keras.tree.flatten(specs))
    return any(None in tuple(shape or ()) for shape in shapes)
