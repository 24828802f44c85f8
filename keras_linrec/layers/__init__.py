"""The units: a file each, or a folder; what they share is in `base`."""

from keras_linrec.layers.antisymmetric_rnn import AntisymmetricRNN
from keras_linrec.layers.antisymmetric_rnn import AntisymmetricRNNCell
from keras_linrec.layers.bidirectional import Bidirectional
from keras_linrec.layers.causal_convolution import CausalConvolution
from keras_linrec.layers.delta_net import DeltaNet
from keras_linrec.layers.ldstack.layer import LDStack
from keras_linrec.layers.linear_dynamical_system.layer import (
    LinearDynamicalSystem,
)
from keras_linrec.layers.linoss import LinOSS
from keras_linrec.layers.lipschitz_rnn.layer import LipschitzRNN
from keras_linrec.layers.lipschitz_rnn.layer import LipschitzRNNCell
from keras_linrec.layers.lru import LRU
from keras_linrec.layers.lssl.layer import LSSL
from keras_linrec.layers.mamba2 import Mamba2
from keras_linrec.layers.min_gru import MinGRU
from keras_linrec.layers.min_lstm import MinLSTM
from keras_linrec.layers.orthogonal_rnn import OrthogonalRNN
from keras_linrec.layers.orthogonal_rnn import OrthogonalRNNCell
from keras_linrec.layers.rglru import RGLRU
from keras_linrec.layers.rnn import RNN
from keras_linrec.layers.rotrnn import RotRNN
from keras_linrec.layers.s4d import S4D
from keras_linrec.layers.s5 import S5

__all__ = [
    "AntisymmetricRNN",
    "AntisymmetricRNNCell",
    "Bidirectional",
    "CausalConvolution",
    "DeltaNet",
    "LDStack",
    "LRU",
    "LSSL",
    "LinOSS",
    "LinearDynamicalSystem",
    "LipschitzRNN",
    "LipschitzRNNCell",
    "Mamba2",
    "MinGRU",
    "MinLSTM",
    "OrthogonalRNN",
    "OrthogonalRNNCell",
    "RGLRU",
    "RNN",
    "RotRNN",
    "S4D",
    "S5",
]
