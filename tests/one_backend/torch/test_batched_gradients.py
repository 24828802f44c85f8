"""PyTorch's older batched gradients, which do not go through `torch.func`."""

import keras
import pytest
import torch
from support.needs_native import require_native
from support.units import UNITS
from torch.autograd.functional import hessian
from torch.autograd.functional import jacobian

from keras_linrec import ops
from keras_linrec.kernels import registry
from keras_linrec.kernels.operations import OPERATIONS


@pytest.fixture(autouse=True)
def native():
    require_native()


def require_alike(rows, batched):
    torch.testing.assert_close(batched, rows, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_them(name):
    for case in OPERATIONS[name].self_tests:
        function, arrays, *_ = case(registry.load("native"))
        tensors = tuple(map(torch.from_numpy, arrays))

        def run(*tensors, function=function):
            return tuple(function(list(tensors)))

        rows = jacobian(run, tensors)
        require_alike(rows, jacobian(run, tensors, vectorize=True))


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_has_them(name):
    layer = UNITS[name]()
    inputs = keras.random.normal((1, 5, 3))
    layer(inputs)

    def run(inputs):
        return layer(inputs)[:, -2:]

    rows = jacobian(run, inputs)
    require_alike(rows, jacobian(run, inputs, vectorize=True))


def test_second_derivatives_have_them():
    decay, inputs = torch.tensor([0.5, 0.9]), torch.ones(1, 5, 2)

    def run(decay):
        outputs, _ = ops.linear_scan(decay, inputs)
        return (outputs**2).sum()

    require_alike(hessian(run, decay), hessian(run, decay, vectorize=True))
