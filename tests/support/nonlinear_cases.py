"""Cases of nonlinear scans, for the tests of several kernels."""

import keras
import numpy as np

from keras_linrec import activations

# Those that all kernels have, on GPUs too.
ACTIVATIONS = {
    "linear": keras.activations.linear,
    "relu": keras.activations.relu,
    "leaky_relu": activations.leaky_relu,
    "tanh": keras.activations.tanh,
    "sigmoid": keras.activations.sigmoid,
    "gelu": keras.activations.gelu,
}


def random_operands(
    dynamics,
    sizes,
    linear=False,
    rank=0,
    per_step=None,
    leading=(),
    resets=False,
):
    """The `Operands` of a nonlinear scan, as arrays.

    Args:
        dynamics: `Dynamics`.
        sizes: batch, time, features, units.
        linear: whether there is a matrix A.
        rank: the rank of I - R, or 0 for a whole R.
        per_step: whether each step has a size of its own. Defaults to
            `None`, if there is a gate.
        leading: axes of systems.
        resets: whether the state is dropped: before every step of the first
            row, before the last step of the second, at random elsewhere.
    """
    batch, time, features, units = sizes
    rng = np.random.default_rng(0)
    is_modrelu = dynamics.activation is activations.modrelu
    driven = (1 + dynamics.gated) * units
    per_step = dynamics.gated if per_step is None else per_step
    shapes = (
        (batch, time, features),
        (features, driven),
        (driven,),
        (units, rank or (1 + linear) * units),
        (rank, units),
        (batch, time) if per_step else (1, 1),
        (units // 2 if is_modrelu else 0,),
        (batch, time) if resets else (0, 0),
        (batch, units),
    )
    scale = {1: features**-0.5, 3: 0.5 * units**-0.5, 4: units**-0.5}
    arrays = [
        scale.get(place, 1.0) * rng.uniform(-0.7, 0.7, (*leading, *shape))
        for place, shape in enumerate(shapes)
    ]
    if resets:
        marks = arrays[7] > 0.4
        marks[..., 0, :] = True
        marks[..., 1:2, :] = np.arange(time) == time - 1
        arrays[7] = marks.astype(float)
    return arrays
