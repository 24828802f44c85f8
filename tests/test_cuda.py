"""PyTorch's CUDA kernels: as compiled for the CPU, and on any GPU."""

import shutil
import subprocess

import keras
import numpy as np
import pytest
from autodiff import numerical_gradients
from autodiff import relative_error
from definitions import scan as definition

if keras.backend.backend() != "torch":
    pytest.skip("CUDA kernels are for PyTorch", allow_module_level=True)

import torch

from keras_linrec.kernels.adjoint import adjoint
from keras_linrec.kernels.native import build
from keras_linrec.kernels.reference import scan as plain_scan
from keras_linrec.kernels.torch import cuda

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
    return cuda.Library(compiled([*command, "-Wall", "-Werror"], path))


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


def test_nvcc_compiles_it(tmp_path):
    library = cuda.Library(with_nvcc(tmp_path / "cuda.so"))
    assert library.scan and library.scan_backward


@pytest.mark.parametrize("field", ["real", "complex"])
def test_on_a_gpu(tmp_path, field):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    library = cuda.Library(with_nvcc(tmp_path / "cuda.so"))
    for time, per_step, reverse in ((1, False, False), (5000, True, True)):
        for dtype in (torch.float32, torch.float64):
            arrays = system(time, per_step, batch=3, channels=5)
            check(library, arrays, field, reverse, dtype, "cuda")
