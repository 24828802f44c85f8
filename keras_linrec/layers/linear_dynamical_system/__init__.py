"""Linear systems: their layer, and their canonical forms."""

from keras_linrec.layers.linear_dynamical_system.layer import (
    LinearDynamicalSystem as LinearDynamicalSystem,
)
