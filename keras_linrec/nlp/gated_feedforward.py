"""The gated position-wise network of a language model's blocks."""

from typing import Any

import keras

from keras_linrec import activations
from keras_linrec import types
from keras_linrec.double_precision import activate
from keras_linrec.layers.base.precise_layer import drawn_apart
from keras_linrec.layers.base.set_later import SetLater
from keras_linrec.layers.base.streaming import Streaming
from keras_linrec.validation import require_count


@keras.saving.register_keras_serializable("keras_linrec")
class GatedFeedforward(SetLater, Streaming, keras.layers.Layer):
    """A position-wise network with a gate - Shazeer 2020.

        y = W_o (activation(W_g x) * W_v x)

    at every position by itself; with the activation SiLU it is SwiGLU. The
    three maps are `keras.layers.Dense` without biases, named `gate_dense`,
    `value_dense` and `output_dense`: `enable_lora` and `quantize` reach them.

    Args:
        intermediate_dim: integer, the features of the gate and of what it
            multiplies.
        activation: of the gate. Defaults to `"silu"`.
        kernel_initializer: for the three maps. Defaults to
            `"glorot_uniform"`.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float tensor, (..., features). A mask is passed on, and does
            not change the outputs.

    Output shape:
        (..., features), that of the input.

    Raises:
        ValueError: for an argument out of its range, at construction.

    Reference:
        [GLU Variants Improve Transformer](https://arxiv.org/abs/2002.05202)

    Example:

    >>> import numpy as np
    >>> from keras_linrec.nlp import GatedFeedforward
    >>> layer = GatedFeedforward(32)
    >>> tuple(layer(np.ones((2, 10, 8), "float32")).shape)
    (2, 10, 8)
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: types.Identifier = "silu",
        kernel_initializer: types.Identifier = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        require_count("intermediate_dim", intermediate_dim)
        # Keras takes no NumPy integer.
        self.intermediate_dim = int(intermediate_dim)
        self.activation = activation
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.supports_masking = True

    def _accept_activation(self, name, value):
        return activations.get_unary(value)

    def build(self, inputs_shape):
        wide = (*inputs_shape[:-1], self.intermediate_dim)
        self.gate_dense = self._make("gate_dense", inputs_shape, wide)
        self.value_dense = self._make("value_dense", inputs_shape, wide)
        self.output_dense = self._make("output_dense", wide, inputs_shape)

    def _make(self, name, inputs_shape, outputs_shape):
        layer = keras.layers.Dense(
            outputs_shape[-1],
            use_bias=False,
            kernel_initializer=drawn_apart(self.kernel_initializer, name),
            name=name,
            dtype=self.dtype_policy,
        )
        layer.build(inputs_shape)
        return layer

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def call(self, inputs):
        gate = activate(self.activation, self.gate_dense(inputs))
        return self.output_dense(gate * self.value_dense(inputs))

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
        }

    # A block around it streams as one around a sequence unit does. There are
    # no states, and what other positions hold does not matter.

    def _stream_step(self, inputs, states, constants):
        return self(inputs), []

    def _stream_part(self, sequences, states, mask):
        return self(sequences), []
