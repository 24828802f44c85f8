"""What users find in the package, and how it is called.

    python tests/public_names.py --write

writes `public_signatures.txt` anew, with which
`rules/test_public_names.py` compares.
"""

import inspect
import sys
from pathlib import Path

import keras_linrec
import keras_linrec.nlp
import keras_linrec.torch

SIGNATURES = Path(__file__).parent / "public_signatures.txt"


def public_names():
    """The package's functions and classes, under the names users have."""
    # What needs an extra is not imported with the rest.
    for name in (*keras_linrec.__all__, "nlp", "torch"):
        value = getattr(keras_linrec, name)
        if inspect.ismodule(value):
            yield from _names_of(value)
        elif callable(value):
            yield f"keras_linrec.{name}", value


def signatures():
    """A line for every function, constructor and public method, sorted.

    A method stands with the class of the package that defines it.
    """
    lines, classes = set(), {}
    for name, value in public_names():
        if not inspect.isclass(value):
            lines.add(f"{name}{_signature(value)}")
            continue
        lines.add(f"{name}{_signature(value.__init__, bound=True)}")
        for base in reversed(value.__mro__):
            if base.__module__.startswith("keras_linrec."):
                home = f"{base.__module__}.{base.__qualname__}"
                classes.setdefault(base, home)
        classes[value] = name
    for base, name in classes.items():
        for method, value in vars(base).items():
            if not method.startswith("_"):
                lines.add(f"{name}.{method}{_method_signature(value)}")
    return sorted(lines)


def _names_of(module):
    for name in module.__all__:
        if callable(getattr(module, name)):
            yield f"{module.__name__}.{name}", getattr(module, name)


def _method_signature(value):
    if isinstance(value, (classmethod, staticmethod)):
        bound = isinstance(value, classmethod)
        return _signature(value.__func__, bound)
    if inspect.isfunction(value):
        return _signature(value, bound=True)
    # A property, or a value of the class.
    return ""


def _signature(function, bound=False):
    """As it is called, with no more of a default function than its name."""
    if function is object.__init__:
        return "()"
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(
            annotation=parameter.empty, default=_Plain.of(parameter.default)
        )
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters[1:] if bound else parameters))


class _Plain(str):
    """A text that stands in a signature without quotation marks."""

    __repr__ = str.__str__

    @classmethod
    def of(cls, default):
        if default is inspect.Parameter.empty or not callable(default):
            return default
        return cls(default.__qualname__)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    SIGNATURES.write_text("\n".join(signatures()) + "\n")
