"""The self-test on the devices that this machine lacks.

Kernels are resolved through the registry, with the device's branch forced: its
Pallas kernels run in XLA's interpreter, and products lose the digits that they
lose there.
"""

import keras
import numpy as np
import pytest
from support.rounded_products import rounded

import keras_linrec
from keras_linrec.kernels import backends
from keras_linrec.kernels import registry
from keras_linrec.kernels import self_test

pytestmark = pytest.mark.rest

precisions = pytest.mark.parametrize(
    "kind", ["bfloat16", pytest.param("tf32", marks=pytest.mark.slow)]
)


@pytest.fixture
def clean(fresh):
    """As `fresh`, without programs that were traced before or meanwhile."""
    yield fresh
    if keras.backend.backend() == "jax":
        import jax

        jax.clear_caches()


def on_device(monkeypatch, device):
    """Make JAX choose a device's branch, and interpret its kernels."""
    from jax import lax

    from keras_linrec.kernels.jax import pallas

    run = pallas.pl.pallas_call

    def interpreted(*arguments, **options):
        return run(*arguments, **{**options, "interpret": True})

    def branch(*arguments, default=None, **branches):
        return branches.get(device, default)(*arguments)

    monkeypatch.setattr(backends.current(), "platform", lambda: device)
    monkeypatch.setattr(pallas, "_platform", lambda: device)
    monkeypatch.setattr(pallas.pl, "pallas_call", interpreted)
    monkeypatch.setattr(lax, "platform_dependent", branch)


on_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="Pallas is JAX's"
)


@on_jax
@pytest.mark.weekly
@pytest.mark.parametrize(
    "device", ["cuda", pytest.param("tpu", marks=pytest.mark.slow)]
)
def test_the_pallas_kernels_pass_on_their_device(clean, device):
    """Though the first use is inside a program that is being traced."""
    import jax

    on_device(clean, device)
    rounded(clean, "bfloat16")
    layer = keras_linrec.layers.RotRNN(4, state_size=4, num_heads=2)
    layer.build((2, 5, 3))
    shape = jax.ShapeDtypeStruct((2, 5, 3), "float32")
    jax.eval_shape(jax.jit(layer), shape)
    assert registry.choose("auto") == "native"


@on_jax
def test_a_device_without_precise_products_still_runs(clean):
    """A portable kernel does, after one warning for the Pallas kernels."""
    on_device(clean, "cuda")
    rounded(clean, "bfloat16", heeds=False)
    with pytest.warns(RuntimeWarning, match="wrong numbers"):
        assert registry.choose("auto") == registry.portable()


def error_of(name):
    with backends.current().checking():
        return registry.error_on("cpu", registry.load(name))


@precisions
def test_kernels_are_judged_by_their_recurrence(clean, kind):
    rounded(clean, kind)
    # The imitation would show: see the next test.
    assert error_of("sequential") < self_test.tolerance("native", "cpu")


@precisions
def test_no_portable_kernel_fails_for_precision_alone(clean, kind):
    rounded(clean, kind, heeds=False)
    assert registry._check("sequential")
    assert error_of("sequential") > self_test.tolerance("native", "cpu")


def test_the_scope_of_a_check_leaves_the_switch_as_it_was(clean):
    def product():
        left = keras.ops.convert_to_tensor(np.full((1, 2), 1 / 3, "float32"))
        right = keras.ops.ones((2, 1))
        return float(keras.ops.convert_to_numpy(left @ right)[0, 0])

    rounded(clean, "bfloat16")
    before = product()
    with backends.current().checking():
        within = product()
    assert abs(before - 2 / 3) > 1e-4 > abs(within - 2 / 3)
    assert product() == before
