"""The units, one file each."""

from keras_linrec.layers.antisymmetric_rnn import (
    AntisymmetricRNN as AntisymmetricRNN,
)
from keras_linrec.layers.antisymmetric_rnn import (
    AntisymmetricRNNCell as AntisymmetricRNNCell,
)
from keras_linrec.layers.bidirectional import Bidirectional as Bidirectional
from keras_linrec.layers.ldstack import LDStack as LDStack
from keras_linrec.layers.linear_dynamical_system import (
    LinearDynamicalSystem as LinearDynamicalSystem,
)
from keras_linrec.layers.lipschitz_rnn import LipschitzRNN as LipschitzRNN
from keras_linrec.layers.lipschitz_rnn import (
    LipschitzRNNCell as LipschitzRNNCell,
)
from keras_linrec.layers.lru import LRU as LRU
from keras_linrec.layers.lssl import LSSL as LSSL
from keras_linrec.layers.orthogonal_rnn import OrthogonalRNN as OrthogonalRNN
from keras_linrec.layers.orthogonal_rnn import (
    OrthogonalRNNCell as OrthogonalRNNCell,
)
from keras_linrec.layers.rnn import RNN as RNN
from keras_linrec.layers.rotrnn import RotRNN as RotRNN
