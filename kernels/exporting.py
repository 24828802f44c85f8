"""Exported files contain no native code and no wrong operations.

A file must run where this package is not installed. An export is detected in
three ways: by the scope `keras_linrec.config.portable_kernels`, by the
framework's own state (`exporting` in its folder; on JAX, the lowering target,
see `jax/lowering.py`), and by `keras.Model.export`, which opens the scope.
"""

import inspect
from functools import wraps

import keras

from keras_linrec import settings
from keras_linrec.kernels import backends


def exporting():
    """Whether the current call is traced for a file.

    `torch.export` alone does not count: it keeps custom operators.
    """
    return backends.current().exporting()


def any_batch():
    """The size of an axis that `torch.export` leaves open.

    `None` on backends other than PyTorch, whose format it is.
    """
    backend = backends.current()
    return backend.any_size("batch") if hasattr(backend, "any_size") else None


def require_exportable(layer, whole=True):
    """Raise if the exported form of a layer would be wrong or not load.

    Args:
        layer: the layer's name.
        whole: `True` for whole sequences, `False` for a single step.
    """
    # First, because PyTorch's compiler cannot trace a look-up of the scope.
    if not exporting():
        return
    export = settings.current_export()
    if export is None or export.format != "onnx":
        return
    backend = keras.backend.backend()
    if backend == "tensorflow":
        raise ValueError(
            f"The layer '{layer}' cannot be exported to ONNX from "
            "TensorFlow: tf2onnx converts loops into graphs that are wrong or "
            "do not load. Load the model under PyTorch and export it there, "
            "or export a SavedModel. Received: format='onnx'"
        )
    # Keras uses PyTorch's older exporter for dynamic sizes, which unrolls loops
    # over time at the traced length.
    if backend == "torch" and whole and export.is_dynamic:
        raise ValueError(
            f"The layer '{layer}' can be exported to ONNX from PyTorch for "
            "one batch size and one number of steps only. Give `model.export` "
            "an `input_signature` in which both are fixed; export the result "
            "of `keras_linrec.export_step(model)`, which takes any batch "
            "size; or export a SavedModel under TensorFlow or JAX. "
            "Received: inputs of more than one size"
        )


def require_length(time, what="a recurrence that runs in a loop"):
    """Raise if PyTorch traces a program of any length, which it unrolls.

    Args:
        time: integer, or a symbol.
        what: what the program would be of.
    """
    if isinstance(time, int) or keras.backend.backend() != "torch":
        return
    raise ValueError(
        f"PyTorch exports {what} for one number of steps only, because loops "
        "are unrolled. Give `model.export` an `input_signature` with a fixed "
        "number of steps, export the result of "
        "`keras_linrec.export_step(model)`, or export a SavedModel under "
        f"TensorFlow or JAX. Received: {time} steps"
    )


def with_fixed_sizes(sequences):
    """The sequences, with their sizes fixed in a file that is being traced.

    `torch.jit.trace`, and with it PyTorch's older ONNX exporter, unrolls loops
    over time even along dynamic axes. With fixed sizes the file fails at other
    sizes instead of giving wrong numbers.
    """
    if keras.backend.backend() != "torch":
        return sequences
    return backends.current().with_fixed_sizes(sequences)


def open_scope_in_keras():
    """Make `keras.Model.export` open the scope of portable kernels.

    Keras (3.12 to 3.15) does not tell layers about an export. TensorFlow does
    so only for functions traced inside `tf.saved_model.save`, and Keras traces
    before that.
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
    """Whether the exported model has to accept inputs of several sizes."""
    specs = given.get("input_signature")
    if specs is None:
        specs = getattr(given["self"], "inputs", None)
    if not specs:
        # Keras leaves the batch size of a model that is not functional open.
        return True
    shapes = (getattr(spec, "shape", ()) for spec in keras.tree.flatten(specs))
    return any(None in tuple(shape or ()) for shape in shapes)
