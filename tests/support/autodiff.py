"""Gradients under the current backend, and numerical ones in NumPy."""

import keras
import numpy as np

BACKEND = keras.backend.backend()


def gradient(function):
    """The gradient of a scalar function of a list of tensors.

    The result is a function of that list, and differentiable again.
    """
    if BACKEND == "jax":
        import jax

        return lambda tensors: jax.grad(
            lambda *t: function(list(t)), tuple(range(len(tensors)))
        )(*tensors)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        def run(tensors):
            tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                value = function(tensors)
            return tape.gradient(value, tensors, unconnected_gradients="zero")

        return run
    import torch

    def run(tensors):
        tensors = [
            tensor if tensor.requires_grad else tensor.requires_grad_()
            for tensor in tensors
        ]
        with torch.enable_grad():
            return torch.autograd.grad(
                function(tensors),
                tensors,
                create_graph=True,
                materialize_grads=True,
            )

    return run


def tensors(arrays):
    return [
        keras.ops.convert_to_tensor(np.asarray(a, "float32")) for a in arrays
    ]


def to_numpy(values):
    return [keras.ops.convert_to_numpy(v).astype("float64") for v in values]


def backend_gradients(function, arrays, weights):
    """Gradients of sum(weights * outputs) in float32, as float64 arrays."""

    def loss(arguments):
        outputs = function(arguments)
        return sum(
            keras.ops.sum(output * keras.ops.cast(weight, "float32"))
            for output, weight in zip(outputs, weights)
        )

    return to_numpy(compiled(gradient(loss))(tensors(arrays)))


def compiled(function):
    """On JAX, one program instead of a compilation for each operation."""
    if BACKEND != "jax":
        return function
    import jax

    return jax.jit(function)


def squared_slopes(function):
    """The squared gradient of the sum of a function's squared results.

    Args:
        function: of a list of tensors, which returns several.

    Returns:
        A function of the same list, whose gradient has second derivatives.
    """

    def squares(given):
        return sum(keras.ops.sum(part**2) for part in function(given))

    def run(given):
        slopes = gradient(squares)(given)
        return sum(keras.ops.sum(slope**2) for slope in slopes)

    return run


def second_derivatives(function, arrays):
    """The gradient of the squared slopes in float32, as float64 arrays."""
    second = compiled(gradient(squared_slopes(function)))
    return to_numpy(second(tensors(arrays)))


def numerical_gradients(function, arrays, weights, step=1e-6):
    """The same, by central differences of a float64 definition."""

    def loss():
        return sum(
            np.sum(output * weight)
            for output, weight in zip(function(arrays), weights)
        )

    arrays = [np.array(array, "float64") for array in arrays]
    gradients = []
    for array in arrays:
        slope = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            value = array[index]
            array[index] = value + step
            above = loss()
            array[index] = value - step
            below = loss()
            array[index] = value
            slope[index] = (above - below) / (2 * step)
        gradients.append(slope)
    return gradients


def relative_error(got, expected):
    """The largest difference, as a share of the largest expected value."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    scale = np.abs(expected).max(initial=0.0)
    return np.abs(got - expected).max(initial=0.0) / (
        scale if scale > 0 else 1.0
    )
