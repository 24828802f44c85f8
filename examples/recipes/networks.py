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


@keras.saving.register_keras_serializable("keras_linrec_examples")
class Transformer(keras.layers.Layer):
    """A small causal transformer from tokens (batch, time) to features.

    Blocks of attention and of a feedforward network of four times the width,
    each after a layer normalization; positions are learned.

    Args:
        vocabulary: integer, the number of tokens.
        units: integer, the features.
        num_layers: integer, the blocks.
        num_heads: integer, the heads of attention.
        dropout: float. Defaults to 0.
    """

    def __init__(
        self, vocabulary, units, num_layers, num_heads, dropout=0.0, **kwargs
    ):
        super().__init__(**kwargs)
        self.arguments = {
            "vocabulary": vocabulary,
            "units": units,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "dropout": dropout,
        }
        self.embedding = keras.layers.Embedding(vocabulary, units)
        self.dropout = keras.layers.Dropout(dropout)
        self.blocks = [
            {
                "norm": keras.layers.LayerNormalization(),
                "attention": keras.layers.MultiHeadAttention(
                    num_heads, units // num_heads, dropout=dropout
                ),
                "second_norm": keras.layers.LayerNormalization(),
                "wide": keras.layers.Dense(4 * units, activation="gelu"),
                "narrow": keras.layers.Dense(units),
            }
            for _ in range(num_layers)
        ]
        self.norm = keras.layers.LayerNormalization()

    def build(self, tokens_shape):
        units = self.arguments["units"]
        shape = (*tokens_shape, units)
        self.positions = self.add_weight(
            shape=(tokens_shape[1], units),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="positions",
        )
        self.embedding.build(tokens_shape)
        for block in self.blocks:
            block["norm"].build(shape)
            block["attention"].build(shape, shape)
            block["second_norm"].build(shape)
            block["wide"].build(shape)
            block["narrow"].build((*tokens_shape, 4 * units))
        self.norm.build(shape)

    def call(self, tokens, training=False):
        features = self.embedding(tokens) + self.positions
        features = self.dropout(features, training=training)
        for block in self.blocks:
            read = block["norm"](features)
            heard = block["attention"](
                read, read, use_causal_mask=True, training=training
            )
            features = features + self.dropout(heard, training=training)
            read = block["second_norm"](features)
            change = block["narrow"](block["wide"](read))
            features = features + self.dropout(change, training=training)
        return self.norm(features)

    def compute_output_shape(self, tokens_shape):
        return (*tokens_shape, self.arguments["units"])

    def get_config(self):
        return {**super().get_config(), **self.arguments}


# Units that a `SequenceModel` does not know by name.
OTHERS = {"lstm": lstm, "gru": gru, "transformer": Transformer}


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
