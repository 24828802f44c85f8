"""The table of `source/base/operations.h`, and what follows from it for a call.

The core exports the table as text, so that Python repeats none of it. The
tensors of a call are a flat list, in the table's order: a complex quantity is
two of them.
"""

import ctypes
import json
from functools import lru_cache
from typing import NamedTuple

from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import checkpoint_count
from keras_linrec.kernels.native.call_encoding import COMPLEX
from keras_linrec.kernels.native.call_encoding import bits_of

# The attributes that are floats.
REAL = ("alpha", "leak")
# The most numbers in the core's sizes.
_MOST_SIZES = 16


class Quantity(NamedTuple):
    """An argument or a result: see `source/base/operations.h`."""

    name: str
    axes: str
    real: bool
    reuses: str
    flag: int
    otherwise: str

    def letters(self, flags):
        """The axes that it has in a call."""
        return self.axes if flags & self.flag == self.flag else self.otherwise

    def parts(self, flags):
        """The number of its tensors in a call."""
        return 2 if flags & COMPLEX and not self.real else 1

    def has_rows(self, flags):
        """Whether its first axis is the batch, whose rows are independent."""
        return self.letters(flags).startswith("b")


class NativeOperation:
    """An operation of the core."""

    def __init__(self, index, description):
        self.index = index
        self.name = description["name"]
        self.is_complex = description["is_complex"]
        self.on_cpu = description["on_cpu"]
        self.on_cuda = description["on_cuda"]
        self.attributes = tuple(description["attributes"])
        self.arguments, self.results = (
            [Quantity(**quantity) for quantity in description[side]]
            for side in ("arguments", "results")
        )
        # A letter for each result of a gradient that need not compute all.
        self.wanted = description["wanted"]
        self.is_gradient = self.name.endswith("_backward")
        # The operation of the gradient, and the results that have cotangents:
        # the others are for the gradient.
        self.backward = None
        self.differentiated = self.results

    def has_parts(self, quantity):
        """Whether a quantity may be complex, which is two tensors."""
        return self.is_complex and not quantity.real

    def differentiate_by(self, backward):
        """Set the operation of the gradient."""
        self.backward = backward
        read = {argument.name for argument in backward.arguments}
        self.differentiated = [
            result for result in self.results if f"d_{result.name}" in read
        ]

    def wanted_for(self, needed):
        """Which results of this gradient to compute, so that some are there.

        Args:
            needed: for each argument of the operation whose gradient this is,
                whether its gradient is needed.
        """
        together = {
            letter
            for letter, one in zip(self.wanted, needed, strict=True)
            if one
        }
        return tuple(letter in together | {"*"} for letter in self.wanted)

    def require_wanted(self, wanted):
        """Raise for a list of wanted results that the core cannot compute."""
        fits = len(wanted) == len(self.wanted)
        if not fits or self.wanted_for(wanted) != tuple(wanted):
            raise ValueError(
                f"`{self.name}` expects `wanted` to have {len(self.wanted)} "
                f"entries, alike for results of one letter in '{self.wanted}', "
                f"and true at '*'. Received: wanted={list(wanted)}"
            )


class Call(NamedTuple):
    """What a call has beside its tensors."""

    name: str
    # See `call_encoding.py`.
    flags: int
    # Those of the operation, in its order: integers, and floats for `REAL`.
    attributes: tuple = ()

    @property
    def operation(self):
        return operations()[self.name]

    def number(self, name):
        """An attribute."""
        return self.attributes[self.operation.attributes.index(name)]

    def encoded(self):
        """The attributes as integers, as the core takes them."""
        return tuple(
            bits_of(value) if name in REAL else value
            for name, value in zip(self.operation.attributes, self.attributes)
        )

    def replace(self, **numbers):
        """This call with other attributes."""
        names = self.operation.attributes
        values = {**dict(zip(names, self.attributes)), **numbers}
        return self._replace(attributes=tuple(values[name] for name in names))

    def with_all_steps(self):
        """This call, with the outputs of all steps where it has a choice."""
        has_choice = "keep" in self.operation.attributes
        return self.replace(keep=1) if has_choice else self

    @property
    def backward(self):
        """The call of the gradient."""
        operation = self.operation.backward
        attributes = tuple(map(self.number, operation.attributes))
        return Call(operation.name, self.flags, attributes)

    @property
    def forward(self):
        """The call whose gradient this one is, of all steps."""
        operation = operations()[self.name.removesuffix("_backward")]
        numbers = dict(zip(self.operation.attributes, self.attributes))
        attributes = [numbers.get(name, 1) for name in operation.attributes]
        return Call(operation.name, self.flags, tuple(attributes))


_operations = {}


def operations():
    """The operations of the core, by name, in the order of the table."""
    # PyTorch's compiler follows a look-up, and no `functools.cache`.
    if not _operations:
        _read()
    return _operations


def _read():
    core = build.core()
    core.keras_linrec_operations.restype = ctypes.c_char_p
    core.keras_linrec_sizes.restype = ctypes.c_char_p
    described = json.loads(core.keras_linrec_operations())
    found = [NativeOperation(*numbered) for numbered in enumerate(described)]
    named = {operation.name: operation for operation in found}
    for name, operation in named.items():
        if f"{name}_backward" in named:
            operation.differentiate_by(named[f"{name}_backward"])
    _operations.update(named)


def runs_on_cuda(name):
    """Whether the CUDA core runs an operation, or the sequential part of it."""
    return operations()[name].on_cuda or f"cuda_{name}" in operations()


@lru_cache(maxsize=4096)
def sizes_of(call, shapes):
    """The core's sizes for a call with tensors of these shapes.

    Returns:
        An array of `ctypes`, which nobody changes.

    Raises:
        ValueError: if the shapes do not fit together.
    """
    numbers = []
    for shape in shapes:
        numbers += len(shape), *shape
    found = (ctypes.c_int64 * _MOST_SIZES)()
    error = build.core().keras_linrec_sizes(
        call.operation.index,
        ctypes.c_int64(call.flags),
        (ctypes.c_int64 * len(call.attributes))(*call.encoded()),
        len(shapes),
        (ctypes.c_int64 * len(numbers))(*numbers),
        found,
    )
    if error:
        raise ValueError(f"`{call.name}`: {error.decode()}")
    return found


def result_shapes(call, shapes, wanted=None):
    """The shapes of a call's results.

    Args:
        call: `Call`.
        shapes: those of the arguments, which fit together. Sizes may be
            symbols.
        wanted: which results to compute. The others have no elements. Defaults
            to `None`, all.
    """
    operation, flags = call.operation, call.flags
    sizes = {"p": 2 if flags & COMPLEX else 1}
    for argument, shape in zip(each_tensor(operation.arguments, flags), shapes):
        letters = argument.letters(flags)
        leading = shape[: len(shape) - len(letters)]
        sizes.update(zip(letters, shape[len(leading) :]))
    if "time" in operation.attributes:
        sizes["t"] = call.number("time")
    if "block" in operation.attributes:
        sizes["k"] = checkpoint_count(sizes["t"], call.number("block"))
    if "keep" in operation.attributes:
        sizes["z"] = sizes["t"] if call.number("keep") else 0
    found = [
        (*leading, *(sizes[letter] for letter in result.letters(flags)))
        for result in each_tensor(operation.results, flags)
    ]
    if wanted is None:
        return found
    operation.require_wanted(wanted)
    return [
        shape if one else (*leading, 0) for shape, one in zip(found, wanted)
    ]


def each_tensor(side, flags):
    """The quantity of each tensor of a call's arguments or results, a list."""
    return [one for one in side for _ in range(one.parts(flags))]


def by_name(operation, side, flags, tensors):
    """A flat list, as a dict from each quantity's name to its tensors.

    Args:
        operation: `NativeOperation`.
        side: its `arguments` or `results`.
        flags: those of the call.
        tensors: the list. If it is shorter, the last quantities are missing.

    Returns:
        A dict, with a tensor for each real quantity, and a tuple for one that
        may have parts.
    """
    tensors, named = list(tensors), {}
    for quantity in side:
        count = quantity.parts(flags)
        parts, tensors = tuple(tensors[:count]), tensors[count:]
        has_parts = operation.has_parts(quantity)
        named[quantity.name] = parts if has_parts else parts[0]
    return named


def nested(call, tensors):
    """The arguments of a call as frameworks' operations take them.

    Args:
        call: `Call`.
        tensors: flat list.

    Returns:
        A list, with a list of tensors for each quantity that may have parts.
    """
    operation = call.operation
    named = by_name(operation, operation.arguments, call.flags, tensors)
    return [
        list(parts) if isinstance(parts, tuple) else parts
        for parts in named.values()
    ]


def flatten(quantities):
    """The tensors of quantities, which are tensors or sequences of them."""
    return [
        part
        for quantity in quantities
        for part in (
            quantity if isinstance(quantity, (tuple, list)) else (quantity,)
        )
    ]


def with_cotangents(call, results):
    """The results that have cotangents, of those of a call."""
    operation = call.operation
    named = by_name(operation, operation.results, call.flags, results)
    return tuple(named[result.name] for result in operation.differentiated)
