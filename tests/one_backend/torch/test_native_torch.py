"""The native kernels as PyTorch's operators."""

import subprocess
import sys

import pytest
import torch
from support import TESTS
from support.needs_native import require_native

from keras_linrec import ops
from keras_linrec.kernels import registry
from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.call_encoding import flags_of
from keras_linrec.layers import LRU
from keras_linrec.layers import LipschitzRNN
from keras_linrec.ops.structured.impulse_response import impulse_response

native = require_native()

from keras_linrec.kernels.torch.operators import OPERATORS  # noqa: E402

BATCH, TIME, CHANNELS, FEATURES, UNITS = 2, 7, 3, 4, 5


def rand(*shape, dtype=torch.float64):
    return torch.rand(*shape, dtype=dtype, requires_grad=True)


def arguments(field, per_step, dtype=torch.float64):
    """Lists of one or two tensors: decay, inputs, state, two kernels."""
    shapes = (
        (BATCH, TIME, CHANNELS) if per_step else (CHANNELS,),
        (BATCH, TIME, CHANNELS),
        (BATCH, CHANNELS),
        (FEATURES, CHANNELS),
        (CHANNELS, UNITS),
    )
    return [[rand(*s, dtype=dtype) for _ in range(field)] for s in shapes]


NONE = torch.empty(0, 0)


@pytest.fixture(
    params=[(1, False), (2, True)], ids=["real", "complex_per_step"]
)
def case(request):
    return request.param


def test_the_operators_are_what_pytorch_expects(case):
    decay, inputs, state, into, out = arguments(*case, torch.float32)
    for resets in (NONE, torch.ones(BATCH, TIME)):
        flags = flags_of(decay, True, resets)
        given = flags, decay, inputs, resets, state
        torch.library.opcheck(OPERATORS["scan"].call, given)
    sequences = rand(BATCH, TIME, FEATURES, dtype=torch.float32)
    block = block_length(len(decay) * CHANNELS)
    torch.library.opcheck(
        OPERATORS["projected_scan"].call,
        (flags, block, decay, sequences, into, out, resets, state),
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_first_and_second_derivatives_of_the_scan(case, reverse):
    decay, inputs, state, _, _ = arguments(*case)
    field = len(decay)

    def run(*tensors):
        parts = [tensors[i : i + field] for i in range(0, 3 * field, field)]
        outputs, final_state = native.scan(*parts, reverse)
        return *outputs, *final_state

    given = (*decay, *inputs, *state)
    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.rest
def test_first_and_second_derivatives_of_the_projected_scan(case, reverse):
    decay, _, state, into, out = arguments(*case)
    field = len(decay)

    def run(sequences, *tensors):
        decay, into, out, state = (
            tensors[i : i + field] for i in range(0, 4 * field, field)
        )
        outputs, final_state = native.projected_scan(
            decay, sequences, into, out, state, reverse
        )
        return outputs, *final_state

    given = (rand(BATCH, TIME, FEATURES), *decay, *into, *out, *state)
    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)


def systems(dtype=torch.float64):
    """Arguments of an impulse response: 2 features, 2 channels, 3 states."""
    p, d, q, b = (1 + rand(3, dtype=dtype) for _ in range(4))
    bands = rand(3, 3, dtype=dtype) + torch.eye(3, dtype=dtype)[[1, 1, 0]]
    given = -p, d, q, bands, b, rand(2, dtype=dtype), rand(2, 2, 3, dtype=dtype)
    return [tensor.detach().requires_grad_() for tensor in given]


def test_the_operator_of_the_impulse_response_is_what_pytorch_expects():
    given = 0, 5, 0.5, *systems(torch.float32)
    torch.library.opcheck(OPERATORS["impulse_response"].call, given)


def test_first_and_second_derivatives_of_the_impulse_response():
    given = systems()

    def run(*given):
        return native.impulse_response(*given, 5, 0.7)

    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)


def test_vmap_of_the_impulse_response_equals_a_loop():
    *given, output_matrix = systems()
    several = torch.rand(4, *output_matrix.shape, dtype=torch.float64)

    def run(output_matrix):
        return native.impulse_response(*given, output_matrix, 5, 0.5)

    got = torch.vmap(run)(several)
    assert torch.equal(got, torch.stack([run(one) for one in several]))


def test_torch_func_differentiates_the_impulse_response():
    """The operators do not allow it, so the plain form runs instead."""
    *given, output_matrix = systems()

    def energy(output_matrix):
        response = impulse_response(given[:5], given[5], output_matrix, 5)
        return response.square().sum()

    slope = torch.func.grad(energy)(output_matrix)
    expected = torch.autograd.functional.jacobian(energy, output_matrix)
    assert torch.allclose(slope, expected)


@pytest.mark.filterwarnings("ignore")
def test_the_impulse_response_compiles_without_a_graph_break():
    given = systems(torch.float32)

    def run(*given):
        return native.impulse_response(*given, 5, 0.5).square()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), run(*given))
    got = torch.autograd.grad(compiled(*given).sum(), given)
    expected = torch.autograd.grad(run(*given).sum(), given)
    assert all(torch.equal(*pair) for pair in zip(got, expected))


def test_third_derivatives_exist():
    decay, inputs = rand(CHANNELS), rand(BATCH, TIME, CHANNELS)

    def slope(value):
        return torch.autograd.grad(value, decay, create_graph=True)[0].sum()

    outputs, _ = ops.linear_scan(decay, inputs)
    third = slope(slope(slope(outputs.sum())))
    power = torch.arange(TIME, dtype=torch.float64)
    weights = power * (power - 1) * (power - 2)
    expected = sum(
        (inputs[:, : TIME - lag] * weights[lag] * decay ** (lag - 3.0)).sum()
        for lag in range(3, TIME)
    )
    assert torch.allclose(third, expected)


def test_vmap_equals_a_loop(case):
    decay, _, state, into, out = arguments(*case)
    several = torch.rand(3, BATCH, TIME, FEATURES, dtype=torch.float64)

    def run(sequences):
        return native.projected_scan(decay, sequences, into, out, state)[0]

    got = torch.vmap(run)(several)
    assert torch.equal(got, torch.stack([run(one) for one in several]))
    got.sum().backward()
    assert decay[0].grad.shape == decay[0].shape


def test_functional_derivatives_equal_autograd():
    decay, inputs = rand(CHANNELS), rand(BATCH, TIME, CHANNELS)

    def loss(decay, inputs):
        return (ops.linear_scan(decay, inputs)[0] ** 3).sum()

    expected = torch.autograd.grad(loss(decay, inputs), decay)[0]
    assert torch.allclose(torch.func.grad(loss)(decay, inputs), expected)
    several = torch.stack([decay, 0.5 * decay])
    got = torch.vmap(torch.func.grad(loss), (0, None))(several, inputs)
    assert torch.allclose(got[0], expected)


def test_vmap_of_a_nonlinear_scan_has_gradients_of_its_final_state():
    kernel = rand(UNITS, UNITS)
    several = rand(3, BATCH, TIME, FEATURES)
    into = rand(FEATURES, UNITS)

    def final(inputs):
        return ops.nonlinear_scan(inputs, into, kernel, keep_all=False)[1]

    got = torch.vmap(final)(several)
    expected = torch.stack([final(one) for one in several])
    assert torch.allclose(got, expected)
    parts = (several, into, kernel)
    for one, other in zip(
        torch.autograd.grad(got.sum(), parts),
        torch.autograd.grad(expected.sum(), parts),
    ):
        assert torch.allclose(one, other)


def test_a_layer_that_checks_its_states_may_be_in_a_vmap():
    layer = LipschitzRNN(3)
    several = torch.rand(2, 1, 5, 4)
    expected = torch.stack([layer(one) for one in several])
    assert torch.allclose(torch.vmap(layer)(several), expected, atol=1e-6)


@pytest.mark.parametrize("operation", ["linear", "nonlinear", "convolution"])
def test_forward_mode_is_right_or_refused(operation):
    """Operators have no such derivatives, and would drop the tangents."""
    inputs = torch.rand(1, 3, 1, dtype=torch.float64)
    one = torch.full((1, 1), 0.5, dtype=torch.float64)
    response = torch.rand(1, 1, 3, dtype=torch.float64)
    run = {
        "linear": lambda x: ops.linear_scan(one[0], x)[0],
        "nonlinear": lambda x: ops.nonlinear_scan(x, one, one)[0],
        "convolution": lambda x: ops.causal_convolution(x, response),
    }[operation]

    expected = torch.autograd.functional.jacobian(run, inputs)
    assert expected.abs().sum() > 0
    try:
        got = torch.autograd.functional.jacobian(
            run, inputs, vectorize=True, strategy="forward-mode"
        )
    except (RuntimeError, NotImplementedError):
        return
    assert torch.allclose(got, expected)


def test_a_lazily_negated_tensor_is_read_with_its_sign():
    # The imaginary part of a conjugate has only a flag that negates it.
    numbers = torch.rand(BATCH, TIME, CHANNELS, dtype=torch.complex64).conj()
    assert numbers.imag.is_neg()
    decay = torch.full((CHANNELS,), 0.5)
    outputs, _ = ops.linear_scan(decay, numbers.imag)
    expected, _ = ops.linear_scan(decay, numbers.imag.clone())
    assert torch.equal(outputs, expected)


@pytest.mark.parametrize("time", [2, 9])
def test_under_autocast_numbers_are_float32(time):
    decay, _, state, into, out = arguments(2, False, torch.float32)
    sequences = torch.rand(BATCH, time, FEATURES)
    expected, _ = ops.projected_scan(decay, sequences, into, out, state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, _ = ops.projected_scan(decay, sequences, into, out, state)
    assert torch.allclose(got.float(), expected, rtol=0.05, atol=0.05)
    half = [torch.ones(CHANNELS, dtype=torch.bfloat16)]
    with pytest.raises(TypeError, match="Received: .*bfloat16"):
        OPERATORS["scan"](0, half, [sequences[..., :3]], NONE, [state[0]])


def test_a_list_of_another_length_is_refused():
    decay, inputs, state, _, _ = arguments(2, True)
    flags = flags_of(decay, False, None)
    for place, name in enumerate(("decay", "inputs", "initial_state")):
        given = [decay, inputs, state]
        given[place] = given[place][:1]
        given.insert(2, NONE.double())
        with pytest.raises(ValueError, match=f"`{name}` should have 2 parts"):
            OPERATORS["scan"](flags, *given)


def test_the_self_test_runs_in_inference_mode_too():
    registry._checked.pop("native", None)
    registry._chosen.clear()
    with torch.inference_mode():
        registry.choose("native")
    assert registry._checked["native"]


@pytest.mark.rest
def test_a_forked_process_has_its_own_threads():
    answer = subprocess.run(
        [sys.executable, "-m", "support.fork_worker", "torch"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.stdout.split() == ["child", "same", "parent", "same"], (
        answer.stderr
    )


class Projected(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.given = arguments(2, False, torch.float32)

    def forward(self, sequences):
        decay, _, _, into, out = self.given
        decay = [0.5 * part for part in decay]
        return ops.projected_scan(decay, sequences, into, out)[0]


class Both(torch.nn.Module):
    def forward(self, inputs, decay, rates):
        outputs, _ = ops.linear_scan(decay, inputs)
        return outputs + ops.linear_scan(rates, inputs, reverse=True)[0]


def test_pytorchs_number_of_threads_is_used():
    before = torch.get_num_threads()
    torch.set_num_threads(7)
    described = core.description()
    torch.set_num_threads(before)
    assert "7 threads" in described


# Dynamo warns about PyTorch's own code while it traces.
@pytest.mark.filterwarnings("ignore")
def test_it_compiles_without_a_graph_break():
    given = [
        rand(*shape, dtype=torch.float32)
        for shape in ((2, 9, 3), (3,), (2, 9, 3))
    ]
    model = Both()
    model(*given)
    # The core itself is compiled already; Inductor would take half a minute to
    # compile the addition beside it.
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(run(*given), model(*given))
    got = torch.autograd.grad(run(*given).square().sum(), given)
    expected = torch.autograd.grad(model(*given).square().sum(), given)
    assert all(torch.allclose(*pair) for pair in zip(got, expected))


@pytest.mark.filterwarnings("ignore")
def test_a_layer_compiles_without_a_graph_break():
    layer = LRU(3, state_size=4)
    inputs = rand(2, 9, 3, dtype=torch.float32).detach()
    expected = layer(inputs)
    run = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(run(inputs), expected)


@pytest.mark.filterwarnings("ignore")
def test_it_exports_with_any_batch_and_length():
    def given(batch, time):
        return (
            torch.rand(batch, time, 3),
            torch.rand(3),
            torch.rand(batch, time, 3),
        )

    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("time")}
    program = torch.export.export(
        Both(), tuple(given(2, 9)), dynamic_shapes=(sizes, {}, sizes)
    )
    called = [str(node.target) for node in program.graph.nodes]
    assert sum("keras_linrec.scan" in target for target in called) == 2
    other = given(5, 30)
    assert torch.equal(program.module()(*other), Both()(*other))

    model = Projected()
    program = torch.export.export(
        model, (torch.rand(2, 9, FEATURES),), dynamic_shapes=(sizes,)
    )
    for time in (2, 30, 3000):
        other = torch.rand(5, time, FEATURES)
        assert torch.allclose(program.module()(other), model(other), atol=1e-6)
