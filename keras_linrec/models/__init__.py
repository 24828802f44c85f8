"""Blocks and whole models."""

from keras_linrec.models.costs import Cost
from keras_linrec.models.costs import cost
from keras_linrec.models.recurrent_block import RecurrentBlock
from keras_linrec.models.residual_block import ResidualBlock
from keras_linrec.models.sequence_classifier import SequenceClassifier
from keras_linrec.models.sequence_regressor import SequenceRegressor

__all__ = [
    "Cost",
    "RecurrentBlock",
    "ResidualBlock",
    "SequenceClassifier",
    "SequenceRegressor",
    "cost",
]
