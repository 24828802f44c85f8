"""Models from the layers that a recipe lists."""

import inspect

import keras
import numpy as np
from common import lstm

from keras_linrec import layers
from keras_linrec import models
from keras_linrec.initializers import HiPPO
from keras_linrec.layers.lssl.conversion import structured_transition


def gru(units, **arguments):
    """A GRU in its fastest form on CPUs."""
    if keras.backend.backend() == "torch":
        arguments["use_cudnn"] = False
    return keras.layers.GRU(units, **arguments)


@keras.saving.register_keras_serializable("keras_linrec_examples")
class TorchLSTM(keras.layers.Layer):
    """`torch.nn.LSTM` as a Keras layer, on PyTorch alone.

    Its forget gates start with a bias of 1, as in Keras: PyTorch's own start
    about 0, from where a state loses half of itself with every step.

    It takes no mask: padding behind a sequence changes no output before it.

    Args:
        units: integer, the features of the outputs.
        return_sequences: boolean, whether to give the outputs of all steps or
            of the last. Defaults to `False`.
    """

    def __init__(self, units, return_sequences=False, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.return_sequences = return_sequences
        self.supports_masking = True

    def build(self, sequences_shape):
        import torch

        # The gates come in the order input, forget, cell, output.
        forget = slice(self.units, 2 * self.units)
        module = torch.nn.LSTM(
            sequences_shape[-1], self.units, batch_first=True
        )
        with torch.no_grad():
            module.bias_ih_l0[forget] = 1.0
            module.bias_hh_l0[forget] = 0.0
        # Keras wraps it in a layer.
        self.module = module
        self.module.supports_masking = True

    def call(self, sequences):
        outputs, _ = self.module(sequences)
        return outputs if self.return_sequences else outputs[:, -1]

    def compute_output_shape(self, sequences_shape):
        batch_size, steps, _ = sequences_shape
        if self.return_sequences:
            return batch_size, steps, self.units
        return batch_size, self.units

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "return_sequences": self.return_sequences,
        }


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


@keras.saving.register_keras_serializable("keras_linrec_examples")
class RandomTransition(HiPPO):
    """An A of normal numbers for an `LSSL`, in place of one that remembers.

    Its entries have the variance 1 / N, and it is shifted so that the real
    parts of its eigenvalues are at most -1/2, as LagT's: unshifted, half of
    the states would grow with time.

    Args:
        seed: integer.
    """

    def __init__(self, seed=0):
        super().__init__()
        self.seed = seed
        # With them the layer's configuration holds this object.
        self.parameters = {"seed": seed}

    def structured(self, state_size):
        generator = np.random.default_rng(self.seed)
        matrix = generator.standard_normal((state_size, state_size))
        matrix /= np.sqrt(state_size)
        highest = np.linalg.eigvals(matrix).real.max()
        shift = (highest + 0.5) * np.eye(state_size)
        start, _ = structured_transition(matrix - shift)
        return start

    def get_config(self):
        return {"seed": self.seed}


# Units that a `SequenceModel` does not know by name.
OTHERS = {
    "lstm": lstm,
    "torch_lstm": TorchLSTM,
    "gru": gru,
    "transformer": Transformer,
}


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
