"""Exported files contain no native code and no wrong operations.

A file must run where this package is not installed. An export is detected in
three ways: by the scope `keras_linrec.config.portable_kernels`, by the
framework's own state (`exporting` in its folder; on JAX, the lowering target,
see `jax/lowering.py`), and by `keras.Model.export`, which opens the scope.
"""

import inspect
from contextlib import nullcontext
from functools import wraps

import keras

from keras_linrec import settings
from keras_linrec.kernels import backends


def exporting():
    """Whether the current call is traced for a file.

    `torch.export` alone does not count: it keeps custom operators.
    """
    return backends.current().exporting()


def has_factorisations():
    """Whether matrices can be factorised where the current call will run.

    ONNX has no such operation, and neither have the files that are made of
    `torch.export` within `keras_linrec.config.portable_kernels`.
    """
    if not exporting():
        return True
    export = settings.current_export()
    return export is not None and export.format in ("torch", "tf_saved_model")


def any_batch():
    """The size of an axis that `torch.export` leaves open.

    `None` on backends other than PyTorch, whose format it is.
    """
    backend = backends.current()
    return backend.any_size("batch") if hasattr(backend, "any_size") else None


def require_exportable(layer):
    """Raise if the exported form of a layer would be wrong or not load.

    Args:
        layer: the layer's name.
    """
    # First, because PyTorch's compiler cannot trace a look-up of the scope.
    if not exporting():
        return
    export = settings.current_export()
    if export is None or export.format != "onnx":
        return
    if keras.backend.backend() == "tensorflow":
        raise ValueError(
            f"The layer '{layer}' cannot be exported to ONNX from "
            "TensorFlow: tf2onnx converts loops into graphs that are wrong or "
            "do not load. Load the model under PyTorch and export it there, "
            "or export a SavedModel. Received: format='onnx'"
        )


def with_fixed_sizes(sequences):
    """The sequences, with their sizes fixed in a file that is being traced.

    `torch.jit.trace`, and with it `torch.onnx.export(dynamo=False)`, unrolls
    loops over time even along dynamic axes. With fixed sizes the file fails at
    other sizes instead of giving wrong numbers.
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
        scope = settings.Export(given.get("format"))
        with settings.exporting(scope), _any_sizes(given["self"], scope):
            return plain(*args, **kwargs)

    export.opens_portable_scope = True
    keras.Model.export = export


def _any_sizes(model, scope):
    """The scope in which sizes of a model's file are left open, on PyTorch."""
    if keras.backend.backend() != "torch" or scope.format != "onnx":
        return nullcontext()
    # Other models are Keras' affair.
    if not any(map(_is_own, model._flatten_layers())):
        return nullcontext()
    return backends.current().onnx_of_any_size()


def _is_own(layer):
    """Whether a layer is one of this package, or of a subclass."""
    package = __name__.partition(".")[0]
    return any(
        kind.__module__.partition(".")[0] == package
        for kind in type(layer).__mro__
    )
