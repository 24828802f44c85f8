"""The Lipschitz unit: its layer, and how it stays stable."""

from keras_linrec.layers.lipschitz_rnn.layer import LipschitzRNN as LipschitzRNN
from keras_linrec.layers.lipschitz_rnn.layer import (
    LipschitzRNNCell as LipschitzRNNCell,
)
