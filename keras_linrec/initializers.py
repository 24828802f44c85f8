"""Starting values that Keras does not have."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_linrec")
class FanInNormal(keras.initializers.Initializer):
    """Normal numbers of variance 1 / n, where n inputs meet in a sum.

    A product with such a weight keeps the variance of its inputs.

    Args:
        axis: integer, negative, the axis that is summed over. A shape that
            has no such axis is that of an elementwise weight: n is 1.
            Defaults to -2, as in a Keras kernel (inputs, outputs).
        seed: integer or `None`, the default.

    Example:

    >>> import keras
    >>> from keras_linrec.initializers import FanInNormal
    >>> weights = FanInNormal(seed=1)((10_000, 3))
    >>> 0.0098 < float(keras.ops.std(weights)) < 0.0102
    True
    """

    def __init__(self, axis=-2, seed=None):
        self.axis = axis
        self.seed = seed

    def __call__(self, shape, dtype=None):
        fan_in = shape[self.axis] if len(shape) >= -self.axis else 1
        normal = keras.initializers.RandomNormal(
            stddev=fan_in**-0.5, seed=self.seed
        )
        return normal(shape, dtype)

    def get_config(self):
        return {"axis": self.axis, "seed": self.seed}


@keras.saving.register_keras_serializable("keras_linrec")
class DecayLog(keras.initializers.Initializer):
    """log(-log(gamma)) for decays gamma whose squares are uniform.

    The decay is read back as gamma = exp(-exp(value)), between 0 and 1
    whatever the value (RotRNN, appendices B.3 and C).

    Args:
        gamma_min: float, the smallest decay. Defaults to 0.5.
        gamma_max: float, the largest decay. Defaults to 0.999.
        seed: integer or `None`, the default.

    Example:

    >>> from keras import ops
    >>> from keras_linrec.initializers import DecayLog
    >>> gamma = ops.exp(-ops.exp(DecayLog(0.9, 0.99)((100,))))
    >>> 0.8999 < float(ops.min(gamma)) < float(ops.max(gamma)) < 0.9901
    True
    """

    def __init__(self, gamma_min=0.5, gamma_max=0.999, seed=None):
        self.gamma_min = gamma_min
        self.gamma_max = gamma_max
        self.seed = seed

    def __call__(self, shape, dtype=None):
        uniform = keras.initializers.RandomUniform(
            self.gamma_min**2, self.gamma_max**2, seed=self.seed
        )
        return ops.log(-0.5 * ops.log(uniform(shape, dtype)))

    def get_config(self):
        return {
            "gamma_min": self.gamma_min,
            "gamma_max": self.gamma_max,
            "seed": self.seed,
        }
