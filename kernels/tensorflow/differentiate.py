"""First and second derivatives of functions of tensors, for analysis."""

import tensorflow as tf


def gradient(function):
    """See `keras_linrec.ops.differentiation`."""

    @tf.function(autograph=False)
    def run(tensors, constants):
        return _gradient(function, tensors, constants)

    return run


def hessian_vector_product(function):
    """See `keras_linrec.ops.differentiation`."""

    def slope(tensors, vectors_and_constants):
        vectors, constants = vectors_and_constants
        gradients = _gradient(function, tensors, constants)
        return tf.add_n(
            [
                tf.reduce_sum(one * other)
                for one, other in zip(gradients, vectors)
            ]
        )

    @tf.function(autograph=False)
    def run(tensors, vectors, constants):
        return _gradient(slope, tensors, (vectors, constants))

    return run


def _gradient(function, tensors, constants):
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value = function(tensors, constants)
    return tape.gradient(value, tensors, unconnected_gradients="zero")
