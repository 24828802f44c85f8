"""An error about numbers that diverge."""

import tensorflow as tf

from keras_linrec.kernels.check_bounded import LARGEST


def require_bounded(tensor, message):
    """See `keras_linrec.kernels.check_bounded`."""
    bounded = tf.reduce_max(tf.abs(tensor)) < LARGEST
    with tf.control_dependencies([tf.debugging.Assert(bounded, [message])]):
        return tf.identity(tensor)
