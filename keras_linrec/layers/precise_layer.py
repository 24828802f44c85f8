"""Layers whose parameters keep their precision, and their names in a file."""

import math

import keras
import numpy as np

# The entries of a weight: what is larger was not meant.
_LARGEST_WEIGHT = 2**31


class PreciseLayer(keras.layers.Layer):
    """A layer whose parameters are float32 under any dtype policy.

    Or float64, under a float64 one.
    """

    def __init__(self, **kwargs):
        # Autocasting would bring states and parameters down to 16 bits.
        super().__init__(autocast=False, **kwargs)

    @property
    def recurrence_dtype(self):
        """float32, or float64 under a float64 policy."""
        return "float64" if self.variable_dtype == "float64" else "float32"

    def add_parameter(self, name, shape, initializer, **kwargs):
        """A weight that keeps the recurrence's precision."""
        if math.prod(shape) >= _LARGEST_WEIGHT:
            raise ValueError(
                f"Layer '{self.name}' should have weights of fewer than "
                f"{_LARGEST_WEIGHT} numbers. Received: '{name}' of the shape "
                f"{tuple(shape)}"
            )
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=initializer,
            dtype=self.recurrence_dtype,
            autocast=False,
            **kwargs,
        )


class NamedWeights:
    """Part of a layer whose weights stand in a file by their names."""

    def run_time_variables(self):
        """Variables that no file, and no list of weights, should know."""
        return []

    @property
    def weights(self):
        """The weights, which a file holds.

        What belongs to the run, such as the states that a stateful layer
        carries, is among the `variables` alone, as Keras' random seeds are.
        """
        hidden = {id(variable) for variable in self.run_time_variables()}
        return [w for w in super().weights if id(w) not in hidden]

    def save_own_variables(self, store):
        for weight in self.weights:
            store[weight.name] = weight

    def load_own_variables(self, store):
        expected = sorted(weight.name for weight in self.weights)
        if sorted(store.keys()) != expected:
            raise ValueError(
                f"Layer '{self.name}' has the weights {expected}. "
                f"Received: a file with {sorted(store.keys())}"
            )
        # All are looked at before one is assigned.
        values = [self._checked(weight, store) for weight in self.weights]
        for weight, value in zip(self.weights, values):
            weight.assign(value)

    def _checked(self, weight, store):
        """What a file has for a weight."""
        shape = tuple(store[weight.name].shape)
        if shape != tuple(weight.shape):
            raise ValueError(
                f"The weight '{weight.name}' of layer '{self.name}' has the "
                f"shape {tuple(weight.shape)}. Received: a file with the "
                f"shape {shape}"
            )
        value = np.asarray(store[weight.name])
        if not np.isfinite(value).all():
            raise ValueError(
                f"The weight '{weight.name}' of layer '{self.name}' should "
                "be numbers. Received: a file with values that are not finite"
            )
        return value


def clone(initializer):
    """A copy, for a second weight of one shape.

    One random initializer gives one shape the same numbers each time. A copy
    gives others, unless it has a seed.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    return type(initializer).from_config(initializer.get_config())


def serialized(layer, *names):
    """The configurations of a layer's Keras objects, by their names.

    Args:
        layer: the layer.
        *names: attributes whose names end in `initializer`, `regularizer` or
            `constraint`.
    """
    return {
        name: getattr(keras, f"{name.split('_')[-1]}s").serialize(
            getattr(layer, name)
        )
        for name in names
    }
