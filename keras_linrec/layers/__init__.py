"""The units, one file each."""

from keras_linrec.layers.lssl import LSSL as LSSL
from keras_linrec.layers.rotrnn import RotRNN as RotRNN
