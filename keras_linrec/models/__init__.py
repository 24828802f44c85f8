"""Blocks and whole models."""

from keras_linrec.models.recurrent_block import RecurrentBlock as RecurrentBlock
from keras_linrec.models.residual_block import ResidualBlock as ResidualBlock
from keras_linrec.models.sequence_classifier import (
    SequenceClassifier as SequenceClassifier,
)
from keras_linrec.models.sequence_regressor import (
    SequenceRegressor as SequenceRegressor,
)
