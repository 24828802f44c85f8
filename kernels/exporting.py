"""Exported files contain no native code and no wrong operations.

A file must run where this package is not installed. An export is detected in
three ways: by the scope `keras_linrec.config.portable_kernels`, by the
framework's own state (`exporting` in its folder; on JAX, the lowering target,
see `jax/lowering.py`), and by `keras.Model.export`, which opens the scope.
"""

import inspect
from contextlib import contextmanager
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


def kernel_of_loops():
    """The kernel of a file whose recurrences are loops over single steps.

    The converters of such formats know no Fourier transforms and no lists of
    tensors. `None` outside such an export.
    """
    export = settings.current_export()
    if export is None:
        return None
    return backends.current().KERNELS_OF_LOOPS.get(export.format)


def by_steps(time):
    """Whether a recurrence has to run step by step where it will run.

    Args:
        time: the number of steps: an integer, a tensor, or a symbol of a
            program that is exported for any number.
    """
    if not (isinstance(time, int) or keras.ops.is_tensor(time)):
        return True
    # First, because PyTorch's compiler cannot trace a look-up of the scope.
    if not exporting():
        return False
    # What users make of `torch.export` by hand, as for ExecuTorch, has no
    # complex numbers.
    by_hand = settings.current_export() == settings.Export()
    is_torch = keras.backend.backend() == "torch"
    return kernel_of_loops() is not None or (is_torch and by_hand)


def cuts_wrongly(time):
    """Whether slices of sequences will be wrong in a file that is written.

    jax2onnx writes slices of no steps where the length is a symbol.

    Args:
        time: the number of steps, as in `by_steps`.
    """
    return (
        keras.backend.backend() == "jax"
        and not isinstance(time, int)
        and kernel_of_loops() is not None
    )


def any_batch():
    """The size of an axis that `torch.export` leaves open.

    `None` on backends other than PyTorch, whose format it is.
    """
    backend = backends.current()
    return backend.any_size("batch") if hasattr(backend, "any_size") else None


def with_fixed_sizes(sequences):
    """The sequences, with their sizes fixed in a file that is being traced.

    `torch.jit.trace`, and with it `torch.onnx.export(dynamo=False)`, unrolls
    loops over time even along dynamic axes. With fixed sizes the file fails at
    other sizes instead of giving wrong numbers.
    """
    if keras.backend.backend() != "torch":
        return sequences
    return backends.current().with_fixed_sizes(sequences)


# What takes any batch and any number of steps where Keras' own way fails, by
# the backend and the format.
_BY_PYTORCH = (
    "Load the model under PyTorch (KERAS_BACKEND=torch) and export it there, "
    "which takes any batch and any number of steps"
)
_BY_STEPS = (
    "Export `keras_linrec.export_step(model)`, which takes one step at a time"
)
_BY_TENSORFLOW = (
    "Load the model under TensorFlow (KERAS_BACKEND=tensorflow) and export it "
    "there, which takes any batch and any number of steps"
)
_ALTERNATIVES = {
    ("jax", "litert"): _BY_TENSORFLOW,
    ("jax", "onnx"): _BY_PYTORCH,
    ("jax", "openvino"): _BY_PYTORCH,
    ("tensorflow", "litert"): _BY_STEPS,
    ("tensorflow", "onnx"): _BY_PYTORCH,
    ("tensorflow", "openvino"): _BY_PYTORCH,
    ("torch", "litert"): _BY_TENSORFLOW,
}
# What converters write without an error, and wrongly or so that no runtime
# loads it.
_REFUSED = {
    ("tensorflow", "onnx"): "tf2onnx writes graphs of loops that are wrong or "
    "do not load",
    ("torch", "litert"): "litert-torch 0.10 writes operations that LiteRT "
    "does not have",
}
# The same of models with masks.
_REFUSED_WITH_MASKS = {
    ("jax", "onnx"): "jax2onnx cannot trace how masked steps are moved",
}


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
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        model, format = given["self"], given["format"]
        with settings.exporting(settings.Export(format)):
            # Other models are Keras' affair.
            if not any(map(_is_own, model._flatten_layers())):
                return plain(*args, **kwargs)
            _require_converter(model, format)
            with _with_alternative(format):
                return _write(plain, **given)

    export.opens_portable_scope = True
    keras.Model.export = export


def _require_converter(model, format):
    """Raise if the file of a model with own layers would be of no use."""
    key = keras.backend.backend(), format
    reason = _REFUSED.get(key)
    if key in _REFUSED_WITH_MASKS and any(map(_masks, model._flatten_layers())):
        reason = _REFUSED_WITH_MASKS[key]
    if reason is not None:
        raise RuntimeError(
            f"Layers of keras_linrec cannot be written as format='{format}' "
            f"from {key[0]}: {reason}. {_ALTERNATIVES[key]}."
        )


def _masks(layer):
    """Whether a layer gives others a mask."""
    return (
        isinstance(layer, keras.layers.Masking)
        or getattr(layer, "mask_zero", False)
        or getattr(layer, "_gives_masks", False)
    )


@contextmanager
def _with_alternative(format):
    """The scope in which a converter's error becomes one that helps."""
    backend = keras.backend.backend()
    alternative = _ALTERNATIVES.get((backend, format))
    try:
        yield
    except Exception as failure:
        # What is missing, or which argument is wrong, is said already; but
        # jax2onnx, where it misreads a symbol, has layers refuse their inputs.
        is_said = isinstance(failure, ImportError) or (
            isinstance(failure, ValueError) and backend != "jax"
        )
        if alternative is None or is_said:
            raise
        raise RuntimeError(
            f"The model could not be written as format='{format}' from "
            f"{backend}. {alternative}. The converter's error: "
            f"{type(failure).__name__}: {failure}"
        ) from failure


def _write(export, self, filepath, format, kwargs, **given):
    """`keras.Model.export`, with sizes left open on PyTorch."""
    given = {**given, **kwargs}
    _call_once(self, given.get("input_signature"))
    backend = backends.current()
    if keras.backend.backend() == "torch" and format == "openvino":
        return backend.export_openvino(export, self, filepath, **given)
    scope = getattr(backend, "onnx_of_any_size", nullcontext)
    with scope() if format == "onnx" else nullcontext():
        return export(self, filepath, format=format, **given)


def _call_once(model, signature):
    """Call a model that was never called, with symbols.

    Keras refuses it, or builds it while it is traced, where PyTorch draws no
    weights. What Keras says of a model that is not built, and has no signature,
    is clear.
    """
    if signature is None and isinstance(model, keras.Sequential):
        # Without a `keras.Input` it has no inputs before it is built.
        signature = getattr(model, "inputs", None)
    elif signature is None and isinstance(model, keras.Function):
        signature = [model.input]
    if model._called or signature is None:
        return
    inputs = keras.tree.map_structure(
        lambda spec: keras.KerasTensor(spec.shape, spec.dtype), signature
    )
    model(*inputs)
    # A call with symbols does not count.
    model._called = True


def _is_own(layer):
    """Whether a layer is one of this package, or of a subclass."""
    package = __name__.partition(".")[0]
    return any(
        kind.__module__.partition(".")[0] == package
        for kind in type(layer).__mro__
    )
