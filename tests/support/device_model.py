"""A model of all kinds of units, and its training, for `test_devices`."""

import random

import keras
import numpy as np

from keras_linrec.layers import LSSL
from keras_linrec.layers import S5
from keras_linrec.layers import DeltaNet
from keras_linrec.layers import LDStack
from keras_linrec.layers import LinearDynamicalSystem
from keras_linrec.layers import LinOSS
from keras_linrec.layers import LipschitzRNN
from keras_linrec.layers import MinGRU
from keras_linrec.layers import OrthogonalRNN
from keras_linrec.layers import RotRNN

BATCH, TIME, FEATURES, UNITS = 8, 24, 3, 6
LEARNING_RATE = 0.003


def build(seed=0, kept=True):
    """The model; `kept` is whether one layer caches values between calls."""
    # `keras.utils.set_random_seed` imports TensorFlow, which takes seconds.
    random.seed(seed)
    fixed = {"trainable_transition": False, "trainable_timescale": False}
    return keras.Sequential(
        [
            keras.Input((TIME, FEATURES)),
            LSSL(UNITS, state_size=4, **(fixed if kept else {})),
            RotRNN(state_size=8, num_heads=2, name="rot_rnn"),
            LDStack(state_size=6, eigenvalues="log_polar"),
            LinearDynamicalSystem(
                state_size=6, eigenvalues="unit", name="modal"
            ),
            OrthogonalRNN(UNITS, reflections=3, return_sequences=True),
            LipschitzRNN(UNITS, return_sequences=True),
            MinGRU(UNITS, return_sequences=True),
            DeltaNet(UNITS, num_heads=2, key_dim=4, value_dim=4),
            S5(UNITS, state_size=4),
            LinOSS(UNITS, state_size=4),
            # Without it, outputs so small would hardly train.
            keras.layers.LayerNormalization(),
            keras.layers.Dense(2),
        ]
    )


def data():
    generator = np.random.default_rng(0)
    sequences = generator.standard_normal((BATCH, TIME, FEATURES))
    sequences = sequences.astype("float32")
    return sequences, np.cumsum(sequences[..., :2], axis=1) / TIME**0.5


def compiled(model):
    # SGD: Adam would hide a gradient that is too large by a factor.
    model.compile(keras.optimizers.SGD(LEARNING_RATE), "mse")
    return model


def train(model):
    """The losses of a few training steps, each on all the data."""
    model = compiled(model)
    return [float(model.train_on_batch(*data())) for _ in range(4)]
