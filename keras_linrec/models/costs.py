"""What a model costs: weights, arithmetic and memory, from its layers."""

import math
from typing import NamedTuple

import keras

from keras_linrec.models.cost_parts import input_specs
from keras_linrec.models.cost_parts import is_recurrent
from keras_linrec.models.cost_parts import item_size
from keras_linrec.models.cost_parts import parts_of
from keras_linrec.models.cost_parts import states_of
from keras_linrec.models.kept_bytes import kept_bytes
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
    parts = list(parts_of(model, input_specs(model, batch_size, time)))
    return Cost(
        parameters=model.count_params(),
        multiply_adds=sum(map(_multiply_adds, parts)),
        weight_bytes=sum(map(_bytes_of, model.weights)),
        kept_bytes=kept_bytes(parts, training),
        state_bytes=_state_bytes(model, parts, batch_size),
    )


def _multiply_adds(part):
    layer = part.layer
    if not getattr(layer, "weights", None):
        return 0
    if isinstance(layer, keras.layers.Embedding):
        return 0
    positions = math.prod(keras.tree.flatten(part.outputs)[0].shape[:-1])
    states = states_of(layer) or ()
    numbers = sum(math.prod(state.shape) for state in states)
    return positions * (layer.count_params() + numbers)


def _state_bytes(model, parts, batch_size):
    recurrent = [part.layer for part in parts if is_recurrent(part.layer)]
    if is_recurrent(model):
        recurrent = [model]
    rows = [states_of(layer) for layer in recurrent]
    backwards = [getattr(one, "go_backwards", False) for one in recurrent]
    if None in rows or any(backwards):
        return None
    return batch_size * sum(map(_bytes_of, keras.tree.flatten(rows)))


def _bytes_of(array):
    dtype = keras.backend.standardize_dtype(array.dtype)
    return math.prod(array.shape) * item_size(dtype)
