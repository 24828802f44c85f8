"""What a model costs: weights, arithmetic and memory, from its layers."""

import math
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from keras_linrec import layers
from keras_linrec.models import step_averages
from keras_linrec.models.functional_graph import run_through
from keras_linrec.models.recurrent_block import RecurrentBlock
from keras_linrec.models.residual_block import ResidualBlock
from keras_linrec.models.sequence_model import SequenceModel
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_count


class Cost(NamedTuple):
    """What a model costs: `cost` returns it, and describes the fields.

    Attributes:
        parameters: integer.
        multiply_adds: integer.
        weight_bytes: integer.
        kept_bytes: integer.
        state_bytes: integer, or `None`.
    """

    parameters: int
    multiply_adds: int
    weight_bytes: int
    kept_bytes: int
    state_bytes: int | None


class _Part(NamedTuple):
    """A layer as it is called, or an operation that keeps its outputs."""

    layer: Any
    inputs: Any
    outputs: Any
    itemsize: int


def cost(
    model: keras.Layer, batch_size: int, time: int, training: bool = True
) -> Cost:
    """What a model costs for batches of one size: arithmetic and memory.

    Nothing runs and nothing is allocated: the figures follow from the shapes
    of weights, inputs and outputs.

    - `parameters`: the number of weights, that of `count_params()`.
    - `multiply_adds`: those of one forward pass. At each step of a layer, one
      for each of its weights and one for each number of its states.
    - `weight_bytes`: of the weights. With gradients and the two moments of
      Adam, training needs four times as much.
    - `kept_bytes`: in training, what the layers keep for the gradient, mostly
      their outputs. Without training, the inputs and outputs of the largest
      layer.
    - `state_bytes`: of the states of a stream, between two steps. `None` for a
      model that cannot stream.

    `multiply_adds` and `kept_bytes` are estimates. A step multiplies 1 to 1.5
    times as much, up to 1.7 times in `LinearDynamicalSystem`, 3 in `LSSL` and
    3.8 in `LDStack`; a scan of whole sequences computes in another order, and
    is not counted. `kept_bytes` follows PyTorch, which keeps 0.75 to 1.3 times
    as much, more in an `S4D` with small batches. On a CPU, a training step
    adds 1 to 3 times `kept_bytes` to the memory of the process, on PyTorch and
    on JAX.

    Args:
        model: a model or layer that has been built: one of this package, a
            `Sequential` or a functional model of them and of Keras' layers.
            Any other model counts as a single layer.
        batch_size: integer, the number of sequences.
        time: integer, the number of steps of each.
        training: whether the model is trained. Defaults to `True`.

    Returns:
        A `Cost`, a named tuple of the five numbers.

    Raises:
        ValueError: for a model that has not been built, and for sizes that
            are not whole numbers from 1, or not those of the model's inputs.

    Example:

    >>> import keras_linrec
    >>> model = keras_linrec.models.SequenceClassifier(
    ...     num_classes=10, num_layers=4, units=32, unit="rotrnn"
    ... )
    >>> model.build((None, None, 1))
    >>> cost = keras_linrec.models.cost(model, batch_size=16, time=16000)
    >>> cost.parameters, cost.state_bytes
    (44490, 36992)
    >>> round(cost.kept_bytes / 1e6)  # megabytes
    853
    """
    require_count("batch_size", batch_size)
    require_count("time", time)
    require_bool("training", training)
    if not isinstance(model, keras.Layer) or not model.built:
        raise ValueError(
            "`model` should be a model or layer that has been built, by its "
            "first call or by `build`. Received: model="
            f"{getattr(model, 'name', model)}"
        )
    parts = list(_parts(model, _input_specs(model, batch_size, time)))
    return Cost(
        parameters=model.count_params(),
        multiply_adds=sum(map(_multiply_adds, parts)),
        weight_bytes=sum(map(_bytes_of, model.weights)),
        kept_bytes=_kept_bytes(parts, training),
        state_bytes=_state_bytes(model, parts, batch_size),
    )


def _input_specs(model, batch_size, time):
    """Symbolic inputs of the sizes that were asked for."""
    if _is_graph(model):
        shapes = [tensor.shape for tensor in model.inputs]
        dtypes = [tensor.dtype for tensor in model.inputs]
    else:
        shapes = [model.get_build_config()["input_shape"]]
        dtypes = [model.compute_dtype]
    specs = []
    for shape, dtype in zip(shapes, dtypes):
        wanted = (batch_size, time, *shape[2:])[: len(shape)]
        for name, fixed, size in zip(("batch_size", "time"), shape, wanted):
            # A layer does not keep to the length that it was built with.
            if _is_graph(model) and fixed not in (None, size):
                raise ValueError(
                    f"`{name}` should be {fixed}, that of the model's inputs. "
                    f"Received: {name}={size}"
                )
        specs.append(keras.KerasTensor(wanted, dtype))
    return specs if len(specs) > 1 else specs[0]


def _is_graph(model):
    return isinstance(model, keras.Sequential) or hasattr(model, "operations")


def _has_parts(layer):
    kinds = SequenceModel, ResidualBlock, keras.layers.Bidirectional
    return _is_graph(layer) or isinstance(layer, kinds)


# The layers of a model, in order.


def _parts(layer, inputs) -> Iterator[_Part]:
    """Each layer within a layer, with its inputs and outputs."""
    if _is_graph(layer):
        yield from _parts_of_graph(layer, inputs)
    elif isinstance(layer, SequenceModel):
        yield from _parts_of_model(layer, inputs)
    elif isinstance(layer, ResidualBlock):
        yield from _parts_of_block(layer, inputs)
    elif isinstance(layer, keras.layers.Bidirectional):
        yield from _parts(layer.forward_layer, inputs)
        yield from _parts(layer.backward_layer, inputs)
    else:
        yield _part(layer, inputs)


def _parts_of_graph(model, inputs):
    found = []

    def apply(operation, *args, **kwargs):
        given = keras.tree.flatten((args, kwargs))
        given = [one for one in given if isinstance(one, keras.KerasTensor)]
        outputs = operation.compute_output_spec(*args, **kwargs)
        if _has_parts(operation) or _is_recurrent(operation):
            found.extend(_parts(operation, given[0]))
        else:
            found.append(_made(operation, given, outputs))
        return outputs

    run_through(model, keras.tree.flatten(inputs), apply)
    return found


def _parts_of_model(model, sequences):
    yield _part(model.encoder, sequences)
    inner = _sequences(sequences, model.units, model.compute_dtype)
    for block, size in zip(model.blocks, (1, *model._pool_sizes)):
        if size > 1:
            batch, time, features = inner.shape
            time = step_averages.length_after(time, size)
            inner = keras.KerasTensor((batch, time, features), inner.dtype)
        yield from _parts(block, inner)
    if model.norm is not None:
        yield _part(model.norm, inner)
    if model.pooling is not None:
        inner = keras.KerasTensor(
            (inner.shape[0], model.units), model.head.compute_dtype
        )
    yield _part(model.head, inner)


def _parts_of_block(block, sequences):
    yield _part(block.norm, sequences)
    yield from _parts(block.unit, sequences)
    if block._is_activated:
        yield _made(None, sequences, sequences)
    for dense in block.dense_parts().values():
        yield _part(dense, sequences)
    # The sum with the block's inputs.
    yield _made(None, sequences, sequences)


def _part(layer, inputs):
    if _is_recurrent(layer):
        outputs = _sequences(inputs, _features(layer, inputs), inputs.dtype)
    else:
        outputs = layer.compute_output_spec(inputs)
    return _made(layer, inputs, outputs)


def _made(layer, inputs, outputs):
    first = keras.tree.flatten(outputs)[0]
    dtype = getattr(layer, "compute_dtype", None) or first.dtype
    return _Part(layer, inputs, outputs, _itemsize(dtype))


def _sequences(like, features, dtype):
    return keras.KerasTensor((*like.shape[:-1], features), dtype)


def _is_recurrent(layer):
    return hasattr(layer, "get_initial_state")


def _features(layer, sequences):
    """Those of the outputs, whether all steps or the last is returned."""
    shape = layer.compute_output_shape(sequences.shape)
    return (shape[0] if isinstance(shape[0], tuple) else shape)[-1]


# Arithmetic.


def _multiply_adds(part):
    layer = part.layer
    if not getattr(layer, "weights", None):
        return 0
    if isinstance(layer, keras.layers.Embedding):
        return 0
    positions = math.prod(keras.tree.flatten(part.outputs)[0].shape[:-1])
    states = sum(math.prod(state.shape) for state in _states(layer) or ())
    return positions * (layer.count_params() + states)


def _states(layer):
    """The states of one row, or `None` for a layer that cannot stream."""
    if not _is_recurrent(layer):
        return []
    try:
        return keras.tree.flatten(layer.get_initial_state(batch_size=1))
    except ValueError:
        return None


# Memory.


def _kept_bytes(parts, training):
    if not training:
        return max(
            part.itemsize * (_size(part.inputs) + _size(part.outputs))
            for part in parts
        )
    first = parts[0]
    return first.itemsize * _size(first.inputs) + sum(
        part.itemsize * (_size(part.outputs) + _kept_within(part))
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
    return sum(math.prod(state.shape) for state in _states(layer))


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
    ((keras.layers.LSTM, keras.layers.GRU), lambda layer: 8 * layer.units),
    (RecurrentBlock, _kept_in_recurrent_block),
)


def _state_bytes(model, parts, batch_size):
    recurrent = [part.layer for part in parts if _is_recurrent(part.layer)]
    if _is_recurrent(model):
        recurrent = [model]
    rows = [_states(layer) for layer in recurrent]
    backwards = [getattr(one, "go_backwards", False) for one in recurrent]
    if None in rows or any(backwards):
        return None
    return batch_size * sum(map(_bytes_of, keras.tree.flatten(rows)))


def _bytes_of(array):
    dtype = keras.backend.standardize_dtype(array.dtype)
    return math.prod(array.shape) * _itemsize(dtype)


def _itemsize(dtype):
    # Which NumPy does not know.
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _size(tensors):
    return sum(math.prod(one.shape) for one in keras.tree.flatten(tensors))
