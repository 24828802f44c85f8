"""The decisions of `kernels/resolver.py`."""

import keras
import pytest
from support.needs_native import require_native
from support.units import UNITS
from support.units import sequences

from keras_linrec import config
from keras_linrec import kernels
from keras_linrec.kernels import registry
from keras_linrec.kernels.resolver import Case
from keras_linrec.kernels.resolver import resolve
from keras_linrec.layers import LRU

BACKEND = keras.backend.backend()
JAX = BACKEND == "jax"
LONG = {"batch": 2, "time": 100, "channels": 8}


@pytest.fixture(autouse=True)
def native():
    require_native()


# Here JAX has Pallas for GPUs, and no CUDA core.
RESPONSE = "contour" if JAX else "fused"
PORTABLE_RESPONSE = "contour" if JAX else "blocks"
NONLINEAR = "loop" if JAX else "fused"


def chosen(operation, **facts):
    decision = resolve(Case(operation, **{**LONG, **facts}))
    return decision.kernel, decision.form


@pytest.mark.parametrize(
    ("operation", "facts", "form"),
    [
        ("linear_scan", {}, "scan"),
        ("gated_scan", {}, "fused"),
        ("gated_scan", {"time": None}, "fused"),
        ("gated_scan", {"platform": "cuda"}, "scan"),
        ("gated_scan", {"platform": "tpu"}, "scan"),
        ("projected_scan", {}, "fused"),
        ("projected_scan", {"time": 4}, "fused"),
        ("projected_scan", {"time": 3}, "products"),
        ("projected_scan", {"time": 3, "unrolled": True}, "fused"),
        ("projected_scan", {"time": None}, "fused"),
        ("projected_scan", {"keep_all": False}, "blocks"),
        ("projected_scan", {"keep_all": False, "time": None}, "blocks"),
        ("projected_scan", {"keep_all": False, "time": "n"}, "fused"),
        ("projected_scan", {"keep_all": False, "per_step": True}, "fused"),
        ("projected_scan", {"platform": "cuda"}, "sections"),
        ("projected_scan", {"platform": "cuda", "time": None}, "sections"),
        ("projected_scan", {"platform": "cuda", "time": "n"}, "products"),
        ("projected_scan", {"platform": "tpu"}, "products"),
        ("structured_scan", {}, "fused"),
        ("structured_scan", {"time": None}, "fused"),
        ("structured_scan", {"platform": "cuda"}, "powers"),
        ("structured_scan", {"platform": "cuda", "resets": True}, "chunks"),
        ("diagonal_scan_irregular", {"time": None}, "fused"),
        ("diagonal_scan_irregular", {"platform": "cuda"}, "scan"),
        ("oscillator_scan_irregular", {}, "fused"),
        ("oscillator_scan_irregular", {"platform": "tpu"}, "steps"),
        ("structured_scan_irregular", {}, "fused"),
        ("structured_scan_irregular", {"dtype": "bfloat16"}, "blocks"),
        ("structured_scan_irregular", {"platform": "cuda"}, "blocks"),
        ("impulse_response", {}, "fused"),
        ("impulse_response", {"dtype": "float64"}, "fused"),
        ("impulse_response", {"dtype": "bfloat16"}, "blocks"),
        ("impulse_response", {"time": None}, "blocks"),
        ("impulse_response", {"platform": "cuda"}, RESPONSE),
        (
            "impulse_response",
            {"platform": "cuda", "channels": 300},
            PORTABLE_RESPONSE,
        ),
        ("impulse_response", {"platform": "cuda", "time": None}, "blocks"),
        ("impulse_response", {"platform": "tpu"}, "blocks"),
        ("nonlinear_scan", {}, "fused"),
        ("nonlinear_scan", {"time": 3}, "loop"),
        ("nonlinear_scan", {"known_activation": False}, "loop"),
        ("nonlinear_scan", {"platform": "tpu"}, "loop"),
        ("nonlinear_scan", {"platform": "cuda"}, NONLINEAR),
        ("nonlinear_scan", {"platform": "cuda", "pairs": True}, "loop"),
        ("nonlinear_scan", {"platform": "cuda", "channels": 512}, NONLINEAR),
        ("nonlinear_scan", {"platform": "cuda", "channels": 513}, "loop"),
    ],
)
def test_the_form_follows_the_case(operation, facts, form):
    assert chosen(operation, **facts) == ("native", form)


def test_portable_kernels_have_no_fused_forms():
    with config.portable_kernels():
        for operation, form in (
            ("linear_scan", "scan"),
            ("gated_scan", "scan"),
            ("projected_scan", "fused"),
            ("impulse_response", "blocks"),
            ("structured_scan_irregular", "blocks"),
            ("diagonal_scan_irregular", "scan"),
            ("oscillator_scan_irregular", "steps"),
            ("structured_scan", "powers"),
            ("nonlinear_scan", "loop"),
        ):
            assert chosen(operation) == (registry.portable(), form)


def test_portable_kernels_replace_custom_operators_that_cannot_run():
    assert chosen("linear_scan", operators=False)[0] == registry.portable()


@pytest.mark.skipif(not JAX, reason="Pallas is JAX' own")
def test_on_an_accelerator_few_states_and_many_steps_take_the_tree():
    few = {"platform": "cuda", "batch": 1, "channels": 16, "time": 2**20}
    assert chosen("linear_scan", **few)[0] == "associative"
    assert chosen("linear_scan", **{**few, "batch": 512})[0] == "native"
    assert chosen("linear_scan", **{**few, "platform": "cpu"})[0] == "native"


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("rotrnn", ["projected_scan"]),
        ("lssl", ["impulse_response", "causal_convolution"]),
        ("lipschitz_rnn", ["nonlinear_scan"]),
        ("min_gru", ["gated_scan"]),
    ],
)
def test_a_layer_is_explained(name, operations):
    layer = UNITS[name]()
    layer(sequences(4))
    decisions = kernels.explain(layer, (2, 100, 3))
    assert [decision.case.operation for decision in decisions] == operations
    for decision in decisions:
        assert (decision.kernel, decision.form) == ("native", "fused")
        assert decision.case.time == 100
    with config.portable_kernels():
        decisions = kernels.explain(layer, (2, 100, 3))
    portable_forms = ("loop", "blocks", "transforms", "scan")
    for decision in decisions:
        assert decision.kernel == registry.portable()
        assert "file" in str(decision) or decision.form in portable_forms


def test_an_operation_is_explained():
    (decision,) = kernels.explain("nonlinear_scan", (2, 3, 8))
    assert str(decision).endswith("native, loop: a few steps")
    (decision,) = kernels.explain("projected_scan", (2, 9, 8), per_step=True)
    assert decision.form == "fused"


def test_what_cannot_be_explained_is_named():
    with pytest.raises(ValueError, match="`what` .* Received: what=scan"):
        kernels.explain("scan", (2, 3, 4))
    with pytest.raises(ValueError, match="`shape` .* Received: shape="):
        kernels.explain("linear_scan", (2, 3))
    layer = LRU(2, state_size=2)
    for what in ("linear_scan", layer):
        with pytest.raises(ValueError, match="Received: \\['step'\\]"):
            kernels.explain(what, (2, 3, 4), step=True)
