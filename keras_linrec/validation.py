"""Checks of arguments, with errors that say what was expected."""

import inspect
import math
import numbers
from collections.abc import Callable
from functools import cache
from functools import wraps
from typing import Any
from typing import TypeVar

import keras
import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])

# An upper limit that catches mistaken sizes.
_LARGEST_COUNT = 2**24
# The same for other numbers, and for integers that floats cannot hold.
_LARGEST_NUMBER = 2**53
# Smaller ones become zero in float32, or wherever a kernel reads them.
_SMALLEST_NUMBER = float(np.finfo("float32").tiny)

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
    "activation": (
        "the unit applies none to its outputs; follow it with a "
        "`keras.layers.Activation`."
    ),
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


def property_if_known(get):
    """A property that is missing, and no error, where there is no value yet.

    `hasattr`, `inspect`, `torch.jit.trace` and OpenVINO's export ask every
    property of an object, and take AttributeError alone for an answer.
    """

    @wraps(get)
    def get_if_known(owner):
        try:
            return get(owner)
        except (KeyError, ValueError) as failure:
            raise AttributeError(*failure.args) from failure

    return property(get_if_known)


def require_count(name, value, optional=False):
    """Raise unless `value` is a positive integer."""
    if optional and value is None:
        return
    whole = isinstance(value, numbers.Integral) and not _is_bool(value)
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


def _is_bool(value):
    return isinstance(value, (bool, np.bool_))


def require_bool(name, value, optional=False):
    """Raise unless `value` is true or false."""
    if _is_bool(value) or (optional and value is None):
        return
    wanted = "True, False or None" if optional else "True or False"
    raise ValueError(f"`{name}` should be {wanted}. Received: {name}={value}")


def require_bools(**flags):
    """Raise unless all arguments are true or false."""
    for name, value in flags.items():
        require_bool(name, value)


def checked_seed(seed):
    """The seed as an integer that all generators take, or `None`."""
    if seed is None:
        return None
    whole = isinstance(seed, numbers.Integral) and not _is_bool(seed)
    if not whole or not 0 <= seed < 2**31:
        raise ValueError(
            "`seed` should be an integer from 0 to 2**31 - 1 or None. "
            f"Received: seed={seed}"
        )
    return int(seed)


def require_dictionary(name, value):
    """Raise unless `value` is a dictionary or `None`."""
    if not isinstance(value, (dict, type(None))):
        raise ValueError(
            f"`{name}` should be a dictionary or None. Received: {name}={value}"
        )


def require_choice(name, value, choices):
    """Raise unless `value` is one of `choices`, strings or `None`."""
    if not isinstance(value, (str, type(None))) or value not in choices:
        raise ValueError(
            f"`{name}` should be one of {tuple(choices)}. "
            f"Received: {name}={value}"
        )


def require_between(name, value, low, high, ends="[]"):
    """Raise unless `value` is in the interval, with or without its ends."""
    if not _is_between(value, low, high, ends):
        raise ValueError(
            f"`{name}` should be a number in {ends[0]}{low}, {high}{ends[1]}. "
            f"Received: {name}={value}"
        )
    if (low, ends[0]) == (0, "(") and value < _SMALLEST_NUMBER:
        raise ValueError(
            f"`{name}` should be at least {_SMALLEST_NUMBER:.3g}: less is zero "
            f"in float32. Received: {name}={value}"
        )


def _is_between(value, low, high, ends):
    return (
        is_number(value)
        and (low <= value if ends[0] == "[" else low < value)
        and (value <= high if ends[1] == "]" else value < high)
        and (math.isinf(value) or abs(value) <= _LARGEST_NUMBER)
    )


def is_number(value):
    return isinstance(value, numbers.Real) and not _is_bool(value)


def plain(value):
    """A number that may be a tensor without axes, as Python's own."""
    return value.item() if getattr(value, "shape", None) == () else value


def require_finite(name, value):
    """Raise unless `value` is a finite number."""
    require_between(name, value, -math.inf, math.inf, "()")


def require_ordered(low_name, low, high_name, high):
    """Raise unless one argument is below another."""
    if not low < high:
        raise ValueError(
            f"`{high_name}` should be greater than `{low_name}`. "
            f"Received: {high_name}={high}, {low_name}={low}"
        )


def pair_of_numbers(name, value, low, high, ends="[]"):
    """Two floats of the interval, from a number or a pair of numbers."""
    values = [value, value]
    if isinstance(value, (tuple, list)) or getattr(value, "shape", ()) != ():
        values = list(value)
    if len(values) != 2 or not all(
        _is_between(one, low, high, ends) for one in values
    ):
        raise ValueError(
            f"`{name}` should be a number or a pair of numbers in "
            f"{ends[0]}{low}, {high}{ends[1]}. Received: {name}={value}"
        )
    return tuple(map(float, values))


_HOW_TO_PAD = (
    "Sequences of different lengths do not form a tensor: pad them to one "
    "length, as `keras.utils.pad_sequences` does, and pass a `mask` that is "
    "true where a step counts."
)


def require_array(name, value):
    """Raise unless `value` is a tensor or an array of real numbers.

    Booleans and integers are numbers too. A tensor has one shape: it is
    neither ragged, nor nested, nor sparse.
    """
    kind = type(value).__name__
    if kind == "RaggedTensor" or getattr(value, "is_nested", False):
        problem, advice = kind, f" {_HOW_TO_PAD}"
    elif not (hasattr(value, "shape") and hasattr(value, "dtype")):
        is_list = isinstance(value, (list, tuple))
        problem, advice = kind, f" {_HOW_TO_PAD}" if is_list else ""
    elif kind in ("SparseTensor", "IndexedSlices"):
        problem, advice = kind, ""
    elif not _holds_numbers(value.dtype):
        is_object = str(value.dtype) == "object"
        problem = f"{kind} of {value.dtype}"
        advice = f" {_HOW_TO_PAD}" if is_object else ""
    else:
        return
    raise ValueError(
        f"`{name}` should be a tensor or an array of real numbers.{advice} "
        f"Received: {name} of type {problem}"
    )


@cache
def _holds_numbers(dtype):
    # As text, because each framework has its own types.
    text = str(dtype)
    return "complex" not in text and any(
        number in text for number in ("float", "int", "bool")
    )


def in_any_byte_order(function: _Function) -> _Function:
    """A function that takes NumPy arrays of the other byte order too.

    Files of audio and instruments hold such arrays. PyTorch refuses them, and
    the frameworks' names of dtypes do not know them.
    """

    @wraps(function)
    def converting(*args, **kwargs):
        return function(*_in_native_order(args), **_in_native_order(kwargs))

    return converting


def _in_native_order(value):
    """A structure whose NumPy arrays have this machine's byte order."""
    # By its very type: others have constructors of their own.
    if type(value) in (list, tuple):
        return type(value)(map(_in_native_order, value))
    if type(value) is dict:
        return {key: _in_native_order(part) for key, part in value.items()}
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        return value.astype(value.dtype.newbyteorder("="))
    return value


def require_tensors(optional=(), **given):
    """Raise unless arguments of an operation are of real numbers.

    Each is a tensor, a pair or list of tensors, a number or a list of numbers.

    Args:
        optional: the names that may be `None`.
        **given: the arguments by name.
    """
    for name, value in given.items():
        if value is None and name in optional:
            continue
        parts = value if isinstance(value, (list, tuple)) else (value,)
        for part in parts:
            if isinstance(part, (list, tuple)):
                part = _as_array(part)
            if not _is_between(part, -math.inf, math.inf, "[]"):
                require_array(name, part)


def _as_array(values):
    try:
        return np.asarray(values)
    except (TypeError, ValueError):
        # Of different lengths, or of tensors that are not known yet.
        return values


def first_mask(mask):
    """The first mask of a nested structure, as in Keras."""
    masks = [one for one in keras.tree.flatten(mask) if one is not None]
    return masks[0] if masks else None


def by_name(method, args, kwargs):
    """The arguments of a method's call, by name.

    Args:
        method: the function of the class, whose first parameter is `self`.
        args, kwargs: the arguments without `self`.
    """
    return {**dict(zip(parameters_of(method), args)), **kwargs}


@cache
def parameters_of(method):
    """The names of a method's parameters without `self`."""
    return tuple(inspect.signature(method).parameters)[1:]


def require_durations(name, values, counts=None):
    """Raise for lengths of steps that are negative or not finite.

    Args:
        name: string, the argument.
        values: NumPy array.
        counts: NumPy array of the same shape, where a step counts. Defaults to
            `None`, everywhere.
    """
    wrong = ~((values >= 0) & (values < np.inf))
    if counts is not None:
        wrong &= counts.astype(bool)
    if wrong.any():
        raise ValueError(
            f"`{name}` should be finite, and not negative. "
            f"Received: {name}={values[wrong].flat[0]}"
        )


def agree(shape, expected):
    """Whether two shapes are equal where both are known."""
    return len(shape) == len(expected) and all(
        None in pair or pair[0] == pair[1] for pair in zip(shape, expected)
    )


def check_mask(name, mask, sequences):
    """Raise unless a mask has the batch and time of the sequences."""
    if not agree(mask.shape, sequences.shape[:2]):
        raise ValueError(
            f"`{name}` should have the shape (batch, time) of the sequences. "
            f"Received: {name}.shape={tuple(mask.shape)}, "
            f"sequences.shape={tuple(sequences.shape)}"
        )


def check_time_deltas(shape, expected):
    """Raise unless a call's `time_deltas` have the expected shape."""
    if not agree(shape, expected):
        names = "(batch, time) of the sequences"
        if len(expected) == 1:
            names = "(batch,) of the inputs"
        raise ValueError(
            f"`time_deltas` should have the shape {names}, {tuple(expected)}. "
            f"Received: time_deltas.shape={tuple(shape)}"
        )
