"""TensorFlow: time in blocks, or a `tf.while_loop` over the steps."""

from contextlib import contextmanager
from functools import partial

from keras_linrec import settings
from keras_linrec.kernels import powers
from keras_linrec.kernels.tensorflow.loop import loop as loop
from keras_linrec.kernels.tensorflow.scan import associative as associative
from keras_linrec.kernels.tensorflow.scan import sequential as sequential
from keras_linrec.kernels.tensorflow.steps_of_files import (
    scan_of_any_length as scan_of_any_length,
)

# See `kernel_of_loops` of `keras_linrec.kernels.exporting`.
KERNELS_OF_LOOPS = {"litert": "sequential"}


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


def by_sections(scan):
    """A projected scan that keeps the states of a section of time."""
    from keras_linrec.kernels.tensorflow import sections

    return partial(sections.by_sections, scan)


def platform():
    """The platform that graphs run on by default."""
    import tensorflow as tf

    return "cuda" if tf.config.get_visible_devices("GPU") else "cpu"


def native_platform():
    """The platform of the compiled kernels."""
    here = platform()
    return here if has_native(here) else "cpu"


def has_native(platform_of_case):
    """Whether there are compiled kernels for a platform.

    Without the CUDA core those of the CPU remain, for what is placed there.
    """
    if "cpu" in (platform(), platform_of_case):
        # Or it is a GPU that is not here, which may have the CUDA core.
        return True
    from keras_linrec.kernels.native import cuda

    return cuda.is_here()


def describe(tensor):
    """The fields of a `Case` that depend on a call's tensors."""
    return {"platform": "cpu" if _is_on_cpu(tensor) else platform()}


def _is_on_cpu(tensor):
    """Whether `tf.device`, or the data, place a call on the CPU."""
    import tensorflow as tf

    if platform() == "cpu":
        return True
    device = getattr(tensor, "device", "")
    # The arguments of a `tf.function` have no device, unlike what is computed.
    return "CPU" in (device or tf.zeros(()).device).upper()


def choose(condition, if_true, if_false):
    """The results of one of two functions, chosen at run time.

    Args:
        condition: boolean scalar tensor.
        if_true, if_false: functions without arguments, of results of the same
            shapes.
    """
    import tensorflow as tf

    return tf.cond(condition, if_true, if_false)


def unrecorded():
    """A scope in which no `tf.GradientTape` records.

    For what a custom gradient stands in for: a tape would differentiate it all
    the same, and fails at a custom gradient in a branch of a `choose`.
    """
    from tensorflow.python.eager import record

    return record.stop_recording()


def powers_with_remainder(numbers, count):
    """See `kernels/torch`."""
    return powers.in_float64(numbers, count)


def values_of(tensor):
    """See `keras_linrec.ops.concrete_values`."""
    import tensorflow as tf

    # A variable has the method in a graph too.
    is_here = tf.executing_eagerly() and tf.is_tensor(tensor)
    if not is_here or not hasattr(tensor, "numpy") or platform() != "cpu":
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


@contextmanager
def checking():
    """The scope in which a kernel is checked: with products in float32."""
    from tensorflow.config import experimental as config

    allowed = config.tensor_float_32_execution_enabled()
    config.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        config.enable_tensor_float_32_execution(allowed)


def in_full_precision(function, *tensors):
    """A product of float32 tensors that is not computed in TF32.

    Args:
        function: a function of tensors that computes one product.
        *tensors: its arguments.
    """
    import tensorflow as tf

    dtype = tensors[0].dtype
    if platform() == "cpu" or dtype != tf.float32:
        return function(*tensors)
    # TensorFlow has no precision for a single product; one in float64 is
    # precise whatever the switch says, and so are its gradients.
    wide = (tf.cast(tensor, tf.float64) for tensor in tensors)
    return tf.cast(function(*wide), dtype)


def program(function):
    """A function of tensors as users run it: in a graph."""
    import tensorflow as tf

    return tf.function(function, autograph=False)


def device_name():
    """The device that graphs run on by default, in words."""
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return "cpu"
    details = tf.config.experimental.get_device_details(gpus[0])
    return f"{len(gpus)} x {details.get('device_name', 'GPU')} (cuda)"


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
