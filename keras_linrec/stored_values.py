"""Numbers in files: nothing is read before it is known to fit."""

from typing import NamedTuple

import h5py
import keras
import numpy as np

from keras_linrec import settings
from keras_linrec.validation import is_finite

_REAL = ("float16", "bfloat16", "float32", "float64")


class _Description(NamedTuple):
    """What a file says about an array, without reading it."""

    shape: tuple | None
    dtype: np.dtype
    # Whether the numbers are in one piece of the file, of their own size.
    is_plain: bool = True


def checked_value(store, key, variable, owner, noun="weight"):
    """The value of a variable in a file, in the variable's dtype, if it fits.

    Keras' stores read a whole array to tell its shape. A file of a few
    kilobytes may hold one that takes all memory: its shape, or a compressed
    piece of it.

    Args:
        store: what Keras gives to `load_own_variables`, or a dictionary.
        key: string, the name in the store.
        variable: the Keras variable.
        owner: string, whose variable it is, for the errors.
        noun: string, what it is. Defaults to `"weight"`.

    Returns:
        NumPy array.

    Raises:
        ValueError: if shape, dtype, storage or values do not fit.
    """
    name = f"The {noun} '{variable.name}' of {owner}"
    described = _described(store, key)
    if described is not None:
        _require_fit(name, described, variable)
    value = np.asarray(store[key])
    if described is None:
        _require_fit(name, _Description(value.shape, value.dtype), variable)
    converted = _converted(value, variable.dtype)
    _require_values(name, value, converted)
    return converted


def _described(store, key):
    """The description of an array in an HDF5 file, or `None`.

    The attributes are Keras' own, for which there is no public way. Where they
    are missing, as in a dictionary, the array has to be read.
    """
    described = _description(getattr(store, "_h5_entry_group", None), key)
    # If the weights are in several files, this may be another one's.
    files = iter(getattr(store, "current_shard_filenames", ()))
    while described is None and (file := next(files, None)):
        try:
            store._switch_h5_file(file, mode="r")
            described = _description(store._h5_entry_group, key)
        finally:
            store._restore_h5_file()
    return described


def _description(group, key):
    if not isinstance(group, h5py.Group) or key not in group:
        return None
    link = group.get(key, getclass=True, getlink=True)
    kind = group.get(key, getclass=True) if link is h5py.HardLink else link
    if kind is not h5py.Dataset:
        raise ValueError(
            f"'{key}' should be an array in the file itself. "
            f"Received: a {kind.__name__}"
        )
    dataset = group[key]
    dtype = dataset.dtype
    if dtype == "V2" and dataset.attrs.get("dtype") == "bfloat16":
        dtype = np.dtype("bfloat16")
    is_plain = (
        dataset.chunks is None
        and not dataset.is_virtual
        and not dataset.external
        and dataset.id.get_storage_size()
        == (dataset.size or 0) * dataset.dtype.itemsize
    )
    return _Description(dataset.shape, dtype, is_plain)


def _require_fit(name, described, variable):
    if described.shape != tuple(variable.shape):
        raise ValueError(
            f"{name} has the shape {tuple(variable.shape)}. "
            f"Received: a file with the shape {described.shape}"
        )
    if not _is_convertible(described.dtype, variable.dtype):
        raise ValueError(
            f"{name} should be of a kind of {_kind(variable.dtype)}. "
            f"Received: a file with {described.dtype}"
        )
    if not described.is_plain:
        raise ValueError(
            f"{name} should be stored as one plain array, as Keras does. "
            "Received: a file in which it is compressed, in chunks or elsewhere"
        )


def _is_convertible(stored, dtype):
    """Whether numbers of one dtype may be read as another.

    Any real floating-point numbers as any others, as Keras converts them: a
    model is saved under one dtype policy and loaded under another.
    """
    kind = _kind(dtype)
    if kind == "float":
        # The name does not tell the order of the bytes, which is converted.
        return stored.name in _REAL
    return stored.kind in {"int": "iu", "bool": "b"}[kind]


def _kind(dtype):
    if keras.backend.is_float_dtype(dtype):
        return "float"
    return "int" if keras.backend.is_int_dtype(dtype) else "bool"


def _converted(value, dtype):
    # Too large ones become infinite, and are found by that.
    with np.errstate(over="ignore", invalid="ignore"):
        return value.astype(dtype)


def _require_values(name, value, converted):
    if _kind(str(converted.dtype)) == "int":
        if not np.array_equal(value, converted):
            raise ValueError(
                f"{name} should be of {converted.dtype}. "
                "Received: a file with greater numbers"
            )
    elif settings.requires_finite() and not is_finite(converted):
        raise ValueError(
            f"{name} should be finite; to load it all the same, use "
            "`keras_linrec.saving` with `require_finite=False`. Received: a "
            f"file with values that are not finite in {converted.dtype}"
        )
