"""What PyTorch keeps for the gradient, besides inputs and outputs."""

import math

import keras

from keras_linrec import layers
from keras_linrec.models.cost_parts import states_of
from keras_linrec.models.recurrent_block import RecurrentBlock


def kept_bytes(parts, training):
    """The bytes that the parts of a model keep in training.

    Args:
        parts: list, in the order in which they are called.
        training: boolean. Without it, those of the largest part as it is
            called.
    """
    if not training:
        return max(
            part.itemsize * (numbers_in(part.inputs) + numbers_in(part.outputs))
            for part in parts
        )
    first = parts[0]
    return first.itemsize * numbers_in(first.inputs) + sum(
        part.itemsize * (numbers_in(part.outputs) + _kept_within(part))
        for part in parts
    )


def _kept_within(part):
    """Numbers that a unit keeps besides its inputs and outputs."""
    for kind, kept_per_step in _KEPT_PER_STEP:
        if isinstance(part.layer, kind):
            steps = math.prod(part.outputs.shape[:-1])
            return steps * kept_per_step(part.layer)
    return 0


def _columns(layer):
    """The outputs of all matrices that are multiplied by the inputs."""
    rows = layer.get_build_config()["input_shape"][-1]
    kernels = [w.shape for w in layer.weights if "kernel" in w.name]
    return sum(shape[-1] for shape in kernels if shape[0] == rows)


def _sum_of_states(layer):
    return sum(math.prod(state.shape) for state in states_of(layer))


def _channels(layer):
    return math.prod(layer.feedthrough.shape)


def _kept_in_recurrent_block(block):
    # Both branches before and after what they apply, and their product.
    width = block.gate_kernel.shape[-1]
    return 6 * width + sum(
        kept(block.unit)
        for kind, kept in _KEPT_PER_STEP
        if isinstance(block.unit, kind)
    )


# As measured on PyTorch; the others keep nothing to speak of.
_KEPT_PER_STEP = (
    ((layers.LSSL, layers.S4D), _channels),
    (layers.LinOSS, lambda layer: 3 * _sum_of_states(layer) // 2),
    (layers.LDStack, _sum_of_states),
    (layers.MinGRU, lambda layer: 2 * layer.gate_kernel.shape[-1]),
    (layers.MinLSTM, lambda layer: 3 * layer.forget_kernel.shape[-1]),
    (layers.RGLRU, lambda layer: 2 * math.prod(layer.gate_bias.shape)),
    ((layers.DeltaNet, layers.Mamba2), lambda layer: 5 * _columns(layer)),
    (keras.layers.LSTM, lambda layer: 7 * layer.units),
    (keras.layers.GRU, lambda layer: 8 * layer.units),
    (keras.layers.SimpleRNN, lambda layer: layer.units),
    (RecurrentBlock, _kept_in_recurrent_block),
)


def numbers_in(tensors):
    return sum(math.prod(one.shape) for one in keras.tree.flatten(tensors))
