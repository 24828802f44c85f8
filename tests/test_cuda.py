"""PyTorch's CUDA kernels of the linear scan: emulated, and on any GPU."""

import keras
import numpy as np
import pytest
from autodiff import numerical_gradients
from autodiff import relative_error
from definitions import scan as definition

if keras.backend.backend() != "torch":
    pytest.skip("CUDA kernels are for PyTorch", allow_module_level=True)

import torch
from cuda_emulation import compiled_by_nvcc
from cuda_emulation import emulation as emulation

from keras_linrec.kernels.adjoint import adjoint
from keras_linrec.kernels.reference import scan as plain_scan
from keras_linrec.kernels.torch import cuda


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
    """Gradients by the adjoint of the plain scan, in float64."""

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
    """Compare the forward and backward pass with float64."""
    tolerance = 1e-12 if dtype == torch.float64 else 5e-5
    if field == "real":
        arrays = tuple(array.real for array in arrays)
    # Rounded beforehand, so that only the arithmetic differs.
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
        # Of seven chunks for five steps, two are empty.
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
def test_leading_axes_are_independent_systems(emulation, per_step):
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
def test_other_dtypes_are_refused(emulation, dtypes):
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


def test_tensors_on_two_devices_are_refused(emulation):
    decay, inputs = (torch.ones(3),), (torch.ones(2, 4, 3),)
    state = (torch.ones(2, 3, device="meta"),)
    with pytest.raises(ValueError, match="Received: devices=.*cpu.*meta"):
        cuda.scan(emulation, decay, inputs, state)


@pytest.mark.parametrize(
    ("states", "time", "expected"),
    [
        # Enough rows and channels, so that time is not cut.
        (2**17, 10_000, 1),
        # As many chunks as give 2**17 threads.
        (2**11, 16_384, 64),
        # A single row: about as many chunks as steps in each chunk.
        (16, 20_000, 200),
        (16, 1, 1),
        (0, 5, 3),
    ],
)
def test_time_is_cut_to_fill_the_gpu(states, time, expected):
    assert cuda._chunks(states, time) == expected


@pytest.mark.rest
def test_nvcc_compiles_it(tmp_path):
    library = compiled_by_nvcc(tmp_path / "cuda.so")
    assert all(getattr(library, name) for name in cuda.Library.FUNCTIONS)


@pytest.mark.parametrize("field", ["real", "complex"])
def test_on_a_gpu(tmp_path, field):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    library = compiled_by_nvcc(tmp_path / "cuda.so")
    for time, per_step, reverse in ((1, False, False), (5000, True, True)):
        for dtype in (torch.float32, torch.float64):
            arrays = system(time, per_step, batch=3, channels=5)
            check(library, arrays, field, reverse, dtype, "cuda")
