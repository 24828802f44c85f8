"""What units share that give each input feature a system of its own."""

import keras
from keras import ops

from keras_linrec import activations
from keras_linrec.double_precision import activate
from keras_linrec.double_precision import product
from keras_linrec.layers.base.input_weights import InputWeights
from keras_linrec.layers.base.precise_layer import serialized
from keras_linrec.validation import require_count


class MixedFeatures(InputWeights):
    """A mixin for units whose features have systems, which are mixed after.

        activation(y + D u) @ kernel + bias

    where y (batch, time, features, channels) are the outputs of the systems.

    Args:
        channels: integer, the outputs of each feature's system.
        activation: name or function, between the systems and the mixing.
        output_initializer: for C, which the unit creates.
        feedthrough_initializer: for D. Defaults to `None`, normal numbers of
            variance 1.
        **kwargs: those of `InputWeights`, for `kernel` and `bias`, and of the
            layer.
    """

    def __init__(
        self,
        units=None,
        channels=1,
        activation="gelu",
        output_initializer=None,
        feedthrough_initializer=None,
        **kwargs,
    ):
        super().__init__(units, **kwargs)
        require_count("channels", channels)
        self.channels = channels
        self.activation = activation
        self.output_initializer = keras.initializers.get(output_initializer)
        self.feedthrough_initializer = keras.initializers.get(
            feedthrough_initializer
            or keras.initializers.RandomNormal(stddev=1.0)
        )

    def _accept_activation(self, name, value):
        return activations.get_unary(value)

    def _add_mixing(self, features):
        """Create the weights `feedthrough`, `kernel` and `bias`."""
        self.feedthrough = self.add_parameter(
            "feedthrough",
            (features, self.channels),
            self.feedthrough_initializer,
        )
        self.kernel = self.add_parameter(
            "kernel",
            (features * self.channels, self.output_units),
            self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.bias = self._add_bias()

    def _mix(self, outputs):
        """outputs @ kernel + bias, the channels of all features together."""
        shape = ops.shape(outputs)[:-2]
        outputs = ops.reshape(outputs, (*shape, self.kernel.shape[0]))
        outputs = product(outputs, ops.convert_to_tensor(self.kernel))
        return outputs if self.bias is None else outputs + self.bias

    def get_config(self):
        # It refuses a lambda, before Keras warns of one in an initializer.
        activation = activations.serialize(self.activation)
        return {
            **super().get_config(),
            "channels": self.channels,
            "activation": activation,
            **serialized(self, "output_initializer", "feedthrough_initializer"),
        }


def read_out(activation, outputs, inputs, feedthrough):
    """activation(y + D u).

    Args:
        activation: function.
        outputs: tensor (..., features, channels), y.
        inputs: tensor (..., features), u.
        feedthrough: tensor (features, channels), D.
    """
    direct = ops.expand_dims(inputs, -1) * feedthrough
    return activate(activation, outputs + direct)


def with_feedthrough(response, feedthrough):
    """Responses (features, channels, taps) with D in their first taps."""
    taps = ops.shape(response)[-1]
    direct = ops.expand_dims(feedthrough, -1)
    return response + ops.pad(direct, ((0, 0), (0, 0), (0, taps - 1)))
