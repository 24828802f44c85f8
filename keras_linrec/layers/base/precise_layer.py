"""Layers whose parameters keep float32, and are saved by name."""

import math
import warnings
import zlib

import keras
import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.layers.base.set_later import SetLater
from keras_linrec.layers.base.torch_module import SaysIfUnbuilt
from keras_linrec.stored_values import checked_value
from keras_linrec.validation import is_finite
from keras_linrec.validation import refuse_keras_arguments

# An upper limit to the entries of a weight that catches mistaken sizes.
_LARGEST_WEIGHT = 2**31


class PreciseLayer(SetLater, SaysIfUnbuilt, keras.layers.Layer):
    """A layer whose parameters are float32 under any dtype policy.

    Under a float64 policy they are float64.
    """

    def __init__(self, **kwargs: types.Unpack[types.LayerArguments]):
        refuse_keras_arguments(type(self).__name__, kwargs)
        # Autocasting would round states and parameters to 16 bits.
        super().__init__(autocast=False, **kwargs)

    @property
    def recurrence_dtype(self):
        """float32, or float64 under a float64 policy."""
        return "float64" if self.variable_dtype == "float64" else "float32"

    def add_parameter(self, name, shape, initializer, **kwargs):
        """Create a weight of the recurrence's dtype."""
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

    def add_kernel(self, name, shape, initializer=None):
        """A weight with the layer's kernel regulariser and constraint.

        Args:
            name: string.
            shape: tuple of integers.
            initializer: defaults to `None`, the layer's `kernel_initializer`.
        """
        return self.add_parameter(
            name,
            shape,
            drawn_apart(initializer or self.kernel_initializer, name),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )


def warn_of_infinite(layer):
    """Warn if a layer that is saved has weights that are not finite."""
    weights = [weight for weight in layer.weights if not is_finite(weight)]
    if not weights:
        return
    names = ", ".join(f"'{weight.name}'" for weight in weights)
    warnings.warn(
        f"Layer '{layer.name}' is saved with values that are not finite in "
        f"{names}. Only `keras_linrec.saving.load_model` and "
        "`load_weights`, with `require_finite=False`, load such a file.",
        RuntimeWarning,
        stacklevel=3,
    )


class NumberedWeights:
    """A mixin for layers whose weights are saved by number, as in Keras."""

    def save_own_variables(self, store):
        super().save_own_variables(store)
        warn_of_infinite(self)

    def load_own_variables(self, store):
        weights = {str(number): w for number, w in enumerate(self.weights)}
        # Of another count, which Keras refuses, nothing is read.
        if len(store.keys()) == len(weights):
            owner = f"layer '{self.name}'"
            store = {
                key: checked_value(store, key, weight, owner)
                for key, weight in weights.items()
            }
        super().load_own_variables(store)


class NamedWeights:
    """A mixin for layers whose weights are saved by name."""

    # Why the weights of a file could not be loaded.
    _failure = None

    def _run_time_variables(self):
        """Variables that are neither saved nor listed as weights."""
        return []

    @property
    def weights(self):
        """The weights, all of which are saved.

        Variables of the run, such as the states of a stateful layer, are only
        among the `variables`, like Keras' random seeds.
        """
        hidden = {id(variable) for variable in self._run_time_variables()}
        return [w for w in super().weights if id(w) not in hidden]

    def _own_weights(self):
        """The weights without those of layers within, which Keras visits."""
        own = {
            id(weight)
            for weight in (
                *self._trainable_variables,
                *self._non_trainable_variables,
            )
        }
        return [weight for weight in self.weights if id(weight) in own]

    def save_own_variables(self, store):
        for weight in self._own_weights():
            store[weight.name] = weight
        warn_of_infinite(self)

    def load_own_variables(self, store):
        if self._failure and not store.keys():
            # Keras comes back to a layer that failed by each other path to
            # it, with nothing, and reports the last error.
            raise ValueError(self._failure)
        try:
            self._load_checked(store)
        except ValueError as failure:
            self._failure = str(failure)
            raise
        self._failure = None

    def _load_checked(self, store):
        weights = self._own_weights()
        expected = sorted(weight.name for weight in weights)
        if sorted(store.keys()) != expected:
            raise ValueError(
                f"Layer '{self.name}' has the weights {expected}. "
                f"Received: a file with {sorted(store.keys())}"
            )
        # All are checked before the first is assigned.
        owner = f"layer '{self.name}'"
        values = [
            checked_value(store, weight.name, weight, owner)
            for weight in weights
        ]
        for weight, value in zip(weights, values):
            weight.assign(value)


def uniform_over_fan_in():
    """Uniform numbers between -+1/sqrt(inputs), as PyTorch's layers start."""
    # Its limit is sqrt(3 scale / fan_in).
    return keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")


def drawn_apart(initializer, place):
    """A copy of an initializer that draws numbers of its own.

    A random initializer gives the same numbers whenever it is called with the
    same shape; so does a plain copy, if it has a seed.

    Args:
        initializer: an initializer, or a function, which is returned as it is.
        place: string, where the numbers go, different for every place.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    config = initializer.get_config()
    # Without a seed nothing is random, and a `SeedGenerator`, a dictionary
    # here, gives other numbers at each call already.
    if not isinstance(config.get("seed", {}), int | None):
        return initializer
    if config["seed"] is not None:
        config["seed"] = (config["seed"] + zlib.crc32(place.encode())) % 2**31
    return type(initializer).from_config(config)


def given_values(values):
    """An initializer that returns an array."""

    def initialize(shape, dtype=None):
        # A copy: PyTorch refuses arrays that are read-only.
        return ops.convert_to_tensor(np.array(values, "float64"), dtype=dtype)

    return initialize


def one_by_one(initializer, place):
    """An initializer of a stack of matrices, each drawn as if it were alone.

    Keras' initializers would take the first axis of the whole stack for that
    of a convolution's window, and make the numbers that much smaller.

    Args:
        initializer: that of a single matrix.
        place: string, as for `drawn_apart`.
    """

    def initialize(shape, dtype=None):
        matrices = (
            drawn_apart(initializer, f"{place}/{index}")(shape[1:], dtype)
            for index in range(shape[0])
        )
        return ops.stack(list(matrices))

    return initialize


def serialized(layer, *names):
    """The configurations of a layer's Keras objects, by name.

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
