"""The nonlinear scan of the CUDA core, called as PyTorch calls it."""

import keras
import numpy as np
import pytest
from support.autodiff import relative_error

if keras.backend.backend() != "torch":
    pytest.skip("here PyTorch calls the CUDA core", allow_module_level=True)

import torch
from support.cuda_stand_in import stand_in as stand_in
from support.nonlinear_cases import ACTIVATIONS
from support.nonlinear_cases import random_operands

from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.nonlinear_recurrence import Dynamics
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.kernels.operations.nonlinear_recurrence import flags_and_leak
from keras_linrec.kernels.operations.nonlinear_recurrence import recurrence
from keras_linrec.kernels.torch import cuda
from keras_linrec.kernels.torch.loop import loop

# batch, time, features, units. The third has spare rows and split sums.
SIZES = [(1, 5, 1, 1), (3, 20, 4, 17), (6, 4, 5, 35)]


def operands_of(
    dynamics,
    sizes,
    linear,
    rank,
    dtype,
    leading=(),
    device="cpu",
    resets=False,
):
    """`Operands`, with a size for each step if there is a gate."""
    arrays = random_operands(
        dynamics, sizes, linear, rank, leading=leading, resets=resets
    )
    tensors = [torch.tensor(a, dtype=dtype, device=device) for a in arrays]
    return Operands(*tensors)


def by_plain_form(dynamics, operands, cotangents):
    """Outputs, final state and gradients of the plain form, in float64."""
    operands = [part.detach().double().requires_grad_() for part in operands]
    outputs = recurrence(loop, dynamics, Operands(*operands))
    results = [outputs, outputs[:, -1]]
    gradients = torch.autograd.grad(
        results, operands, cotangents, materialize_grads=True
    )
    return [part.detach() for part in (*results, *gradients)]


def call_of(dynamics, operands):
    """A call that returns all steps."""
    flags, leak = flags_and_leak(dynamics, operands)
    return Call("nonlinear_scan", flags, (leak, 1))


def by_kernels(dynamics, operands, cotangents):
    """Outputs, final state and gradients by the kernels."""
    call = call_of(dynamics, Operands(*operands))
    outputs, final = cuda.nonlinear_scan(call, operands)
    upstream = [part.to(outputs.dtype) for part in cotangents]
    gradients = cuda.nonlinear_scan_backward(
        call.backward, [*operands, outputs, *upstream]
    )
    return [outputs, final, *gradients]


def random_cotangents(operands):
    rng = np.random.default_rng(1)
    (batch, time, _), state = operands[0].shape, operands[-1].shape
    shapes = (batch, time, state[1]), state
    return [
        torch.tensor(rng.standard_normal(shape), device=operands[0].device)
        for shape in shapes
    ]


def check(dynamics, operands, tolerance):
    cotangents = random_cotangents(operands)
    got = by_kernels(dynamics, operands, cotangents)
    expected = by_plain_form(dynamics, operands, cotangents)
    names = "outputs", "final_state", *Operands._fields
    for name, one, other in zip(names, got, expected, strict=True):
        assert one.shape == other.shape, name
        if other.numel():
            one, other = one.cpu().double(), other.cpu()
            assert relative_error(one, other) < tolerance, name


def forms(solver):
    """Whether there is A, whether there is a gate, and the rank of I - R."""
    if solver is None:
        return [(False, False, 0), (False, False, 3)]
    return [
        (False, False, 0),
        (True, False, 0),
        (True, True, 0),
        (False, True, 3),
        (False, True, 0),
    ]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("solver", [None, "euler", "rk2", "rk4"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_equals_the_plain_form(stand_in, activation, solver, sizes):
    for linear, gated, rank in forms(solver):
        dynamics = Dynamics(ACTIVATIONS[activation], solver, gated)
        operands = operands_of(dynamics, sizes, linear, rank, torch.float64)
        check(dynamics, operands, 1e-12)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("solver", [None, "euler", "rk4"])
def test_resets_equal_the_plain_form(stand_in, solver, sizes):
    for linear, gated, rank in forms(solver):
        dynamics = Dynamics(keras.activations.tanh, solver, gated)
        operands = operands_of(
            dynamics, sizes, linear, rank, torch.float64, resets=True
        )
        for backwards in (0, 1):
            stand_in(backwards=backwards)
            check(dynamics, operands, 1e-12)


def test_a_nan_stops_at_a_reset(stand_in):
    dynamics = Dynamics(keras.activations.tanh, "rk2")
    operands = operands_of(
        dynamics, (2, 9, 3, 4), True, 0, torch.float32, resets=True
    )
    operands.inputs[:, 3] = torch.nan
    operands.resets[:] = 0
    operands.resets[0, 6] = 1
    call = call_of(dynamics, operands)
    outputs, final = cuda.nonlinear_scan(call, operands)
    missing = outputs.isnan().any(-1)
    assert missing[0].nonzero().flatten().tolist() == [3, 4, 5]
    assert missing[1].nonzero().flatten().tolist() == [3, 4, 5, 6, 7, 8]
    assert not final[0].isnan().any()
    # Nor does that of a cotangent go on to the steps before one.
    operands.inputs[:, 3] = 0
    outputs, final = cuda.nonlinear_scan(call, operands)
    d_outputs = torch.ones_like(outputs)
    d_outputs[:, 7] = torch.nan
    d_inputs, *_, d_initial_state = cuda.nonlinear_scan_backward(
        call.backward, [*operands, outputs, d_outputs, final]
    )
    missing = d_inputs.isnan().any(-1)
    assert missing[0].nonzero().flatten().tolist() == [6, 7]
    assert missing[1].nonzero().flatten().tolist() == [*range(8)]
    assert not d_initial_state[0].isnan().any()


def test_it_is_right_in_float32(stand_in):
    dynamics = Dynamics(keras.activations.tanh, "rk2", gated=True)
    operands = operands_of(dynamics, (3, 100, 4, 34), True, 0, torch.float32)
    check(dynamics, operands, 3e-6)


def test_a_blocks_memory_and_the_order_of_its_threads_change_nothing(stand_in):
    dynamics = Dynamics(keras.activations.tanh, "rk2", gated=True)
    operands = operands_of(dynamics, (6, 5, 3, 35), True, 0, torch.float64)
    cotangents = random_cotangents(operands)

    def run(*device):
        stand_in(*device)
        return by_kernels(dynamics, operands, cotangents)

    expected = run(2**20, 100, 0)
    # One row per block or four; the matrix inside or outside shared memory, or
    # no room for four rows; threads from the first or from the last.
    for shared_memory in (2**20, 21_000, 8_000):
        for processors in (1, 100):
            for backwards in (0, 1):
                got = run(shared_memory, processors, backwards)
                for one, other in zip(got, expected):
                    assert torch.equal(one, other)


def test_it_takes_leading_axes_and_need_not_give_outputs(stand_in):
    dynamics = Dynamics(keras.activations.tanh, "euler")
    operands = operands_of(
        dynamics, (2, 6, 3, 4), True, 0, torch.float64, leading=(2, 3)
    )
    call = call_of(dynamics, Operands(*(part[0, 0] for part in operands)))
    outputs, final = cuda.nonlinear_scan(call, operands)
    nothing, alone = cuda.nonlinear_scan(call.replace(keep=0), operands)
    assert nothing.shape == (2, 3, 2, 0, 4) and torch.equal(alone, final)
    gradients = cuda.nonlinear_scan_backward(
        call.backward, [*operands, outputs, nothing, final]
    )
    for index in np.ndindex(2, 3):
        one = [part[index] for part in operands]
        cotangents = [torch.zeros_like(outputs[index]), final[index]]
        expected = by_plain_form(dynamics, one, cotangents)
        got = outputs[index], final[index], *(part[index] for part in gradients)
        for name, here, there in zip(
            ("outputs", "final_state", *Operands._fields), got, expected
        ):
            torch.testing.assert_close(here, there, msg=name)


def test_nan_propagates(stand_in):
    for activation in ACTIVATIONS.values():
        dynamics = Dynamics(activation)
        operands = operands_of(dynamics, (2, 5, 3, 4), False, 0, torch.float32)
        operands.inputs[0, 2] = torch.nan
        call = call_of(dynamics, operands)
        outputs, _ = cuda.nonlinear_scan(call, operands)
        assert outputs[0, 2:].isnan().all()
        assert not outputs[1].isnan().any()


def test_no_rows_give_no_gradient(stand_in):
    dynamics = Dynamics(keras.activations.tanh)
    operands = operands_of(dynamics, (0, 5, 3, 4), False, 0, torch.float32)
    cotangents = random_cotangents(operands)
    outputs, _, *gradients = by_kernels(dynamics, operands, cotangents)
    assert outputs.shape == (0, 5, 4)
    assert not any(part.any() for part in gradients)


def test_other_dtypes_are_refused(
    stand_in,
):
    dynamics = Dynamics(keras.activations.tanh, "euler")
    operands = operands_of(dynamics, (2, 5, 3, 4), True, 0, torch.float32)
    call = call_of(dynamics, operands)
    half = [part.bfloat16() for part in operands]
    mixed = [*operands[:-1], operands[-1].double()]
    for refused in (half, mixed):
        with pytest.raises(TypeError, match="nonlinear_scan`.*Received: dty"):
            cuda.nonlinear_scan(call, refused)


def test_autocast_does_not_round(stand_in):
    dynamics = Dynamics(keras.activations.tanh, "euler")
    operands = operands_of(dynamics, (2, 5, 3, 4), True, 0, torch.float32)
    cotangents = random_cotangents(operands)
    expected = by_kernels(dynamics, operands, cotangents)
    with torch.autocast("cpu", torch.bfloat16):
        got = by_kernels(dynamics, operands, cotangents)
    for one, other in zip(got, expected):
        assert torch.equal(one, other)


def test_it_runs_where_its_tensors_are(stand_in):
    dynamics = Dynamics(keras.activations.tanh, "rk2", gated=True)
    operands = operands_of(
        dynamics, (2, 5, 3, 4), True, 0, torch.float32, resets=True
    )
    cotangents = random_cotangents(operands)
    expected = by_kernels(dynamics, operands, cotangents)
    # To which Keras' functions move tensors.
    with keras.device("meta"):
        got = by_kernels(dynamics, operands, cotangents)
    for one, other in zip(got, expected):
        assert torch.equal(one, other)


def test_the_operators_on_a_gpu_return_the_promised_shapes(stand_in):
    from keras_linrec.kernels.torch.operators import ON_CUDA
    from keras_linrec.kernels.torch.operators import OPERATORS

    dynamics = Dynamics(keras.activations.leaky_relu, "rk2")
    operands = list(operands_of(dynamics, (2, 5, 3, 4), True, 0, torch.float32))
    _, flags, (leak, keep) = call_of(dynamics, Operands(*operands))
    call = flags, leak, keep, *operands
    outputs, final = results = ON_CUDA["nonlinear_scan"](*call)
    upstream = flags, leak, *operands, outputs, outputs[:, :0], final

    def promised(operator, call):
        """The operator's results on tensors without values."""
        tensors = [on_meta(argument) for argument in call]
        return operator(*tensors)

    def on_meta(argument):
        if isinstance(argument, torch.Tensor):
            return argument.to("meta")
        return argument

    for got, expected in (
        (results, promised(OPERATORS["nonlinear_scan"], call)),
        (
            ON_CUDA["nonlinear_scan_backward"](*upstream),
            promised(OPERATORS["nonlinear_scan_backward"], upstream),
        ),
    ):
        for one, other in zip(got, expected, strict=True):
            assert one.shape == other.shape and one.is_contiguous()
    # They also agree with the operators on the CPU.
    for one, other in zip(results, OPERATORS["nonlinear_scan"](*call)):
        torch.testing.assert_close(one, other)


def test_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    # Matrices that fit into shared memory and one that does not; one row per
    # block, and several.
    for sizes in ((3, 50, 4, 33), (500, 9, 4, 128), (3, 9, 4, 300)):
        for solver in ("euler", "rk4"):
            for dtype in (torch.float32, torch.float64):
                dynamics = Dynamics(keras.activations.tanh, solver, gated=True)
                operands = operands_of(
                    dynamics, sizes, True, 0, dtype, device="cuda"
                )
                tolerance = 1e-11 if dtype == torch.float64 else 1e-5
                check(dynamics, operands, tolerance)
