"""What type checkers and completion find in the package."""

import ast
import inspect
import json
import re
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest
from public_names import public_names

import keras_linrec
from keras_linrec import kernels
from keras_linrec import layers

USER_CODE = Path(__file__).parents[3] / "support" / "user_code.txt"
# What constructors and functions need beside the argument that is tried.
NEEDED = {
    "units": 4,
    "num_classes": 4,
    "output_dim": 4,
    "vocabulary_size": 4,
    "num_layers": 1,
    "hidden_dim": 4,
    "intermediate_dim": 4,
    "layer": layers.LRU(4),
    "backbone": None,
    "inputs": np.zeros((1, 1, 1)),
    "input_kernel": np.zeros((1, 1)),
    "recurrent_kernel": np.zeros((1, 1)),
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with a user's file and the package, as it is installed."""
    folder = tmp_path_factory.mktemp("types")
    package = folder / "packages" / "keras_linrec"
    shutil.copytree(Path(keras_linrec.__file__).parent, package)
    shutil.copytree(Path(kernels.__file__).parent, package / "kernels")
    shutil.copy(USER_CODE, folder / "user_code.py")
    return folder


def mistakes():
    lines = USER_CODE.read_text().splitlines()
    return {i for i, line in enumerate(lines, 1) if line.endswith("# mistake")}


def test_mypy_finds_mistakes_of_users_and_no_others(workplace):
    options = "--follow-imports=silent", "--ignore-missing-imports"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "user_code.py"],
        cwd=workplace,
        env={"MYPYPATH": "packages"},
        capture_output=True,
        text=True,
    )
    errors = re.findall(r"user_code\.py:(\d+): error", done.stdout)
    assert set(map(int, errors)) == mistakes(), done.stdout + done.stderr


def test_pyright_finds_mistakes_of_users_and_no_others(workplace):
    settings = {"extraPaths": ["packages"], "include": ["user_code.py"]}
    (workplace / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson"]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=workplace, capture_output=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = {entry["range"]["start"]["line"] + 1 for entry in found}
    assert lines == mistakes(), done.stdout.decode()


def choices_of(annotation):
    """The strings that an annotation allows, none if it allows any."""
    if typing.get_origin(annotation) is typing.Literal:
        return set(typing.get_args(annotation))
    parts = [choices_of(part) for part in typing.get_args(annotation)]
    return set().union(*parts)


def arguments_with_choices():
    for name, value in public_names():
        function = value.__init__ if isinstance(value, type) else value
        for argument, annotation in typing.get_type_hints(function).items():
            choices = choices_of(annotation)
            if len(choices) > 1 and argument != "return":
                yield pytest.param(
                    value, argument, choices, id=f"{name}.{argument}"
                )


@pytest.mark.parametrize(
    "value, argument, choices", list(arguments_with_choices())
)
def test_choices_of_types_are_those_of_errors(value, argument, choices):
    parameters = inspect.signature(value).parameters.values()
    needed = {
        parameter.name: NEEDED[parameter.name]
        for parameter in parameters
        if parameter.name in NEEDED and parameter.default is parameter.empty
    }
    with pytest.raises(ValueError) as raised:
        value(**{**needed, argument: "no such choice"})
    (listed,) = re.findall(r"one of ([({].*?[)}])", str(raised.value))
    assert set(ast.literal_eval(listed)) - {None} == choices


def test_completion_shows_public_names_alone():
    modules = [
        getattr(keras_linrec, name)
        for name in keras_linrec.__all__
        if inspect.ismodule(getattr(keras_linrec, name))
    ]
    assert len(modules) == 11
    for module in (keras_linrec, *modules):
        assert dir(module) == sorted(module.__all__)
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_public_names_of_a_module_are_in_its_list():
    for name in keras_linrec.__all__:
        module = getattr(keras_linrec, name)
        if not inspect.ismodule(module) or hasattr(module, "__path__"):
            continue
        own = {
            key
            for key, value in vars(module).items()
            if not key.startswith("_")
            and getattr(value, "__module__", None) == module.__name__
        }
        assert own == set(module.__all__), name
