"""Streaming forms of whole models: one time step, states in and out."""

from keras_linrec.export.step_model import StepModel
from keras_linrec.export.step_model import export_step

__all__ = [
    "StepModel",
    "export_step",
]
