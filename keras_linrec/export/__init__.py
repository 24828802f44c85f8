"""Streaming forms of whole models: one time step, states in and out."""

from keras_linrec.export.step_model import StepModel as StepModel
from keras_linrec.export.step_model import export_step as export_step
