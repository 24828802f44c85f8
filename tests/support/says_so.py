"""What a layer says while it runs."""

import contextlib

import keras
import pytest


@contextlib.contextmanager
def says(message):
    """An error of this message, which on JAX is a warning."""
    if keras.backend.backend() != "jax":
        with pytest.raises(Exception, match=message):
            yield
        return
    import jax

    with pytest.warns(RuntimeWarning, match=message):
        yield
        jax.effects_barrier()
