"""TensorFlow: time in blocks, or a `tf.while_loop` over the steps."""

from contextlib import nullcontext

from keras_linrec import settings
from keras_linrec.kernels.tensorflow.loop import loop as loop
from keras_linrec.kernels.tensorflow.scan import associative as associative
from keras_linrec.kernels.tensorflow.scan import sequential as sequential


def preferred():
    """The faster kernel here, by measurement.

    In a graph on a 2-core CPU, forward and backward, real: 27 ms in blocks
    and 224 ms in the loop at (4, 16384, 64); 79 against 141 at
    (16, 4096, 256). Under XLA the two are equally fast.
    """
    return "associative"


def compiled():
    """The module of the compiled kernels."""
    from keras_linrec.kernels.tensorflow import native

    return native


def platform():
    """The platform that graphs run on by default."""
    import tensorflow as tf

    return "cuda" if tf.config.get_visible_devices("GPU") else "cpu"


def describe(tensor):
    """The fields of a `Case` that depend on a call's tensors."""
    return {"platform": platform()}


def choose(condition, if_true, if_false):
    """The results of one of two functions, chosen at run time.

    Args:
        condition: boolean scalar tensor.
        if_true, if_false: functions without arguments, of results of the same
            shapes.
    """
    import tensorflow as tf

    return tf.cond(condition, if_true, if_false)


def values_of(tensor):
    """See `keras_linrec.ops.concrete_values`."""
    import tensorflow as tf

    is_here = tf.is_tensor(tensor) and hasattr(tensor, "numpy")
    if not is_here or platform() != "cpu":
        return None
    return tensor.numpy()


def exporting():
    """Whether an export scope is open, or `tf.saved_model.save` is tracing."""
    from tensorflow.python.saved_model import save_context

    return (
        settings.current_export() is not None or save_context.in_save_context()
    )


def over_devices(kernel):
    """The `Kernel` itself: sequences are split over devices on JAX only."""
    return kernel


def checking():
    """The scope in which a kernel is checked."""
    return nullcontext()


def trace(function, shape, dtype):
    """Trace a function of one tensor."""
    import tensorflow as tf

    tf.function(function, autograph=False).get_concrete_function(
        tf.TensorSpec(shape, dtype)
    )


def vjp(function, tensors, cotangents):
    """Outputs of a function of a list, then its arguments' gradients."""
    import tensorflow as tf

    # A separate graph, so that no outer tape records the self-test.
    @tf.function(autograph=False)
    def run(tensors, cotangents):
        outputs = function(tensors)
        gradients = tf.gradients(
            outputs, tensors, cotangents, unconnected_gradients="zero"
        )
        return [*outputs, *gradients]

    # Calling `run` itself makes TensorFlow warn about repeated tracing.
    concrete = run.get_concrete_function(tensors, cotangents)
    return concrete(tensors, cotangents)
