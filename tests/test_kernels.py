"""Which kernel runs, and what happens to one that cannot."""

import ast
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from autodiff import tensors
from autodiff import to_numpy

import keras_linrec
from keras_linrec import kernels
from keras_linrec import ops
from keras_linrec.kernels import registry


@pytest.fixture
def fresh(monkeypatch):
    """Nothing remembered of checks and warnings, before and after."""

    def forget():
        registry._checked.clear()
        registry._warn_once.cache_clear()
        keras_linrec.config.set_kernel(None)

    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


def count(record):
    return sum(issubclass(w.category, RuntimeWarning) for w in record)


def scanned():
    """The outputs of a scan: 1, 1.5, 1.75."""
    outputs, _ = ops.linear_scan(*tensors([[0.5], np.ones((1, 3, 1))]))
    return to_numpy([outputs])[0].ravel().tolist()


def broken(*arguments):
    raise OSError("no such library")


def wrong(decay, inputs, initial_state, reverse=False):
    return tuple(part * 2.0 for part in inputs)


def test_every_portable_kernel_runs_here():
    available = kernels.available()
    assert set(available) == set(kernels.KERNELS)
    for name in ("associative", "sequential", "reference"):
        assert available[name] and not available[name].reason


def test_what_is_not_available_says_why():
    native = kernels.available()["native"]
    assert not native and "no native kernels" in native.reason


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [(broken, "OSError: no such library"), (wrong, "gave wrong numbers")],
)
def test_a_kernel_that_fails_is_replaced_with_one_warning(
    fresh, kernel, reason
):
    backend = registry._backend_kernels()
    fresh.setattr(backend, backend.preferred(), kernel)
    with pytest.warns(RuntimeWarning, match=reason) as record:
        first = scanned()
    assert count(record) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert scanned() == first == [1.0, 1.5, 1.75]
    assert reason in kernels.available()[backend.preferred()].reason


def test_choosing_the_native_kernel_falls_back_with_one_warning(fresh):
    keras_linrec.config.set_kernel("native")
    with pytest.warns(RuntimeWarning, match="choose 'auto'") as record:
        assert scanned() == [1.0, 1.5, 1.75]
        assert scanned() == [1.0, 1.5, 1.75]
    assert count(record) == 1


def test_the_environment_variable_chooses(fresh):
    fresh.setenv("KERAS_LINREC_KERNEL", "sequential")
    assert kernels.select() is registry._backend_kernels().sequential
    keras_linrec.config.set_kernel("associative")
    assert kernels.select(keras_linrec.config.get_kernel()) is (
        registry._backend_kernels().associative
    )
    fresh.setenv("KERAS_LINREC_KERNEL", "fastest")
    keras_linrec.config.set_kernel(None)
    with pytest.raises(ValueError, match="KERAS_LINREC_KERNEL=fastest"):
        scanned()


def test_an_unknown_kernel_is_named():
    with pytest.raises(ValueError, match="`kernel` .* Received: kernel=cuda"):
        keras_linrec.config.set_kernel("cuda")


def test_the_first_use_may_be_inside_a_compiled_model(fresh):
    inputs = keras.Input((None, 3))
    outputs = keras_linrec.layers.RotRNN(4, state_size=4, num_heads=2)(inputs)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    ones = np.ones((2, 5, 3), "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model.fit(ones, ones[..., :1] * np.ones(4), verbose=0)
    assert kernels.available()[registry._preferred()]


def imported(path):
    """The top-level modules that a file names in its imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def test_a_framework_is_known_to_its_own_kernels_only():
    package = Path(keras_linrec.__file__).parent
    folder = Path(kernels.__file__).parent
    frameworks = {"jax", "jaxlib", "tensorflow", "torch"}
    files = [*package.rglob("*.py"), *folder.rglob("*.py")]
    assert len(files) > 20
    for path in files:
        allowed = {path.parent.name}
        if path.name == "registry.py":
            # It opens the scope in which a kernel is checked.
            allowed = frameworks
        assert frameworks & set(imported(path)) <= allowed, path
