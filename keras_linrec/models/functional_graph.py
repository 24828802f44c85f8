"""The calls in a functional model."""

from typing import NamedTuple

import keras


class Call(NamedTuple):
    """One call of a layer or another operation.

    Symbolic tensors among the arguments are inputs of the graph or outputs of
    earlier calls.
    """

    operation: keras.Operation
    args: tuple
    kwargs: dict
    outputs: list


def calls_of(model):
    """A model's inputs, its calls in order of computation, and its outputs.

    The nodes of Keras' graphs are not public (3.12 to 3.15;
    https://github.com/keras-team/keras/issues/19278), but `clone_model`
    reports each call. The clone shares all layers and is discarded.
    """
    calls = []

    def record(operation, *args, **kwargs):
        outputs = operation(*args, **kwargs)
        calls.append(Call(operation, args, kwargs, keras.tree.flatten(outputs)))
        return outputs

    # Clone a plain model: the original may be compiled with something that
    # cannot be copied.
    plain = keras.Model(model.inputs, model.outputs, name=model.name)
    copy = keras.models.clone_model(
        plain, clone_function=lambda layer: layer, call_function=record
    )
    return copy.inputs, calls, copy.outputs


def run_through(model, inputs, apply):
    """Evaluate a model with `apply(operation, *args, **kwargs)` for its calls.

    Args:
        model: a functional model, or a `keras.Function`.
        inputs: a nest of any objects, in the order of `model.inputs`.
        apply: function that returns a nest of any objects, `None` included.

    Returns:
        The object in place of the model's output, or a list for several.
    """
    graph_inputs, calls, graph_outputs = calls_of(model)
    values = {}

    def assign(tensors, nest):
        values.update(zip(map(id, tensors), keras.tree.flatten(nest)))

    def value(part):
        return values.get(id(part), part)

    assign(graph_inputs, inputs)
    for call in calls:
        args, kwargs = keras.tree.map_structure(value, (call.args, call.kwargs))
        assign(call.outputs, apply(call.operation, *args, **kwargs))
    outputs = [values[id(tensor)] for tensor in graph_outputs]
    return outputs if len(outputs) > 1 else outputs[0]
