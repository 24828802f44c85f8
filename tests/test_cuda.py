"""PyTorch's CUDA kernels: as compiled for the CPU, and on any GPU."""

import ctypes
import shutil
import subprocess

import keras
import numpy as np
import pytest
from autodiff import numerical_gradients
from autodiff import relative_error
from definitions import scan as definition
from needs_native import require_native

if keras.backend.backend() != "torch":
    pytest.skip("CUDA kernels are for PyTorch", allow_module_level=True)

import torch

from keras_linrec import activations
from keras_linrec.kernels.adjoint import adjoint
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native.call_encoding import nonlinear_flags
from keras_linrec.kernels.nonlinear_recurrence import Dynamics
from keras_linrec.kernels.nonlinear_recurrence import Operands
from keras_linrec.kernels.nonlinear_recurrence import recurrence
from keras_linrec.kernels.reference import scan as plain_scan
from keras_linrec.kernels.torch import cuda
from keras_linrec.kernels.torch.loop import loop

SOURCE = build.SOURCE / "cuda.cu"


def compiled(command, path):
    subprocess.run([*command, str(SOURCE), "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def emulation(tmp_path_factory):
    """The library that computes on the CPU."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler here")
    path = tmp_path_factory.mktemp("cuda") / "emulation.so"
    command = [compiler, "-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC"]
    library = cuda.Library(compiled([*command, "-Wall", "-Werror"], path))
    library.emulate = ctypes.CDLL(str(path)).keras_linrec_cuda_emulate
    return library


def with_nvcc(path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc here")
    return compiled([nvcc, *cuda.nvcc_flags()], path)


def system(time, per_step, leading=(), batch=2, channels=3):
    """Complex decay, inputs, initial state, and cotangents of the results."""
    rng = np.random.default_rng([time, per_step])

    def normal(*shape):
        return rng.standard_normal((*leading, *shape, 2)) @ [1, 1j]

    shape = (batch, time, channels) if per_step else (channels,)
    radius = rng.uniform(0.5, 0.999, (*leading, *shape))
    return (
        radius * np.exp(2j * np.pi * rng.uniform(size=radius.shape)),
        normal(batch, time, channels),
        normal(batch, channels),
        normal(batch, time, channels),
        normal(batch, channels),
    )


def parts(array, field, dtype, device="cpu"):
    arrays = [array.real, array.imag][: 2 if field == "complex" else 1]
    return tuple(
        torch.tensor(a.copy(), dtype=dtype, device=device) for a in arrays
    )


def whole(tensors):
    arrays = [tensor.cpu().double().numpy() for tensor in tensors]
    return arrays[0] if len(arrays) == 1 else arrays[0] + 1j * arrays[1]


def gradients(decay, inputs, initial_state, d_outputs, d_final, reverse):
    """By the adjoint of the plain scan, in float64."""

    def of(array):
        field = "complex" if np.iscomplexobj(array) else "real"
        return parts(array, field, torch.float64)

    outputs, _ = definition.linear_scan(decay, inputs, initial_state, reverse)
    results = adjoint(
        plain_scan,
        of(decay),
        of(outputs),
        of(initial_state),
        of(d_outputs),
        reverse,
        of(d_final),
    )
    return [whole(result) for result in results]


def check(library, arrays, field, reverse, dtype, device="cpu"):
    """Forward and backward against float64."""
    tolerance = 1e-12 if dtype == torch.float64 else 5e-5
    if field == "real":
        arrays = tuple(array.real for array in arrays)
    # Rounded first, so that only the arithmetic differs.
    tensors = [parts(array, field, dtype, device) for array in arrays]
    arrays = [whole(tensor) for tensor in tensors]
    decay, inputs, state, d_outputs, d_final = tensors
    expected = definition.linear_scan(*arrays[:3], reverse)
    outputs, final = cuda.scan(library, decay, inputs, state, reverse)
    assert relative_error(whole(outputs), expected[0]) < tolerance
    assert relative_error(whole(final), expected[1]) < tolerance
    got = cuda.scan_backward(
        library, decay, outputs, state, d_outputs, d_final, reverse
    )
    for one, other in zip(got, gradients(*arrays, reverse), strict=True):
        assert relative_error(whole(one), other) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
@pytest.mark.parametrize("field", ["real", "complex"])
def test_the_emulation_equals_the_definition(
    emulation, monkeypatch, field, per_step, reverse, dtype
):
    for time in (1, 5, 100):
        arrays = system(time, per_step)
        # Seven of five steps: two are empty.
        for chunks in (1, 2, 7):
            monkeypatch.setattr(cuda, "_chunks", lambda *_, n=chunks: n)
            check(emulation, arrays, field, reverse, dtype)


def test_the_gradients_used_here_are_those_of_the_definition():
    decay, inputs, state, d_outputs, d_final = (
        array.real for array in system(5, True)
    )
    expected = numerical_gradients(
        lambda arguments: definition.linear_scan(*arguments),
        [decay, inputs, state],
        [d_outputs, d_final],
    )
    got = gradients(decay, inputs, state, d_outputs, d_final, False)
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-6


@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
def test_axes_in_front_are_systems_of_their_own(emulation, per_step):
    arrays = system(20, per_step, leading=(2, 3))
    tensors = [parts(a, "complex", torch.float64) for a in arrays]
    decay, inputs, state, *cotangents = tensors
    outputs, final = cuda.scan(emulation, decay, inputs, state)
    whole_batch = (
        (outputs, final),
        cuda.scan_backward(emulation, decay, outputs, state, *cotangents),
    )
    for index in np.ndindex(2, 3):
        decay, inputs, state, *cotangents = (
            tuple(part[index] for part in tensor) for tensor in tensors
        )
        outputs, final = cuda.scan(emulation, decay, inputs, state)
        alone = (
            (outputs, final),
            cuda.scan_backward(emulation, decay, outputs, state, *cotangents),
        )
        for many, few in zip(whole_batch, alone):
            for got, expected in zip(many, few):
                for one, other in zip(got, expected):
                    torch.testing.assert_close(one[index], other)


def test_no_rows_give_empty_outputs_and_no_gradient(emulation):
    decay, inputs = (torch.ones(3),), (torch.ones(0, 4, 3),)
    state = (torch.ones(0, 3),)
    outputs, final = cuda.scan(emulation, decay, inputs, state)
    assert outputs[0].shape == (0, 4, 3) and final[0].shape == (0, 3)
    d_decay, _, _ = cuda.scan_backward(
        emulation, decay, outputs, state, inputs, state
    )
    assert d_decay[0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "dtypes",
    [[torch.bfloat16] * 3, [torch.float32, torch.float64, torch.float32]],
    ids=["half", "mixed"],
)
def test_numbers_that_no_kernel_computes_in_are_refused(emulation, dtypes):
    shapes = (3,), (2, 4, 3), (2, 3)
    given = [
        (torch.ones(shape, dtype=dtype),)
        for shape, dtype in zip(shapes, dtypes)
    ]
    with pytest.raises(TypeError, match="keras_linrec.scan`.*Received: dtypes"):
        cuda.scan(emulation, *given)
    _, sequences, state = given
    with pytest.raises(TypeError, match="scan_backward`.*Received: dtypes"):
        cuda.scan_backward(emulation, *given, sequences, state)


def test_tensors_of_two_devices_are_refused(emulation):
    decay, inputs = (torch.ones(3),), (torch.ones(2, 4, 3),)
    state = (torch.ones(2, 3, device="meta"),)
    with pytest.raises(ValueError, match="Received: devices=.*cpu.*meta"):
        cuda.scan(emulation, decay, inputs, state)


@pytest.mark.parametrize(
    ("states", "time", "expected"),
    [
        # Enough rows and channels: time stays whole.
        (2**17, 10_000, 1),
        # As many chunks as make 2**17 threads.
        (2**11, 16_384, 64),
        # A single row: about as many chunks as steps in each.
        (16, 20_000, 200),
        (16, 1, 1),
        (0, 5, 3),
    ],
)
def test_time_is_cut_to_fill_the_gpu(states, time, expected):
    assert cuda._chunks(states, time) == expected


@pytest.mark.rest
def test_nvcc_compiles_it(tmp_path):
    library = cuda.Library(with_nvcc(tmp_path / "cuda.so"))
    assert all(getattr(library, name) for name in cuda.Library.FUNCTIONS)


@pytest.mark.parametrize("field", ["real", "complex"])
def test_on_a_gpu(tmp_path, field):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    library = cuda.Library(with_nvcc(tmp_path / "cuda.so"))
    for time, per_step, reverse in ((1, False, False), (5000, True, True)):
        for dtype in (torch.float32, torch.float64):
            arrays = system(time, per_step, batch=3, channels=5)
            check(library, arrays, field, reverse, dtype, "cuda")


def test_the_nonlinear_scan_on_a_gpu(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    library = cuda.Library(with_nvcc(tmp_path / "cuda.so"))
    # A matrix that shared memory holds and one that it does not; one row a
    # block, and several.
    for sizes in ((3, 50, 4, 33), (500, 9, 4, 128), (3, 9, 4, 300)):
        for solver in ("euler", "rk4"):
            for dtype in (torch.float32, torch.float64):
                dynamics = Dynamics(keras.activations.tanh, solver, gated=True)
                operands = nonlinear_operands(
                    *(dynamics, sizes, True, 0, dtype), device="cuda"
                )
                tolerance = 1e-11 if dtype == torch.float64 else 1e-5
                check_nonlinear(library, dynamics, operands, tolerance)


# The nonlinear scan.

ACTIVATIONS = {
    "linear": keras.activations.linear,
    "relu": keras.activations.relu,
    "leaky_relu": activations.leaky_relu,
    "tanh": keras.activations.tanh,
    "sigmoid": keras.activations.sigmoid,
}
# batch, time, features, units; the third has spare rows and split sums.
SIZES = [(1, 5, 1, 1), (3, 20, 4, 17), (6, 4, 5, 35)]


@pytest.fixture
def gpu(emulation):
    """`gpu(shared_memory, processors, backwards)`, of the emulated one."""

    def emulate(*numbers):
        emulation.emulate(*map(ctypes.c_int64, numbers))

    yield emulate
    emulate(2**16, 4, 0)


def nonlinear_operands(
    dynamics, sizes, linear, rank, dtype, leading=(), device="cpu"
):
    """`Operands`, with a step size for each step if there is a gate."""
    batch, time, features, units = sizes
    rng = np.random.default_rng(0)
    scale = {1: features**-0.5, 3: units**-0.5, 4: units**-0.5}
    shapes = (
        (batch, time, features),
        (features, (1 + dynamics.gated) * units),
        ((1 + dynamics.gated) * units,),
        (units, rank or (1 + linear) * units),
        (rank, units),
        (batch, time) if dynamics.gated else (1, 1),
        (0,),
        (batch, units),
    )
    return Operands(
        *(
            torch.tensor(
                scale.get(place, 1.0) * rng.uniform(-0.7, 0.7, leading + shape),
                dtype=dtype,
                device=device,
            )
            for place, shape in enumerate(shapes)
        )
    )


def nonlinear_plain(dynamics, operands, cotangents):
    """Outputs, final state and gradients of the plain form, in float64."""
    operands = [part.double().requires_grad_() for part in operands]
    outputs = recurrence(loop, dynamics, Operands(*operands))
    results = [outputs, outputs[:, -1]]
    gradients = torch.autograd.grad(
        results, operands, cotangents, materialize_grads=True
    )
    return [part.detach() for part in (*results, *gradients)]


def nonlinear_cuda(library, dynamics, operands, cotangents):
    """The same by the kernels."""
    flags, leak = nonlinear_flags(dynamics, Operands(*operands))
    outputs, final = cuda.nonlinear_scan(library, flags, leak, True, operands)
    gradients = cuda.nonlinear_scan_backward(
        *(library, flags, leak, operands, outputs),
        *(part.to(outputs.dtype) for part in cotangents),
    )
    return [outputs, final, *gradients]


def nonlinear_cotangents(operands):
    rng = np.random.default_rng(1)
    (batch, time, _), state = operands[0].shape, operands[-1].shape
    shapes = (batch, time, state[1]), state
    return [
        torch.tensor(rng.standard_normal(shape), device=operands[0].device)
        for shape in shapes
    ]


def check_nonlinear(library, dynamics, operands, tolerance):
    cotangents = nonlinear_cotangents(operands)
    got = nonlinear_cuda(library, dynamics, operands, cotangents)
    expected = nonlinear_plain(dynamics, operands, cotangents)
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
        *((False, False, 0), (True, False, 0), (True, True, 0)),
        *((False, True, 3), (False, True, 0)),
    ]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("solver", [None, "euler", "rk2", "rk4"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_nonlinear_emulation_equals_the_plain_form(
    emulation, activation, solver, sizes
):
    for linear, gated, rank in forms(solver):
        dynamics = Dynamics(ACTIVATIONS[activation], solver, gated)
        operands = nonlinear_operands(
            dynamics, sizes, linear, rank, torch.float64
        )
        check_nonlinear(emulation, dynamics, operands, 1e-12)


def test_the_nonlinear_emulation_is_right_in_float32(emulation):
    dynamics = Dynamics(keras.activations.tanh, "rk2", gated=True)
    operands = nonlinear_operands(
        dynamics, (3, 100, 4, 34), True, 0, torch.float32
    )
    check_nonlinear(emulation, dynamics, operands, 3e-6)


def test_a_blocks_memory_and_the_order_of_its_threads_change_nothing(
    emulation, gpu
):
    dynamics = Dynamics(keras.activations.tanh, "rk2", gated=True)
    operands = nonlinear_operands(
        dynamics, (6, 5, 3, 35), True, 0, torch.float64
    )
    cotangents = nonlinear_cotangents(operands)

    def run(*device):
        gpu(*device)
        return nonlinear_cuda(emulation, dynamics, operands, cotangents)

    expected = run(2**20, 100, 0)
    # One row a block or four; the matrix in shared memory or out of it, or no
    # room for four rows; threads from the first or from the last.
    for shared_memory in (2**20, 21_000, 8_000):
        for processors in (1, 100):
            for backwards in (0, 1):
                got = run(shared_memory, processors, backwards)
                for one, other in zip(got, expected):
                    assert torch.equal(one, other)


def test_a_nonlinear_scan_takes_axes_in_front_and_nobodys_outputs(emulation):
    dynamics = Dynamics(keras.activations.tanh, "euler")
    operands = nonlinear_operands(
        dynamics, (2, 6, 3, 4), True, 0, torch.float64, leading=(2, 3)
    )
    flags, leak = nonlinear_flags(
        dynamics, Operands(*(part[0, 0] for part in operands))
    )
    outputs, final = cuda.nonlinear_scan(emulation, flags, leak, True, operands)
    nothing, alone = cuda.nonlinear_scan(
        emulation, flags, leak, False, operands
    )
    assert nothing.shape == (2, 3, 2, 0, 4) and torch.equal(alone, final)
    gradients = cuda.nonlinear_scan_backward(
        *(emulation, flags, leak, operands, outputs, nothing, final),
    )
    for index in np.ndindex(2, 3):
        one = [part[index] for part in operands]
        cotangents = [torch.zeros_like(outputs[index]), final[index]]
        expected = nonlinear_plain(dynamics, one, cotangents)
        got = outputs[index], final[index], *(part[index] for part in gradients)
        for name, here, there in zip(
            ("outputs", "final_state", *Operands._fields), got, expected
        ):
            torch.testing.assert_close(here, there, msg=name)


def test_nan_goes_through_a_nonlinear_scan(emulation):
    for activation in ACTIVATIONS.values():
        dynamics = Dynamics(activation)
        operands = nonlinear_operands(
            dynamics, (2, 5, 3, 4), False, 0, torch.float32
        )
        operands.inputs[0, 2] = torch.nan
        flags, leak = nonlinear_flags(dynamics, operands)
        outputs, _ = cuda.nonlinear_scan(emulation, flags, leak, True, operands)
        assert outputs[0, 2:].isnan().all()
        assert not outputs[1].isnan().any()


def test_no_rows_of_a_nonlinear_scan_give_no_gradient(emulation):
    dynamics = Dynamics(keras.activations.tanh)
    operands = nonlinear_operands(
        dynamics, (0, 5, 3, 4), False, 0, torch.float32
    )
    cotangents = nonlinear_cotangents(operands)
    outputs, _, *gradients = nonlinear_cuda(
        emulation, dynamics, operands, cotangents
    )
    assert outputs.shape == (0, 5, 4)
    assert not any(part.any() for part in gradients)


def test_a_nonlinear_scan_refuses_numbers_that_it_does_not_compute_in(
    emulation,
):
    dynamics = Dynamics(keras.activations.tanh, "euler")
    operands = nonlinear_operands(
        dynamics, (2, 5, 3, 4), True, 0, torch.float32
    )
    flags, leak = nonlinear_flags(dynamics, operands)
    half = [part.bfloat16() for part in operands]
    mixed = [*operands[:-1], operands[-1].double()]
    for refused in (half, mixed):
        with pytest.raises(TypeError, match="nonlinear_scan`.*Received: dty"):
            cuda.nonlinear_scan(emulation, flags, leak, True, refused)


def test_autocast_does_not_round_within_a_nonlinear_scan(emulation):
    dynamics = Dynamics(keras.activations.tanh, "euler")
    operands = nonlinear_operands(
        dynamics, (2, 5, 3, 4), True, 0, torch.float32
    )
    cotangents = nonlinear_cotangents(operands)
    expected = nonlinear_cuda(emulation, dynamics, operands, cotangents)
    with torch.autocast("cpu", torch.bfloat16):
        got = nonlinear_cuda(emulation, dynamics, operands, cotangents)
    for one, other in zip(got, expected):
        assert torch.equal(one, other)


def test_the_operators_of_a_gpu_give_what_their_shapes_promise(
    emulation, monkeypatch
):
    require_native()
    from keras_linrec.kernels.torch import operators

    monkeypatch.setattr(operators, "cuda_library", lambda: emulation)
    dynamics = Dynamics(keras.activations.leaky_relu, "rk2")
    operands = list(
        nonlinear_operands(dynamics, (2, 5, 3, 4), True, 0, torch.float32)
    )
    call = *nonlinear_flags(dynamics, Operands(*operands)), True, operands
    outputs, final = results = operators.nonlinear_scan_on_cuda(*call)
    upstream = *call[:2], operands, outputs, outputs[:, :0], final

    def promised(operator, call):
        """What the operator gives on tensors without numbers."""
        tensors = [on_meta(argument) for argument in call]
        return operator(*tensors)

    def on_meta(argument):
        if isinstance(argument, torch.Tensor):
            return argument.to("meta")
        if isinstance(argument, list):
            return [on_meta(part) for part in argument]
        return argument

    for got, expected in (
        (results, promised(operators.nonlinear_scan, call)),
        (
            operators.nonlinear_scan_backward_on_cuda(*upstream),
            promised(operators.nonlinear_scan_backward, upstream),
        ),
    ):
        for one, other in zip(got, expected, strict=True):
            assert one.shape == other.shape and one.is_contiguous()
    # And what the operators compute on the CPU.
    for one, other in zip(results, operators.nonlinear_scan(*call)):
        torch.testing.assert_close(one, other)
