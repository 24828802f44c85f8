"""Blocks and whole models."""

from keras_linrec.models.residual_block import ResidualBlock as ResidualBlock
from keras_linrec.models.sequence_model import (
    SequenceClassifier as SequenceClassifier,
)
from keras_linrec.models.sequence_model import (
    SequenceRegressor as SequenceRegressor,
)
