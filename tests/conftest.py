"""What every test shares."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent / "examples"))

pytest_plugins = ["capabilities", "selection"]


@pytest.fixture(autouse=True)
def seed():
    """The same numbers in every run: no test fails by chance."""
    import keras

    keras.utils.set_random_seed(0)


@pytest.fixture
def fresh(monkeypatch):
    """Forget all checks of kernels and warnings, before and after a test."""
    import keras_linrec
    from keras_linrec.kernels import registry

    def forget():
        registry._checked.clear()
        registry._loaded.clear()
        registry._chosen.clear()
        registry._warn_once.cache_clear()
        keras_linrec.config.set_kernel(None)

    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()
