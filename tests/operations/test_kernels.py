"""Which kernel runs, and the replacement of kernels that cannot run."""

import re
import warnings
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from support.autodiff import backend_gradients
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.needs_native import require_native

import keras_linrec
from keras_linrec import kernels
from keras_linrec import ops
from keras_linrec import settings
from keras_linrec.kernels import backends
from keras_linrec.kernels import registry
from keras_linrec.kernels import resolver
from keras_linrec.kernels import self_test
from keras_linrec.kernels.native import UnsupportedPlatform
from keras_linrec.kernels.native import call_encoding
from keras_linrec.kernels.native import recipes
from keras_linrec.kernels.operations import OPERATIONS


def count(record, reason):
    """The number of warnings that contain the reason."""
    return sum(reason in str(warning.message) for warning in record)


def scanned():
    """The outputs of a small scan: 1, 1.5, 1.75."""
    outputs, _ = ops.linear_scan(*tensors([[0.5], np.ones((1, 3, 1))]))
    return to_numpy([outputs])[0].ravel().tolist()


def broken(*arguments):
    raise OSError("no such library")


def wrong(decay, inputs, initial_state, reverse=False, resets=None):
    return tuple(part * 2.0 for part in inputs)


def compiled():
    """A stand-in for a module of compiled kernels."""
    return SimpleNamespace(FUNCTIONS={"scan": broken})


def compiled_wrong():
    def scan(decay, inputs, initial_state, reverse=False, resets=None):
        return inputs, initial_state

    return SimpleNamespace(FUNCTIONS={"scan": scan})


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_plain_form_of_an_operation_passes_its_self_test(name):
    """A missing test would leave the operation unchecked, without a word."""
    operation, vjp = OPERATIONS[name], backends.current().vjp
    assert operation.self_tests
    kernel = registry.load("sequential")
    plain = {operation.function: operation.plain(kernel)}
    scans = registry.Kernel(kernel.scan)
    # A scan by name as well: every kernel has one.
    error = self_test.relative_error(scans._replace(**plain), vjp)
    assert error < self_test.tolerance("native", "cpu")


def test_the_core_and_python_number_the_activations_alike():
    """A call names an activation by its place in either list."""
    header = (recipes.SOURCE / "base/activation_kernels.h").read_text()
    *of_core, _ = re.findall(r"^  k(\w+),", header, re.MULTILINE)
    in_python = [a.__name__.replace("_", "") for a in call_encoding.ACTIVATIONS]
    assert [name.lower() for name in of_core] == in_python


def test_every_kernel_runs_here_or_says_why_not():
    available = kernels.available()
    assert set(available) == set(kernels.KERNELS)
    for name in kernels.KERNELS:
        assert bool(available[name]) == (not available[name].reason)
        # CI checks separately that native code is available at all.
        assert available[name] or name == "native"
        assert "self-test" not in available[name].reason


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [(broken, "OSError: no such library"), (wrong, "gave wrong numbers")],
)
def test_a_kernel_that_fails_is_replaced_with_one_warning(
    fresh, kernel, reason
):
    fresh.setattr(backends.current(), "associative", kernel)
    keras_linrec.config.set_kernel("associative")
    with pytest.warns(RuntimeWarning, match=reason) as record:
        first = scanned()
    assert count(record, reason) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert scanned() == first == [1.0, 1.5, 1.75]
    assert reason in kernels.available()["associative"].reason


@pytest.mark.parametrize(
    ("module", "reason"),
    [(compiled, "OSError: no such library"), (compiled_wrong, "wrong numbers")],
)
def test_native_code_that_fails_is_replaced_with_one_warning(
    fresh, module, reason
):
    fresh.setattr(backends.current(), "compiled", module)
    with pytest.warns(RuntimeWarning, match=reason) as record:
        assert scanned() == [1.0, 1.5, 1.75]
        assert scanned() == [1.0, 1.5, 1.75]
    assert count(record, reason) == 1
    assert reason in kernels.available()["native"].reason
    assert registry.choose("auto") == registry.portable()


def test_missing_native_code_for_a_device_warns_only_if_requested(fresh):
    def elsewhere():
        raise UnsupportedPlatform("the accelerator has none")

    fresh.setattr(backends.current(), "compiled", elsewhere)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert scanned() == [1.0, 1.5, 1.75]
    keras_linrec.config.set_kernel("native")
    with pytest.warns(RuntimeWarning, match="the accelerator has none"):
        assert scanned() == [1.0, 1.5, 1.75]


def test_the_environment_variable_chooses(fresh):
    fresh.setenv("KERAS_LINREC_KERNEL", "sequential")
    case = resolver.Case("linear_scan", batch=2, time=9, channels=4)
    assert resolver.resolve(case).kernel == "sequential"
    keras_linrec.config.set_kernel("associative")
    assert resolver.resolve(case).kernel == "associative"
    for blank in ("", " "):
        fresh.setenv("KERAS_LINREC_KERNEL", blank)
        keras_linrec.config.set_kernel(None)
        assert settings.requested_kernel() == "auto"
    fresh.setenv("KERAS_LINREC_KERNEL", "fastest")
    keras_linrec.config.set_kernel(None)
    with pytest.raises(ValueError, match="KERAS_LINREC_KERNEL=fastest"):
        scanned()


def test_an_unknown_kernel_is_named():
    with pytest.raises(ValueError, match="`kernel` .* Received: kernel=cuda"):
        keras_linrec.config.set_kernel("cuda")


def test_the_first_use_may_be_inside_a_compiled_model(fresh):
    require_native()
    registry._checked.clear()
    registry._chosen.clear()
    inputs = keras.Input((None, 3))
    outputs = keras_linrec.layers.RotRNN(4, state_size=4, num_heads=2)(inputs)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    ones = np.ones((2, 5, 3), "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model.fit(ones, ones[..., :1] * np.ones(4), verbose=0)
    assert kernels.available()["native"]


def test_the_first_use_may_be_inside_a_checkpoint(fresh):
    """Its second pass must not recompute the self-test."""

    def run(inputs):
        return ops.linear_scan(np.ones(2, "float32"), inputs)[0]

    remembered = keras.remat(run)
    inputs = np.ones((1, 3, 2))
    (gradient,) = backend_gradients(
        lambda given: [remembered(given[0])], [inputs], [np.ones((1, 3, 2))]
    )
    assert gradient[0, :, 0].tolist() == [3.0, 2.0, 1.0]


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="JAX can: test_devices.py"
)
def test_other_backends_than_jax_cannot_share_the_time():
    with (
        pytest.raises(ValueError, match="JAX backend.*Received: backend="),
        keras_linrec.config.sequence_parallel(None),
    ):
        pass
