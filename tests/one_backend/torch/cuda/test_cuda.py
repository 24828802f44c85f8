"""The linear scan of the CUDA core, called as PyTorch calls it."""

from functools import partial

import keras
import numpy as np
import pytest
from definitions import scan as definition
from support.autodiff import numerical_gradients
from support.autodiff import relative_error

if keras.backend.backend() != "torch":
    pytest.skip("here PyTorch calls the CUDA core", allow_module_level=True)

import torch
from support.core_calls import quantities_of
from support.cuda_stand_in import stand_in as stand_in

import keras_linrec
from keras_linrec.kernels import backends
from keras_linrec.kernels import registry
from keras_linrec.kernels import sections
from keras_linrec.kernels.native.call_encoding import flags_of
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.native.table import flatten
from keras_linrec.kernels.native.table import result_shapes
from keras_linrec.kernels.native.table import sizes_of
from keras_linrec.kernels.operations.adjoint import adjoint
from keras_linrec.kernels.reference import scan as plain_scan
from keras_linrec.kernels.torch import cuda


def system(time, per_step, batch=2, channels=3):
    """Complex decay, inputs, initial state, and cotangents of the results."""
    rng = np.random.default_rng([time, per_step])

    def normal(*shape):
        return rng.standard_normal((*shape, 2)) @ [1, 1j]

    shape = (batch, time, channels) if per_step else (channels,)
    radius = rng.uniform(0.5, 0.999, shape)
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


def results_of(
    name, decay, sequences, state, *cotangents, reverse=False, resets=None
):
    """Quantities, as the CUDA core computes them."""
    if resets is None:
        resets = sequences[0].new_empty((0, 0))
    given = flatten([decay, sequences, resets, state, *cotangents])
    call = Call(name, flags_of(decay, reverse, resets))
    shapes = tuple(tensor.shape for tensor in given)
    results = [
        given[0].new_full(shape, torch.nan)
        for shape in result_shapes(call, shapes)
    ]
    cuda.call(name, call.flags, sizes_of(call, shapes), given, results)
    return quantities_of(call, results)


# Of decay, inputs and initial state; and of decay, outputs, initial state and
# cotangents of the results.
scan = partial(results_of, "scan")
scan_backward = partial(results_of, "scan_backward")


def gradients(
    decay, inputs, initial_state, d_outputs, d_final, reverse, resets=None
):
    """Gradients by the adjoint of the plain scan, in float64."""

    def of(array):
        field = "complex" if np.iscomplexobj(array) else "real"
        return parts(array, field, torch.float64)

    outputs, _ = definition.linear_scan(
        decay, inputs, initial_state, reverse, resets
    )
    results = adjoint(
        plain_scan,
        of(decay),
        of(outputs),
        of(initial_state),
        of(d_outputs),
        reverse,
        of(d_final),
        None if resets is None else torch.tensor(resets).double(),
    )
    return [whole(result) for result in results]


def check(arrays, field, reverse, dtype, device="cpu", resets=None):
    """Compare the forward and backward pass with float64."""
    # What remains is the rounding of the results, and of the outputs as the
    # gradient reads them.
    tolerance = 1e-12 if dtype == torch.float64 else 3e-7
    if field == "real":
        arrays = tuple(array.real for array in arrays)
    # Rounded beforehand, so that only the arithmetic differs.
    tensors = [parts(array, field, dtype, device) for array in arrays]
    arrays = [whole(tensor) for tensor in tensors]
    decay, inputs, state, *cotangents = tensors
    expected = definition.linear_scan(*arrays[:3], reverse, resets)
    marks = None if resets is None else inputs[0].new_tensor(resets)
    outputs, final = scan(decay, inputs, state, reverse=reverse, resets=marks)
    assert relative_error(whole(outputs), expected[0]) < tolerance
    assert relative_error(whole(final), expected[1]) < tolerance
    got = scan_backward(
        decay, outputs, state, *cotangents, reverse=reverse, resets=marks
    )
    expected = gradients(*arrays, reverse, resets)
    for one, other in zip(got, expected, strict=True):
        assert relative_error(whole(one), other) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
@pytest.mark.parametrize("field", ["real", "complex"])
def test_it_equals_the_definition(stand_in, field, per_step, reverse, dtype):
    for time in (1, 5, 100, 3000):
        check(system(time, per_step), field, reverse, dtype)
    # Channels in two tiles, the second of which is not full: one at a time, and
    # several at once.
    for channels in (37, 44):
        check(system(40, per_step, channels=channels), field, reverse, dtype)


@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
def test_numbers_move_several_at_once_where_addresses_allow(stand_in, per_step):
    arrays = system(600, per_step, channels=12)
    tensors = [parts(array, "complex", torch.float32) for array in arrays]
    resets = torch.zeros(2, 600)
    resets[0, 37] = resets[1, 500] = 1.0

    def run(decay, inputs, state, *cotangents):
        outputs, final = scan(decay, inputs, state, resets=resets)
        slopes = scan_backward(
            decay, outputs, state, *cotangents, resets=resets
        )
        return flatten([outputs, final, *slopes])

    def moved(quantity):
        """The same numbers, four bytes behind a multiple of 16."""
        places = [part.new_empty(part.numel() + 1)[1:] for part in quantity]
        return [
            place.copy_(part.flatten()).view(part.shape)
            for place, part in zip(places, quantity)
        ]

    expected = run(*tensors)
    for place in range(len(tensors)):
        given = list(tensors)
        given[place] = moved(given[place])
        for one, other in zip(run(*given), expected, strict=True):
            assert torch.equal(one, other)


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


@pytest.mark.parametrize("distance", [1e-5, 1e-6], ids=str)
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
def test_a_million_steps_with_decays_close_to_one(stand_in, per_step, distance):
    time = 2**20
    ones = torch.ones(1, time, 1)
    decay = torch.full_like(ones if per_step else ones[0, 0], 1 - distance)
    nothing = torch.zeros(1, 1)
    outputs, _ = scan([decay], [ones], [nothing])
    number = float(decay.flatten()[0])
    states = -np.expm1(np.arange(1, time + 1) * np.log(number)) / (1 - number)
    assert relative_error(outputs[0].numpy().ravel(), states) < 1e-6
    d_decay, d_inputs, _ = scan_backward(
        [decay], outputs, [nothing], [ones], [nothing]
    )
    assert relative_error(d_inputs[0].numpy().ravel(), states[::-1]) < 1e-6
    slopes = states[::-1] * np.concatenate([[0.0], states[:-1]])
    expected = slopes if per_step else slopes.sum(keepdims=True)
    assert relative_error(d_decay[0].numpy().ravel(), expected) < 1e-6


def test_the_order_of_blocks_and_threads_changes_nothing(stand_in):
    arrays = system(100_000, True, channels=1)
    tensors = [parts(a, "complex", torch.float32) for a in arrays]
    decay, inputs, state, *cotangents = tensors

    def run(**properties):
        stand_in(**properties)
        outputs, final = scan(decay, inputs, state)
        results = scan_backward(decay, outputs, state, *cotangents)
        return flatten([*outputs, *final, *flatten(results)])

    expected = run(processors=1)
    for properties in ({}, {"backwards": 1}, {"processors": 2}):
        for one, other in zip(run(**properties), expected, strict=True):
            assert torch.equal(one, other)
    stand_in()


def test_a_zero_state_survives_decays_whose_product_overflows(stand_in):
    time = 3000
    inputs = torch.zeros(1, time, 1)
    decay = torch.full((1, time, 1), 4.0)
    decay[0, -1] = 0.5
    state = torch.zeros(1, 1)
    outputs, final = scan([decay], [inputs], [state])
    assert not outputs[0].any() and not final[0].any()


def test_nan_stays_in_its_row_and_in_later_steps(stand_in):
    inputs = torch.ones(2, 3000, 3)
    inputs[1, 1500, 2] = torch.nan
    outputs, _ = scan([torch.full((3,), 0.5)], [inputs], [torch.zeros(2, 3)])
    bad = outputs[0].isnan()
    assert bad[1, 1500:, 2].all() and bad.sum() == 1500


def test_no_rows_give_empty_outputs_and_no_gradient(stand_in):
    decay, inputs = [torch.ones(3)], [torch.ones(0, 4, 3)]
    state = [torch.ones(0, 3)]
    outputs, final = scan(decay, inputs, state)
    assert outputs[0].shape == (0, 4, 3) and final[0].shape == (0, 3)
    d_decay, _, _ = scan_backward(decay, outputs, state, inputs, state)
    assert d_decay[0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "dtypes",
    [[torch.bfloat16] * 3, [torch.float32, torch.float64, torch.float32]],
    ids=["half", "mixed"],
)
def test_other_dtypes_are_refused(stand_in, dtypes):
    shapes = (3,), (2, 4, 3), (2, 3)
    given = [
        [torch.ones(shape, dtype=dtype)] for shape, dtype in zip(shapes, dtypes)
    ]
    with pytest.raises(TypeError, match="keras_linrec.scan`.*Received: dtypes"):
        scan(*given)
    _, sequences, state = given
    with pytest.raises(TypeError, match="scan_backward`.*Received: dtypes"):
        scan_backward(*given, sequences, state)


def test_tensors_on_two_devices_are_refused(stand_in):
    decay, inputs = [torch.ones(3)], [torch.ones(2, 4, 3)]
    state = [torch.ones(2, 3, device="meta")]
    with pytest.raises(ValueError, match="Received: devices=.*cpu.*meta"):
        scan(decay, inputs, state)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
@pytest.mark.parametrize("field", ["real", "complex"])
def test_resets_equal_the_definition(stand_in, field, per_step, reverse):
    for time, share in ((1, 1.0), (5, 0.5), (3000, 0.001)):
        resets = np.random.default_rng(time).uniform(size=(2, time)) < share
        # Beside the edges of pieces and of tiles, whatever their lengths.
        resets[0, [0, -1]] = resets[1, time // 2 :: 97] = True
        arrays = system(time, per_step)
        check(arrays, field, reverse, torch.float32, resets=resets)


@pytest.mark.parametrize("distance", [1, 5, 40, 1500])
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
def test_nan_does_not_reach_past_a_reset(stand_in, per_step, distance):
    time, last = 3000, 1400
    inputs, resets = torch.ones(1, time, 2), torch.zeros(1, time)
    inputs[0, last, 1] = torch.nan
    reset = last + distance
    resets[0, reset] = 1.0
    decay = torch.full_like(inputs if per_step else inputs[0, 0], 0.5)
    if per_step:
        # A decay that no step applies.
        decay[0, reset] = torch.nan
    state = [torch.zeros(1, 2)]
    outputs, final = scan([decay], [inputs], state, resets=resets)
    bad = outputs[0].isnan()[0, :, 1]
    assert bad[last:reset].all() and bad.sum() == distance
    assert not final[0].isnan().any() and outputs[0][0, reset, 1] == 1.0
    cotangent = [torch.ones_like(inputs)]
    d_decay, d_inputs, d_state = scan_backward(
        [decay], outputs, state, cotangent, state, resets=resets
    )
    assert not d_inputs[0].isnan().any() and d_inputs[0][0, reset - 1, 1] == 1
    if per_step:
        # Where the state before the step is NaN, and is used.
        assert d_decay[0].isnan().sum() == distance - 1
        assert d_decay[0][0, reset].tolist() == [0.0, 0.0]


def test_a_launch_that_fails_says_why(stand_in):
    given = [torch.ones(3)], [torch.ones(2, 4, 3)], [torch.ones(2, 3)]
    stand_in(shared_memory=100)
    with pytest.raises(RuntimeError, match="scan_float_real: invalid arg"):
        scan(*given)
    stand_in()
    scan(*given)


@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
def test_the_operators_run_on_it(stand_in, monkeypatch, per_step):
    from keras_linrec.kernels.torch import operators

    native_scan = registry.load("native").scan
    arrays = system(20, per_step)
    tensors = [parts(array, "complex", torch.float64) for array in arrays]
    decay, inputs, state, *cotangents = tensors

    def run():
        """Results and gradients; of two systems at once, too."""
        arguments = [part.clone().requires_grad_() for part in flatten(tensors)]
        given = [arguments[2 * i : 2 * i + 2] for i in range(3)]
        results = flatten(native_scan(*given))
        slopes = torch.autograd.grad(
            results, flatten(given), flatten(cotangents)
        )
        pairs = [
            [torch.stack([part, 2 * part]) for part in quantity]
            for quantity in (decay, inputs, state)
        ]
        mapped = flatten(torch.vmap(native_scan)(*pairs))
        return [*results, *slopes, *mapped]

    expected = run()
    monkeypatch.setitem(operators.CALLS, "cpu", cuda.call)
    for one, other in zip(run(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_layers_run_on_it(stand_in, monkeypatch):
    """As on a GPU: in sections, by the kernels of the CUDA core."""
    from keras_linrec.kernels.torch import operators

    inputs = torch.randn(2, 40, 3, generator=torch.manual_seed(1))
    units = (
        keras_linrec.layers.RotRNN(4, state_size=8, num_heads=2),
        (keras_linrec.layers.LDStack(4, state_size=6)),
    )

    def run(layer):
        given = inputs.clone().requires_grad_()
        outputs = layer(given)
        weights = [weight.value for weight in layer.trainable_weights]
        slopes = torch.autograd.grad(
            (outputs**2).sum(), [given, *weights], materialize_grads=True
        )
        return [outputs, *slopes]

    expected = [run(layer) for layer in units]
    calls = []

    def call(name, *given):
        calls.append(name)
        cuda.call(name, *given)

    facts = {"platform": "cuda", "operators": True, "unrolled": False}
    monkeypatch.setattr(backends.current(), "describe", lambda tensor: facts)
    monkeypatch.setitem(operators.CALLS, "cpu", call)
    monkeypatch.setattr(sections, "_BYTES", 16 * 2 * 16 * 4)
    for layer, results in zip(units, expected):
        calls.clear()
        for one, other in zip(run(layer), results, strict=True):
            arrays = (part.detach().numpy() for part in (one, other))
            assert relative_error(*arrays) < 2e-5
        assert set(calls) == {"scan", "scan_backward"}


@pytest.mark.parametrize("field", ["real", "complex"])
def test_on_a_gpu(field):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    for time, per_step, reverse in ((1, False, False), (50_000, True, True)):
        for dtype in (torch.float32, torch.float64):
            arrays = system(time, per_step, batch=3, channels=5)
            check(arrays, field, reverse, dtype, "cuda")
