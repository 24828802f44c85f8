"""What units share that have kernels with biases."""

import math

import keras
from keras import ops

from keras_linrec import types
from keras_linrec.double_precision import product
from keras_linrec.layers.base.precise_layer import drawn_apart
from keras_linrec.layers.base.precise_layer import serialized
from keras_linrec.validation import require_bool


class InputWeights:
    """A mixin for units with kernels, mostly of their inputs, and biases.

    Args:
        units: integer, the number of output features.
        use_bias, kernel_initializer, bias_initializer, kernel_regularizer,
            bias_regularizer, kernel_constraint, bias_constraint: as in Keras'
            recurrent layers.
        **kwargs: those of the layer or the cell.
    """

    def __init__(
        self,
        units: int | None = None,
        use_bias: bool = True,
        kernel_initializer: types.Identifier = "glorot_uniform",
        bias_initializer: types.Identifier = "zeros",
        kernel_regularizer: types.Identifier = None,
        bias_regularizer: types.Identifier = None,
        kernel_constraint: types.Identifier = None,
        bias_constraint: types.Identifier = None,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        super().__init__(units=units, **kwargs)
        require_bool("use_bias", use_bias)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def _add_input_weights(self, shape, prefix="", initializer=None):
        """A kernel, and a bias or `None`.

        Args:
            shape: tuple of integers, (features, units), or (blocks, features,
                units) for a block-diagonal kernel.
            prefix: string, the beginning of both names.
            initializer: of the kernel. Defaults to `None`, the layer's
                `kernel_initializer`.
        """
        kernel = self.add_kernel(f"{prefix}kernel", shape, initializer)
        if not self.use_bias:
            return kernel, None
        return kernel, self.add_parameter(
            f"{prefix}bias",
            (math.prod(shape) // shape[-2],),
            drawn_apart(self.bias_initializer, f"{prefix}bias"),
            regularizer=self.bias_regularizer,
            constraint=self.bias_constraint,
        )

    def _add_projection(self, features):
        """`projection_kernel`, or `None` for as many features as units."""
        if features == self.output_units:
            return None
        return self.add_kernel(
            "projection_kernel", (features, self.output_units)
        )

    def get_config(self):
        return {
            **super().get_config(),
            "use_bias": self.use_bias,
            **serialized(
                self,
                "kernel_initializer",
                "kernel_regularizer",
                "kernel_constraint",
                "bias_initializer",
                "bias_regularizer",
                "bias_constraint",
            ),
        }


def side_by_side(*weights):
    """Several kernels of the same inputs as one, and their biases.

    One product is faster than several.

    Args:
        *weights: pairs of a kernel (features, units) and a bias or `None`, as
            `InputWeights._add_input_weights` returns them.

    Returns:
        A list of the kernel, and of the bias if there is one.
    """
    kernels, biases = zip(*weights)
    parts = [kernels] if biases[0] is None else [kernels, biases]
    return [ops.concatenate(part, axis=-1) for part in parts]


def projected(inputs, weights, count):
    """The inputs through each of several kernels.

    Args:
        inputs: (..., features).
        weights: what `side_by_side` made of the kernels.
        count: integer, their number.

    Returns:
        A list of tensors (..., units).
    """
    kernel, *bias = weights
    numbers = product(inputs, kernel)
    return ops.split(numbers + bias[0] if bias else numbers, count, axis=-1)
