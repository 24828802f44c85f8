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
    (16, 4096, 256). Under XLA the two are level.
    """
    return "associative"


def compiled():
    """The module of the compiled kernels."""
    from keras_linrec.kernels.tensorflow import native

    return native


def platform():
    """The platform that graphs run on."""
    import tensorflow as tf

    return "cuda" if tf.config.get_visible_devices("GPU") else "cpu"


def describe(tensor):
    """What a `Case` says of the tensors that a call was given."""
    return {"platform": platform()}


def exporting():
    """Whether a scope says so, or `tf.saved_model.save` is tracing."""
    from tensorflow.python.saved_model import save_context

    return (
        settings.current_export() is not None or save_context.in_save_context()
    )


def over_devices(kernel):
    """The `Kernel`: no devices share the time here."""
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
    """Outputs of a function of a list, then the gradients of its arguments."""
    import tensorflow as tf

    # A graph of its own: where the self-test runs, no tape does.
    @tf.function(autograph=False)
    def run(tensors, cotangents):
        outputs = function(tensors)
        gradients = tf.gradients(
            outputs, tensors, cotangents, unconnected_gradients="zero"
        )
        return [*outputs, *gradients]

    # Called as it is, TensorFlow warns of functions that are traced for each
    # of a few calls.
    concrete = run.get_concrete_function(tensors, cotangents)
    return concrete(tensors, cotangents)
