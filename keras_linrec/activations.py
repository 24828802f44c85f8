"""Activations for units that keep the norm of their state."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_linrec import types

__all__ = [
    "get",
    "get_unary",
    "leaky_relu",
    "modrelu",
    "oplu",
    "require_even_units",
    "serialize",
]


@keras.saving.register_keras_serializable("keras_linrec")
def leaky_relu(x: types.Tensor) -> types.Tensor:
    """max(x / 10, x), the activation of Mhammedi et al. 2017.

    It is the default of `keras_linrec.layers.OrthogonalRNN`.

    Args:
        x: float tensor of any shape.

    Returns:
        A tensor of the shape and dtype of `x`.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import activations
    >>> y = activations.leaky_relu(np.array([-1.0, 2.0], "float32"))
    >>> [round(float(value), 3) for value in y]
    [-0.1, 2.0]
    """
    return ops.where(x > 0, x, 0.1 * x)


@keras.saving.register_keras_serializable("keras_linrec")
def oplu(x: types.Tensor) -> types.Tensor:
    """Sort each pair (x_2i, x_2i+1) into its maximum and its minimum.

    OPLU only permutes entries, so it preserves the norm of `x` and of the
    gradient (Chernodub and Nowicki 2016; Mhammedi et al. 2017, section 5.5).

    Args:
        x: float tensor, (..., features); the number of features is even.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        ValueError: if the number of features is odd.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import activations
    >>> y = activations.oplu(np.array([1.0, 2.0, 4.0, 3.0], "float32"))
    >>> [float(value) for value in y]
    [2.0, 1.0, 4.0, 3.0]
    """
    x = ops.convert_to_tensor(x)
    _require_pairs(x)
    pairs = ops.reshape(x, (*_leading(x), x.shape[-1] // 2, 2))
    first, second = pairs[..., 0], pairs[..., 1]
    swapped = first < second
    ordered = ops.stack(
        [
            ops.where(swapped, second, first),
            ops.where(swapped, first, second),
        ],
        axis=-1,
    )
    return ops.reshape(ordered, ops.shape(x))


@keras.saving.register_keras_serializable("keras_linrec")
def modrelu(x: types.Tensor, bias: types.Tensor) -> types.Tensor:
    """(|z| + bias) z / |z| where |z| + bias > 0, else 0 - Arjovsky et al. 2016.

    This is the real form (Mhammedi et al. 2017, section 3): the first half of
    `x` holds the real parts of the complex numbers z, the second half their
    imaginary parts in the same order. A modulus whose square underflows, below
    1e-19 in float32, counts as zero, and the result is zero.

    Args:
        x: float tensor, (..., 2 n).
        bias: float tensor, (n,).

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        ValueError: if the number of features is odd.

    Example: a bias of -1 shortens a number of modulus 5 to modulus 4.

    >>> import numpy as np
    >>> from keras_linrec import activations
    >>> z = np.array([3.0, 4.0], "float32")
    >>> y = activations.modrelu(z, bias=np.array([-1.0], "float32"))
    >>> [round(float(value), 4) for value in y]
    [2.4, 3.2]
    """
    x, bias = ops.convert_to_tensor(x), ops.convert_to_tensor(bias)
    _require_pairs(x)
    real, imag = ops.split(x, 2, axis=-1)
    square = real * real + imag * imag
    # At zero, the direction and the square root's derivative are undefined.
    modulus = ops.sqrt(ops.where(square > 0, square, 1.0))
    scale = 1.0 + bias / modulus
    keep = ops.logical_and(square > 0, scale > 0)
    scale = ops.where(keep, scale, 0.0)
    return ops.concatenate([scale * real, scale * imag], axis=-1)


def get(
    identifier: types.Identifier, name: str | None = "activation"
) -> Callable[..., Any] | None:
    """Return the activation for a name, a configuration or a function.

    Args:
        identifier: `"oplu"`, `"modrelu"`, or anything that
            `keras.activations.get` accepts.
        name: string, what an error calls the argument. Defaults to
            `"activation"`.

    Raises:
        ValueError: if there is no such activation.

    Example:

    >>> from keras_linrec import activations
    >>> activations.get("oplu") is activations.oplu
    True
    """
    for activation in OF_PAIRS:
        if isinstance(identifier, str) and identifier == activation.__name__:
            return activation
    try:
        return keras.activations.get(identifier)
    except (TypeError, ValueError) as failure:
        raise ValueError(
            f"`{name}` should be the name of an activation, its "
            "configuration, a function or None. "
            f"Received: {name}={identifier}"
        ) from failure


OF_PAIRS = (oplu, modrelu)

# Activations without a second argument.
OF_NUMBERS = (
    keras.activations.linear,
    keras.activations.relu,
    keras.activations.leaky_relu,
    keras.activations.tanh,
    keras.activations.sigmoid,
    keras.activations.gelu,
    leaky_relu,
    oplu,
)


def serialize(activation: types.Identifier) -> Any:
    """Return a configuration from which `get` restores the activation.

    Raises:
        ValueError: for a lambda, which could only be saved as code.
    """
    if getattr(activation, "__name__", "") == "<lambda>":
        raise ValueError(
            "A lambda cannot be saved: give the activation a name and "
            "register it with `keras.saving.register_keras_serializable`. "
            f"Received: activation={activation}"
        )
    return keras.activations.serialize(activation)


def get_unary(
    identifier: types.Identifier, name: str | None = "activation"
) -> Callable[..., Any] | None:
    """As `get`, for a function of one argument.

    Args:
        identifier: as in `get`.
        name: as in `get`.

    Raises:
        ValueError: if there is no such activation, or it takes a second
            argument.
    """
    activation = get(identifier, name)
    if activation is modrelu:
        raise ValueError(
            "'modrelu' has a bias of its own, for which there is "
            f"`OrthogonalRNN`. Received: {name}=modrelu"
        )
    return activation


def require_even_units(activation: types.Identifier, units: int) -> None:
    """Raise if an activation of pairs is used with an odd number of units."""
    if activation in OF_PAIRS and units % 2:
        raise ValueError(
            "`units` should be even for an activation of pairs. Received: "
            f"units={units}, activation={activation.__name__}"
        )


def _leading(x):
    return tuple(ops.shape(x))[:-1]


def _require_pairs(x):
    if x.shape[-1] % 2:
        raise ValueError(
            "An activation of pairs needs an even number of features. "
            f"Received: x.shape={tuple(x.shape)}"
        )
