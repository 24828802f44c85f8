"""The core's nonlinear scan against its plain form in float64, on PyTorch.

The plain form itself is compared with the papers' definitions in test_units.
"""

import itertools

import keras
import numpy as np
import pytest
import torch
from support import nonlinear_cases
from support.autodiff import relative_error
from support.needs_native import require_native
from support.nonlinear_cases import random_operands

from keras_linrec import activations
from keras_linrec.kernels.operations.nonlinear_recurrence import Dynamics
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.kernels.operations.nonlinear_recurrence import recurrence
from keras_linrec.kernels.torch.loop import loop

native = require_native()

ACTIVATIONS = {
    **nonlinear_cases.ACTIVATIONS,
    "keras_leaky_relu": keras.activations.leaky_relu,
    "oplu": activations.oplu,
    "modrelu": activations.modrelu,
}
# batch, time, features, units
SIZES = [(1, 5, 1, 2), (3, 40, 4, 34), (5, 7, 35, 66), (150, 4, 3, 130)]


def make(dynamics, sizes, linear, rank, per_step, dtype, resets=False):
    arrays = random_operands(
        dynamics, sizes, linear, rank, per_step, resets=resets
    )
    return [torch.tensor(array, dtype=dtype) for array in arrays]


def differentiated(run, operands, cotangents):
    operands = [tensor.clone().requires_grad_() for tensor in operands]
    results = run(Operands(*operands))
    gradients = torch.autograd.grad(
        results, operands, cotangents, materialize_grads=True
    )
    return [part.detach() for part in (*results, *gradients)]


def assert_equals_plain_form(
    dynamics, operands, tolerance, every=True, silent=0
):
    """`silent`: of how many last steps no row has a cotangent."""
    batch, time, _ = operands[0].shape
    generator = np.random.default_rng(1)
    cotangents = [
        torch.tensor(generator.standard_normal(shape))
        for shape in ((batch, time, operands[-1].shape[1]), operands[-1].shape)
    ][0 if every else 1 :]
    if silent:
        for cotangent in cotangents:
            cotangent[:, -silent:] = 0

    def plain(operands):
        outputs = recurrence(loop, dynamics, operands)
        return [outputs, outputs[:, -1]][0 if every else 1 :]

    def core(operands):
        results = native.nonlinear_scan(dynamics, operands, every)
        return results[0 if every else 1 :]

    got = differentiated(
        core, operands, [c.to(operands[0].dtype) for c in cotangents]
    )
    expected = differentiated(
        plain, [part.double() for part in operands], cotangents
    )
    names = ("outputs", "final_state")[0 if every else 1 :]
    for name, one, other in zip(
        (*names, *Operands._fields), got, expected, strict=True
    ):
        if other.numel():
            assert relative_error(one.double(), other) < tolerance, name


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("solver", [None, "euler", "rk2", "rk4"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_form_equals_the_plain_one(activation, solver, sizes):
    options = itertools.product((False, True), (False, True), (0, 3))
    for linear, gated, rank in options:
        if (linear and rank) or (solver is None and (linear or gated)):
            continue
        dynamics = Dynamics(ACTIVATIONS[activation], solver, gated, True)
        # Resets with and without each of the other options.
        resets = linear == gated == bool(rank) or bool(rank)
        operands = make(
            dynamics, sizes, linear, rank, gated, torch.float64, resets
        )
        # A modulus near zero amplifies rounding errors.
        tolerance = 1e-10 if activation == "modrelu" else 1e-12
        assert_equals_plain_form(dynamics, operands, tolerance)


@pytest.mark.parametrize("silent", [1, 250])
def test_steps_without_a_cotangent_have_no_gradient(silent):
    dynamics = Dynamics(ACTIVATIONS["tanh"], "rk2", False, True)
    operands = make(dynamics, (5, 400, 2, 34), True, 0, True, torch.float64)
    # Of the final state, as many units have none.
    assert_equals_plain_form(dynamics, operands, 1e-12, silent=silent)


@pytest.mark.parametrize("every", [True, False], ids=["all", "last"])
@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "leaky_relu"])
def test_float32_is_right_to_its_last_digits(activation, every):
    dynamics = Dynamics(ACTIVATIONS[activation], "euler", True, True)
    operands = make(dynamics, (3, 200, 4, 34), True, 0, True, torch.float32)
    assert_equals_plain_form(dynamics, operands, 3e-6, every)


def test_tanh_and_sigmoid_are_accurate_for_small_and_large_numbers():
    numbers = torch.tensor(
        [0.0, 1e-30, -1e-8, 1e-4, -0.01, 0.1, 0.3466, 1, -5, 9, 20, 90, -1e4]
    )
    for kind, wanted in (("tanh", torch.tanh), ("sigmoid", torch.sigmoid)):
        for dtype, tolerance in ((torch.float32, 3e-7), (torch.float64, 5e-16)):
            operands = Operands(
                inputs=numbers[:, None, None].repeat(1, 4, 1),
                input_kernel=torch.ones(1, 1),
                bias=torch.zeros(1),
                recurrent_kernel=torch.zeros(1, 1),
                expansion=torch.zeros(0, 1),
                step_size=torch.ones(1, 1),
                modulus_bias=torch.zeros(0),
                resets=torch.zeros(0, 0),
                initial_state=torch.zeros(len(numbers), 1),
            )
            operands = Operands(*(part.to(dtype) for part in operands))
            dynamics = Dynamics(ACTIVATIONS[kind])
            _, got = native.nonlinear_scan(dynamics, operands)
            expected = wanted(operands.inputs[:, 0].double())
            # Beyond exp(-80) zero is good enough.
            error = (got.double() - expected).abs()
            assert (error <= tolerance * expected.abs() + 1e-34).all(), kind


@pytest.mark.parametrize("units", [2, 34, 130])
def test_a_row_has_the_same_bits_in_any_batch(units):
    dynamics = Dynamics(ACTIVATIONS["tanh"], "rk2", False, False)
    sizes = (11, 9, 35, units)
    operands = Operands(*make(dynamics, sizes, True, 0, False, torch.float32))
    outputs, _ = native.nonlinear_scan(dynamics, operands)
    for first, last in ((0, 1), (1, 3), (3, 6), (6, 10)):
        rows = operands._replace(
            inputs=operands.inputs[first:last],
            initial_state=operands.initial_state[first:last],
        )
        alone, _ = native.nonlinear_scan(dynamics, rows)
        assert torch.equal(alone, outputs[first:last])


def test_nan_propagates():
    for activation in ("tanh", "sigmoid", "relu", "leaky_relu", "modrelu"):
        dynamics = Dynamics(ACTIVATIONS[activation])
        operands = make(dynamics, (2, 5, 3, 4), False, 0, False, torch.float32)
        operands[0][0, 2] = torch.nan
        outputs, _ = native.nonlinear_scan(dynamics, Operands(*operands))
        assert outputs[0, 2:].isnan().any(-1).all()
        assert not outputs[1].isnan().any()


def test_nan_and_infinity_do_not_pass_a_reset():
    for value, solver in itertools.product(
        (torch.nan, torch.inf), (None, "rk2")
    ):
        dynamics = Dynamics(ACTIVATIONS["linear"], solver)
        operands = make(
            dynamics, (4, 9, 3, 4), False, 0, False, torch.float32, True
        )
        operands[7][2:] = torch.arange(9) == 4
        # Of the outputs before the reset, and of the cotangents after it.
        operands[0][2, 1] = value
        operands = [part.requires_grad_() for part in operands]
        outputs, final = native.nonlinear_scan(dynamics, Operands(*operands))
        assert not outputs[2, 1:4].isfinite().any()
        assert outputs[2, 4:].isfinite().all() and final.isfinite().all()
        d_outputs = torch.ones_like(outputs)
        d_outputs[3, 6] = value
        d_inputs, d_initial = torch.autograd.grad(
            outputs, (operands[0], operands[-1]), d_outputs
        )
        assert d_inputs[2, 4:].isfinite().all()
        assert not d_inputs[3, 4:7].isfinite().any()
        assert (
            d_inputs[3, :4].isfinite().all() and d_initial[3].isfinite().all()
        )


def test_vmap_runs_several_systems_at_once():
    dynamics = Dynamics(ACTIVATIONS["tanh"], "euler")
    operands = make(dynamics, (2, 6, 3, 4), True, 0, False, torch.float32)
    kernels = torch.stack([operands[1], 2 * operands[1]])

    def run(kernel):
        moved = Operands(operands[0], kernel, *operands[2:])
        return native.nonlinear_scan(dynamics, moved)[0]

    got = torch.vmap(run)(kernels)
    for one, kernel in zip(got, kernels):
        assert torch.equal(one, run(kernel))
