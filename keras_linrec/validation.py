"""Checks of arguments, with errors that say what was expected."""

import numbers

import keras
import numpy as np

# An upper limit that catches mistaken sizes.
_LARGEST_COUNT = 2**24

_OWN_PARAMETERS = (
    "the recurrent weights are parameterised; the docstring names their "
    "initializers, regularizers and constraints."
)
_NO_BIAS = "the unit has no bias; follow it with a `keras.layers.Dense`."
_NO_GATES = "the unit has no such gate; leave the argument out."
_CHOICE_OF_KERNEL = (
    "the fastest kernel is chosen automatically; "
    "`keras_linrec.config.set_kernel` overrides the choice."
)
# The arguments of Keras' recurrent layers and cells that some unit here does
# not take, and what to do instead.
_INSTEAD = {
    "recurrent_activation": _NO_GATES,
    "unit_forget_bias": _NO_GATES,
    "reset_after": _NO_GATES,
    "recurrent_initializer": _OWN_PARAMETERS,
    "recurrent_regularizer": _OWN_PARAMETERS,
    "recurrent_constraint": _OWN_PARAMETERS,
    "use_bias": _NO_BIAS,
    "bias_initializer": _NO_BIAS,
    "bias_regularizer": _NO_BIAS,
    "bias_constraint": _NO_BIAS,
    # Of cells; every layer has the two.
    "dropout": "apply `keras.layers.Dropout` to the inputs of the loop.",
    "seed": "a cell draws no random numbers; leave the argument out.",
    "recurrent_dropout": (
        "dropping states would undo what a long memory keeps; use `dropout`, "
        "which drops input features."
    ),
    "unroll": "loops over time are compiled; leave the argument out.",
    "time_major": (
        "sequences have the shape (batch, time, features); transpose them with "
        "`keras.ops.swapaxes(sequences, 0, 1)`."
    ),
    "use_cudnn": _CHOICE_OF_KERNEL,
    "implementation": _CHOICE_OF_KERNEL,
}


def refuse_keras_arguments(owner, given):
    """Raise for an argument of Keras' recurrent layers that a unit lacks.

    Args:
        owner: string, the unit's class.
        given: dictionary, the arguments that the unit does not take itself.
    """
    for name in given:
        if name in _INSTEAD:
            raise ValueError(
                f"`{owner}` takes no argument `{name}`: {_INSTEAD[name]} "
                f"Received: {name}={given[name]}"
            )


def is_finite(values):
    """Whether all entries of an array, tensor or weight are numbers."""
    return bool(np.isfinite(keras.ops.convert_to_numpy(values)).all())


def require_call_arguments(layer, given, known):
    """Raise unless a layer's call takes all arguments that were given by name.

    The error is Python's `TypeError`, which every Keras layer raises here: code
    that looks for it, to find out what a layer takes, works with these layers
    too.

    Args:
        layer: the layer.
        given: the names of the arguments.
        known: the names that the call takes.
    """
    for name in given:
        if name not in known:
            # `sequences_mask` is for Keras alone.
            taken = ", ".join(
                f"`{one}`" for one in known if one != "sequences_mask"
            )
            raise TypeError(
                f"Layer '{layer.name}' ({type(layer).__name__}) takes no call "
                f"argument `{name}`. It takes: {taken or 'none by name'}"
            )


def require_count(name, value, optional=False):
    """Raise unless `value` is a positive integer."""
    if optional and value is None:
        return
    whole = isinstance(value, numbers.Integral) and value is not True
    if not whole or value < 1:
        expected = "a positive integer" + (" or None" if optional else "")
        raise ValueError(
            f"`{name}` should be {expected}. Received: {name}={value}"
        )
    if value > _LARGEST_COUNT:
        raise ValueError(
            f"`{name}` should be at most {_LARGEST_COUNT}. "
            f"Received: {name}={value}"
        )


def require_bool(name, value, optional=False):
    """Raise unless `value` is true or false."""
    if value is True or value is False or (optional and value is None):
        return
    wanted = "True, False or None" if optional else "True or False"
    raise ValueError(f"`{name}` should be {wanted}. Received: {name}={value}")


def require_between(name, value, low, high, ends="[]"):
    """Raise unless `value` is in the interval, with or without its ends."""
    fits = (
        isinstance(value, numbers.Real)
        and (low <= value if ends[0] == "[" else low < value)
        and (value <= high if ends[1] == "]" else value < high)
    )
    if not fits:
        raise ValueError(
            f"`{name}` should be a number in {ends[0]}{low}, {high}{ends[1]}. "
            f"Received: {name}={value}"
        )


def check_mask(name, mask, sequences):
    """Raise unless a mask has the batch and time of the sequences."""
    known = zip(mask.shape, sequences.shape[:2])
    if len(mask.shape) != 2 or any(
        one != other
        for one, other in known
        if one is not None and other is not None
    ):
        raise ValueError(
            f"`{name}` should have the shape (batch, time) of the sequences. "
            f"Received: {name}.shape={tuple(mask.shape)}, "
            f"sequences.shape={tuple(sequences.shape)}"
        )


def check_time_deltas(shape, expected):
    """Raise unless a call's `time_deltas` have the expected shape."""
    if len(shape) != len(expected) or any(
        None not in pair and pair[0] != pair[1] for pair in zip(shape, expected)
    ):
        names = "(batch, time) of the sequences"
        if len(expected) == 1:
            names = "(batch,) of the inputs"
        raise ValueError(
            f"`time_deltas` should have the shape {names}, {tuple(expected)}. "
            f"Received: time_deltas.shape={tuple(shape)}"
        )
