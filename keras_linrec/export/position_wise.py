"""Position-wise layers and operations, which treat every time step alike."""

from functools import cache

import keras
import numpy as np
from keras import layers
from keras import ops

# Position-wise unless their axes include time, their kernel spans several steps
# or they mask steps; see `mixes_steps` and `masks`.
_LAYERS = {
    layers.Activation,
    layers.ActivityRegularization,
    layers.Add,
    layers.AlphaDropout,
    layers.Average,
    layers.BatchNormalization,
    layers.Concatenate,
    layers.Conv1D,
    layers.Dense,
    layers.Dropout,
    layers.ELU,
    layers.Embedding,
    layers.GaussianDropout,
    layers.GaussianNoise,
    layers.Identity,
    layers.LayerNormalization,
    layers.LeakyReLU,
    layers.Maximum,
    layers.Minimum,
    layers.Multiply,
    layers.Normalization,
    layers.RMSNormalization,
    layers.ReLU,
    layers.Rescaling,
    layers.Softmax,
    layers.SpatialDropout1D,
    layers.Subtract,
    layers.TimeDistributed,
    layers.UnitNormalization,
}
_FUNCTIONS = (
    ops.absolute,
    ops.cos,
    ops.elu,
    ops.exp,
    ops.expm1,
    ops.gelu,
    ops.leaky_relu,
    ops.log,
    ops.log1p,
    ops.negative,
    ops.relu,
    ops.sigmoid,
    ops.silu,
    ops.sin,
    ops.softplus,
    ops.sqrt,
    ops.square,
    ops.tanh,
    lambda x: ops.cast(x, "int32"),
    lambda x: ops.clip(x, 0, 1),
    lambda x: ops.concatenate([x, x]),
)
_FUNCTIONS_OF_TWO = (
    ops.add,
    ops.divide,
    ops.maximum,
    ops.minimum,
    ops.multiply,
    ops.power,
    ops.subtract,
    ops.true_divide,
)


def is_known(operation):
    """Whether a layer or operation is known to be position-wise.

    Some are so in certain configurations only: see `mixes_steps`.
    """
    return type(operation) in _LAYERS | _operations()


def mixes_steps(operation, shape):
    """Whether a known operation mixes time steps in its configuration.

    Args:
        operation: a layer or another operation.
        shape: of its first input.
    """
    rank = len(shape)
    # With rank 2, for embeddings and single numbers, every axis is mixed.
    axes = keras.tree.flatten(getattr(operation, "axis", ()))
    return (
        any(axis % rank < 2 for axis in axes)
        or _is_wide(operation)
        or _activation_mixes_steps(operation, shape)
    )


def is_last_step(operation, args):
    """Whether an operation is `x[:, -1]`."""
    if type(operation) is not _indexing() or len(args) != 2:
        return False
    key = args[1]
    return isinstance(key, tuple) and key[:2] == (slice(None), -1)


def masks(layer):
    """Whether a layer creates a mask."""
    return isinstance(layer, layers.Masking) or getattr(
        layer, "mask_zero", False
    )


def is_mask(operation):
    """Whether an operation computes the mask of a layer, or part of it."""
    return type(operation) is _comparison()


def reason_against(operation):
    """Why a layer cannot run one step at a time."""
    if isinstance(operation, layers.Bidirectional):
        return "it reads the sequence from its end"
    if masks(operation):
        return (
            "it masks time steps. Set `drop_masks=True`, and skip masked "
            "steps, which leaves the states unchanged"
        )
    reason = getattr(operation, "_reason_against_steps", None)
    if reason is not None:
        return reason
    return (
        "it is not known to treat every time step alike. If it does, name its "
        "class in `position_wise`; if it has states, define its methods "
        "`get_initial_state(batch_size)` and `step(inputs, states)`"
    )


def _is_wide(layer):
    """Whether a convolution spans several steps."""
    sizes = [
        *getattr(layer, "kernel_size", ()),
        *getattr(layer, "strides", ()),
    ]
    channels_first = getattr(layer, "data_format", None) == "channels_first"
    return channels_first or any(size > 1 for size in sizes)


def _activation_mixes_steps(layer, shape):
    """Whether an activation, which may be any callable, reads other steps."""
    function = getattr(layer, "activation", None)
    if not callable(function):
        return False
    features = shape[2:]
    for name in ("units", "filters"):
        if hasattr(layer, name):
            features = (getattr(layer, name),)
    inputs = np.random.default_rng(0).standard_normal((1, 3, *features))
    inputs = inputs.astype("float32")
    try:
        whole = ops.convert_to_numpy(function(ops.convert_to_tensor(inputs)))
        step = function(ops.convert_to_tensor(inputs[:, 1:2]))
        step = ops.convert_to_numpy(step)
    except Exception:  # whatever a function of the user's may raise
        return True
    return step.shape != (1, 1, *whole.shape[2:]) or not np.allclose(
        whole[:, 1:2], step, rtol=1e-3, atol=1e-5, equal_nan=True
    )


# The classes behind `keras.ops` have no public names, but graphs contain them.


@cache
def _operations():
    return {
        *(_class_behind(function) for function in _FUNCTIONS),
        *(
            _class_behind(lambda x, function=function: function(x, x))
            for function in _FUNCTIONS_OF_TWO
        ),
    }


@cache
def _indexing():
    return _class_behind(lambda x: x[:, -1])


@cache
def _comparison():
    return _class_behind(lambda x: ops.not_equal(x, 0))


def _class_behind(function):
    inputs = keras.KerasTensor((1, 1))
    return type(keras.Function(inputs, function(inputs)).operations[-1])
