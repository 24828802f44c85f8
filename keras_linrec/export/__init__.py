"""Whole models one step at a time: states in, states out."""

from keras_linrec.export.step_model import StepModel as StepModel
from keras_linrec.export.step_model import export_step as export_step
