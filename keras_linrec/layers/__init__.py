"""The units: a file each, or a folder; what they share is in `base`."""

from keras_linrec.layers.antisymmetric_rnn import (
    AntisymmetricRNN as AntisymmetricRNN,
)
from keras_linrec.layers.antisymmetric_rnn import (
    AntisymmetricRNNCell as AntisymmetricRNNCell,
)
from keras_linrec.layers.bidirectional import Bidirectional as Bidirectional
from keras_linrec.layers.causal_convolution import (
    CausalConvolution as CausalConvolution,
)
from keras_linrec.layers.delta_net import DeltaNet as DeltaNet
from keras_linrec.layers.ldstack.layer import LDStack as LDStack
from keras_linrec.layers.linear_dynamical_system.layer import (
    LinearDynamicalSystem as LinearDynamicalSystem,
)
from keras_linrec.layers.linoss import LinOSS as LinOSS
from keras_linrec.layers.lipschitz_rnn.layer import LipschitzRNN as LipschitzRNN
from keras_linrec.layers.lipschitz_rnn.layer import (
    LipschitzRNNCell as LipschitzRNNCell,
)
from keras_linrec.layers.lru import LRU as LRU
from keras_linrec.layers.lssl.layer import LSSL as LSSL
from keras_linrec.layers.mamba2 import Mamba2 as Mamba2
from keras_linrec.layers.min_gru import MinGRU as MinGRU
from keras_linrec.layers.min_lstm import MinLSTM as MinLSTM
from keras_linrec.layers.orthogonal_rnn import OrthogonalRNN as OrthogonalRNN
from keras_linrec.layers.orthogonal_rnn import (
    OrthogonalRNNCell as OrthogonalRNNCell,
)
from keras_linrec.layers.rglru import RGLRU as RGLRU
from keras_linrec.layers.rnn import RNN as RNN
from keras_linrec.layers.rotrnn import RotRNN as RotRNN
from keras_linrec.layers.s4d import S4D as S4D
from keras_linrec.layers.s5 import S5 as S5
