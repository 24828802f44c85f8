"""The calls that a functional model is made of."""

from typing import NamedTuple

import keras


class Call(NamedTuple):
    """A layer or another operation, called once.

    Symbolic tensors among the arguments are inputs of the graph or outputs of
    earlier calls.
    """

    operation: keras.Operation
    args: tuple
    kwargs: dict
    outputs: list


def calls_of(model):
    """A graph's inputs, its calls in an order of computation, its outputs.

    Keras promises nothing about the nodes of its graphs (3.12 to 3.15;
    https://github.com/keras-team/keras/issues/19278), but tells each call to
    whoever makes a copy. The copy shares all layers, and is thrown away.
    """
    calls = []

    def record(operation, *args, **kwargs):
        outputs = operation(*args, **kwargs)
        calls.append(Call(operation, args, kwargs, keras.tree.flatten(outputs)))
        return outputs

    # Not the model itself: it may be compiled with what cannot be copied.
    plain = keras.Model(model.inputs, model.outputs, name=model.name)
    copy = keras.models.clone_model(
        plain, clone_function=lambda layer: layer, call_function=record
    )
    return copy.inputs, calls, copy.outputs


def run_through(model, inputs, apply):
    """What a model gives where `apply(operation, *args, **kwargs)` calls.

    Args:
        model: a functional model, or a `keras.Function`.
        inputs: a nest of anything, in the order of `model.inputs`.
        apply: function. Of what it returns, a nest, `None` included, nothing
            is asked but that other calls take it.

    Returns:
        What stands for the model's output, or a list for its outputs.
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
