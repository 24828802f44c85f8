"""The normalizations of blocks and models."""

from typing import get_args

import keras
from keras import ops

from keras_linrec import types
from keras_linrec.ops.masks.packing import zero_masked
from keras_linrec.validation import require_choice

NORMALIZATIONS = get_args(types.Normalization)
# Of the moving statistics, which average over many steps of each batch and are
# precise after few batches. With Keras' 0.99 they lagged: on spoken digits
# (speech-rotrnn of examples/reproduce.py), 73% after three epochs where the
# statistics of the batch gave 98%.
MOMENTUM = 0.9


def make_norm(normalization, **arguments):
    """The layer that a name of `NORMALIZATIONS` stands for."""
    require_choice("normalization", normalization, NORMALIZATIONS)
    if normalization == "batch":
        return keras.layers.BatchNormalization(momentum=MOMENTUM, **arguments)
    if normalization == "layer":
        return keras.layers.LayerNormalization(**arguments)
    norm = keras.layers.RMSNormalization(**arguments)
    # It is applied to each step separately, but lacks supports_masking.
    norm.supports_masking = True
    return norm


def normalize(norm, inputs, mask=None, training=None):
    """Apply a layer of `make_norm` to sequences or to one step of them.

    Args:
        norm: the layer.
        inputs: (batch, time, features), or (batch, features) for one step.
        mask: (batch, time), true where a step counts, or `None`. Batch
            normalization takes its mean and variance over these steps.
        training: whether batch normalization uses the statistics of the batch
            and updates the moving ones. Defaults to `None`, as the call around
            it.
    """
    if not isinstance(norm, keras.layers.BatchNormalization):
        return norm(inputs)
    if len(inputs.shape) == 2:
        # It accepts only the rank that it was built for.
        return norm(inputs[:, None], training=False)[:, 0]
    if mask is None:
        return norm(inputs, training=training)
    mask = ops.cast(mask, "bool")
    # It multiplies masked steps by zero, which does not remove NaN.
    inputs = zero_masked(inputs, mask)
    return norm(inputs, training=training, mask=mask)
