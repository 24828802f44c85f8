"""Models from the layers that a recipe lists."""

import inspect

import keras
from common import lstm

from keras_linrec import layers
from keras_linrec import models


def gru(units, **arguments):
    """A GRU in its fastest form on CPUs."""
    if keras.backend.backend() == "torch":
        arguments["use_cudnn"] = False
    return keras.layers.GRU(units, **arguments)


# Units that a `SequenceModel` does not know by name.
OTHERS = {"lstm": lstm, "gru": gru}


def build(task, listed):
    """A model of the listed layers, one after another.

    Args:
        task: the `Task` that gives the inputs.
        listed: list of the names of layers and dictionaries of their
            arguments.
    """
    inputs = task.keras_inputs()
    others = {n: v for n, v in inputs.items() if n != "sequences"}
    outputs = inputs["sequences"]
    for name, arguments in listed:
        layer = make_layer(name, arguments, task)
        known = inspect.signature(layer.call).parameters
        given = {n: v for n, v in others.items() if n in known}
        outputs = layer(outputs, **given)
    return keras.Model(inputs, outputs)


def make_layer(name, arguments, task):
    arguments = dict(arguments)
    if name == "SequenceClassifier":
        unit = arguments.get("unit")
        if unit in OTHERS:
            arguments["unit"] = OTHERS[unit](
                return_sequences=True, **arguments.pop("unit_arguments")
            )
        return models.SequenceClassifier(task.num_classes, **arguments)
    if name in OTHERS:
        return OTHERS[name](**arguments)
    return getattr(layers, name, getattr(keras.layers, name, None))(**arguments)
