"""Functions of float64 that Keras computes in float32 on JAX."""

from jax.numpy import cos as cos
from jax.numpy import sin as sin
from jax.numpy import tanh as tanh
