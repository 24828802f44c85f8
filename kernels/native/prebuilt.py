"""The compiled libraries that the package was installed with.

A wheel for one platform has them in `libraries/`, beside a list of what each
was made from and made for. `release/wheels.py` writes both. The wheel for any
platform, the sdist and a clone have none.
"""

import json
from importlib import import_module
from pathlib import Path

from keras_linrec.kernels.native import BuildError
from keras_linrec.kernels.native import cache
from keras_linrec.kernels.native import recipes
from keras_linrec.kernels.native import systems
from keras_linrec.settings import environment

VARIABLE = "KERAS_LINREC_PREBUILT"
# Whether these libraries may be used; the default comes first.
CHOICES = ("yes", "no")
FOLDER = Path(__file__).parent / "libraries"
LIST = "contents.json"


def find(adapter):
    """The path of an installed library, or `None` if none was installed.

    Raises:
        BuildError: if one was installed but cannot be used here; the message
            says why.
    """
    if not (FOLDER / LIST).exists():
        return None
    if environment(VARIABLE, CHOICES[0]) == "no":
        raise BuildError(f"{VARIABLE} is 'no'")
    try:
        return _find(adapter, json.loads((FOLDER / LIST).read_text()))
    except (OSError, ValueError, KeyError, TypeError) as failure:
        raise BuildError(f"{FOLDER} is damaged ({failure!r})") from failure


def _find(adapter, installed):
    libraries = [
        library
        for library in installed["libraries"]
        if library["adapter"] == adapter
    ]
    if not libraries:
        return None
    target, here = systems.Target(*installed["target"]), systems.here()
    if target != here:
        raise BuildError(
            f"it was compiled for {' '.join(target)}, and this is "
            f"{' '.join(here)}"
        )
    library = _for_framework(adapter, libraries)
    if library["sources"] != recipes.sources_key(adapter):
        raise BuildError("it was compiled from other sources than these")
    path = FOLDER / library["file"]
    if library["content"] != cache.content_key(path):
        raise BuildError(f"{path} is damaged")
    return path


def _for_framework(adapter, libraries):
    """The library for the framework's version.

    TensorFlow's libraries are bound to one minor version. The others name none.
    """
    versions = [library.get("version") for library in libraries]
    if versions == [None]:
        return libraries[0]
    installed = import_module(adapter).__version__
    for version, library in zip(versions, libraries):
        if installed.startswith(f"{version}."):
            return library
    raise BuildError(
        f"it was compiled for {adapter} {', '.join(versions)}, and "
        f"{installed} is installed"
    )
