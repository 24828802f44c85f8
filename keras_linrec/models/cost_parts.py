"""The layers of a model in order, each with its inputs and outputs."""

from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from keras_linrec.models import step_averages
from keras_linrec.models.functional_graph import run_through
from keras_linrec.models.residual_block import ResidualBlock
from keras_linrec.models.sequence_model import SequenceModel


class Part(NamedTuple):
    """A layer as it is called, or an operation that keeps its outputs."""

    layer: Any
    inputs: Any
    outputs: Any
    itemsize: int


def input_specs(model, batch_size, time):
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


def parts_of(layer, inputs) -> Iterator[Part]:
    """Each layer within a layer, with its inputs and outputs."""
    if _is_graph(layer):
        yield from _parts_of_graph(layer, inputs)
    elif isinstance(layer, SequenceModel):
        yield from _parts_of_model(layer, inputs)
    elif isinstance(layer, ResidualBlock):
        yield from _parts_of_block(layer, inputs)
    elif isinstance(layer, keras.layers.Bidirectional):
        yield from parts_of(layer.forward_layer, inputs)
        yield from parts_of(layer.backward_layer, inputs)
    else:
        yield _part(layer, inputs)


def _parts_of_graph(model, inputs):
    found = []

    def apply(operation, *args, **kwargs):
        given = keras.tree.flatten((args, kwargs))
        given = [one for one in given if isinstance(one, keras.KerasTensor)]
        outputs = operation.compute_output_spec(*args, **kwargs)
        if _has_parts(operation) or is_recurrent(operation):
            found.extend(parts_of(operation, given[0]))
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
        yield from parts_of(block, inner)
    if model.norm is not None:
        yield _part(model.norm, inner)
    if model.pooling is not None:
        inner = keras.KerasTensor(
            (inner.shape[0], model.units), model.head.compute_dtype
        )
    yield _part(model.head, inner)


def _parts_of_block(block, sequences):
    yield _part(block.norm, sequences)
    yield from parts_of(block.unit, sequences)
    if block._is_activated:
        yield _made(None, sequences, sequences)
    for dense in block._dense_parts().values():
        yield _part(dense, sequences)
    # The sum with the block's inputs.
    yield _made(None, sequences, sequences)


def _part(layer, inputs):
    if is_recurrent(layer):
        outputs = _sequences(inputs, _features(layer, inputs), inputs.dtype)
    else:
        outputs = layer.compute_output_spec(inputs)
    return _made(layer, inputs, outputs)


def _made(layer, inputs, outputs):
    first = keras.tree.flatten(outputs)[0]
    dtype = getattr(layer, "compute_dtype", None) or first.dtype
    return Part(layer, inputs, outputs, item_size(dtype))


def _sequences(like, features, dtype):
    return keras.KerasTensor((*like.shape[:-1], features), dtype)


def is_recurrent(layer):
    return hasattr(layer, "get_initial_state")


def _features(layer, sequences):
    """Those of the outputs, whether all steps or the last is returned."""
    shape = layer.compute_output_shape(sequences.shape)
    return (shape[0] if isinstance(shape[0], tuple) else shape)[-1]


def states_of(layer):
    """The states of one row, or `None` for a layer that cannot stream."""
    if not is_recurrent(layer):
        return []
    try:
        return keras.tree.flatten(layer.get_initial_state(batch_size=1))
    except ValueError:
        return None


def item_size(dtype):
    # Which NumPy does not know.
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
