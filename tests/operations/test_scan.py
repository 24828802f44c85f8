"""The scans against their float64 definition, with every kernel."""

import keras
import numpy as np
import pytest
import scipy.signal
from definitions import scan as definition
from selection import standing_for_all
from support.autodiff import BACKEND
from support.autodiff import backend_gradients
from support.autodiff import gradient
from support.autodiff import numerical_gradients
from support.autodiff import relative_error
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.needs_native import each_kernel
from support.needs_native import require_jit_compiler

import keras_linrec
from keras_linrec import kernels
from keras_linrec import ops

LENGTHS = standing_for_all([1, 2, 3, 63, 500], (63,))
KERNELS = ["native", "associative", "sequential", "reference"]
SLOW = [pytest.mark.slow] * (BACKEND == "torch")

# Both run the same code: the selection has one of each.
FORWARD = pytest.mark.parametrize(
    "reverse",
    standing_for_all([False, True], (False,)),
    ids=["forward", "reverse"],
)
PER_STEP = pytest.mark.parametrize(
    "per_step",
    standing_for_all([False, True], (True,)),
    ids=["fixed", "per_step"],
)


kernel = each_kernel(*KERNELS)


def system(time, per_step, batch=2, channels=3, seed=0):
    """Random complex decay, inputs and initial state, in two parts each."""
    generator = np.random.default_rng([seed, time])
    shape = (batch, time, channels) if per_step else (channels,)
    radius = generator.uniform(0.5, 0.999, shape)
    angle = generator.uniform(0, 2 * np.pi, shape)
    normal = generator.standard_normal
    arrays = [
        radius * np.cos(angle),
        radius * np.sin(angle),
        normal((batch, time, channels)),
        normal((batch, time, channels)),
        normal((batch, channels)),
        normal((batch, channels)),
    ]
    return [array.astype("float32").astype("float64") for array in arrays]


def some_resets(time):
    return np.random.default_rng(time).random((2, time)) < 0.2


def dropped(decay, resets, reverse):
    """The decays of the definition, which are zero where states are dropped."""
    if resets is None:
        return decay
    if reverse:
        # The first step that is read of a sequence is its last.
        resets = np.roll(resets, -1, axis=1)
        resets[:, -1] = False
    return np.where(resets[..., None], 0.0, decay)


def real_scan(reverse, resets=None):
    options = {"reverse": reverse, "reset_mask": resets}

    def run(arguments):
        return ops.linear_scan(*arguments, **options)

    def define(arguments):
        decay, *others = arguments
        decay = dropped(decay, resets, reverse)
        return definition.linear_scan(decay, *others, reverse=reverse)

    return run, define


def complex_scan(reverse, resets=None):
    options = {"reverse": reverse, "reset_mask": resets}

    def run(arguments):
        decay, inputs, state = zip(arguments[::2], arguments[1::2])
        outputs, final = ops.complex_linear_scan(
            decay, inputs, state, **options
        )
        return *outputs, *final

    def define(arguments):
        decay, *others = (
            r + 1j * i for r, i in zip(arguments[::2], arguments[1::2])
        )
        decay = dropped(decay, resets, reverse)
        outputs, final = definition.linear_scan(decay, *others, reverse=reverse)
        return outputs.real, outputs.imag, final.real, final.imag

    return run, define


def case(field, time, per_step, reverse, resets=None):
    arrays = system(time, per_step)
    if field == "real":
        return *real_scan(reverse, resets), arrays[::2]
    return *complex_scan(reverse, resets), arrays


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
@pytest.mark.parametrize("field", ["real", "complex"])
@pytest.mark.parametrize("time", LENGTHS)
def test_scan_equals_its_definition(kernel, time, field, per_step, reverse):
    for resets in (None, some_resets(time)):
        run, define, arrays = case(field, time, per_step, reverse, resets)
        outputs = to_numpy(run(tensors(arrays)))
        for got, expected in zip(outputs, define(arrays), strict=True):
            assert relative_error(got, expected) < 2e-5 + 2e-7 * time


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
@pytest.mark.parametrize("field", ["real", "complex"])
@pytest.mark.parametrize("time", standing_for_all([1, 2, 7], (7,)))
def test_every_gradient_equals_that_of_the_definition(
    kernel, time, field, per_step, reverse
):
    run, define, arrays = case(field, time, per_step, reverse)
    generator = np.random.default_rng(1)
    weights = [generator.standard_normal(o.shape) for o in define(arrays)]
    got = backend_gradients(run, arrays, weights)
    expected = numerical_gradients(define, arrays, weights)
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-4


@pytest.mark.parametrize("reverse", standing_for_all([False, True], (False,)))
@pytest.mark.parametrize("per_step", standing_for_all([False, True], (True,)))
def test_zeros_stay_zero_where_growth_overflows(kernel, per_step, reverse):
    """The product of the decays overflows, and is multiplied by zero."""
    time = 1000
    decay = np.full((2, time, 3) if per_step else (3,), 10.0, "float32")
    inputs = np.zeros((2, time, 3), "float32")
    inputs[:, 0 if reverse else -1] = 5.0
    outputs, _ = ops.linear_scan(decay, inputs, reverse=reverse)
    assert np.array_equal(keras.ops.convert_to_numpy(outputs), inputs)
    pairs = ((decay, decay), (inputs, inputs))
    outputs, _ = ops.complex_linear_scan(*pairs, reverse=reverse)
    for part in outputs:
        assert np.array_equal(keras.ops.convert_to_numpy(part), inputs)


@pytest.mark.parametrize("at", [0, 2], ids=["first", "later"])
def test_a_decay_that_is_not_finite_makes_nan_of_a_zero_state(kernel, at):
    """As 0 * NaN and 0 * infinity do in the definition."""
    inputs = np.ones((2, 6, 1), "float32")
    inputs[:, :at] = 0.0
    decay = np.full((2, 6, 1), 0.5, "float32")
    decay[:, at, 0] = np.nan, np.inf
    outputs, _ = ops.linear_scan(*tensors([decay, inputs]))
    is_nan = np.broadcast_to(np.arange(6)[:, None] >= at, inputs.shape)
    assert np.array_equal(np.isnan(to_numpy([outputs])[0]), is_nan)


def test_the_product_of_decays_may_overflow_where_states_do_not(kernel):
    decay = np.float32([1e-20, 1e-20, 1e30, 1e30])[None, :, None]
    state = np.full((1, 1), 1e10)
    arrays = [decay, np.zeros_like(decay), state]
    outputs, _ = ops.linear_scan(*tensors(arrays))
    expected = np.array([1e-10, 1e-30, 1.0, 1e30])[None, :, None]
    (got,) = to_numpy([outputs])
    assert relative_error(got / expected, np.ones_like(expected)) < 1e-5


@PER_STEP
def test_gradients_of_long_scans_equal_those_of_the_reference(per_step):
    run, define, arrays = case("complex", 500, per_step, False)
    generator = np.random.default_rng(1)
    weights = [generator.standard_normal(o.shape) for o in define(arrays)]
    gradients = {}
    for name in KERNELS:
        keras_linrec.config.set_kernel(name)
        gradients[name] = backend_gradients(run, arrays, weights)
    keras_linrec.config.set_kernel(None)
    for name in KERNELS[:-1]:
        for one, other in zip(gradients[name], gradients["reference"]):
            assert relative_error(one, other) < 1e-4


@FORWARD
@PER_STEP
@pytest.mark.parametrize(
    "field", standing_for_all(["real", "complex"], ("complex",))
)
def test_second_derivatives_are_right(kernel, field, per_step, reverse):
    run, define, arrays = case(field, 5, per_step, reverse)

    def loss(arguments):
        return sum(keras.ops.sum(o * o * o) for o in run(arguments))

    def squared_gradient(arguments):
        return sum(keras.ops.sum(g * g) for g in gradient(loss)(arguments))

    second = to_numpy(gradient(squared_gradient)(tensors(arrays)))

    def numerical_squared_gradient(arguments):
        cubed = numerical_gradients(
            lambda a: [o**3 for o in define(a)], arguments, [1.0] * 4, 1e-5
        )
        return [sum(np.sum(g * g) for g in cubed)]

    rng = np.random.default_rng(2)
    directions = [rng.standard_normal(array.shape) for array in arrays]
    step = 1e-4
    above, below = (
        numerical_squared_gradient(
            [a + sign * step * d for a, d in zip(arrays, directions)]
        )[0]
        for sign in (1, -1)
    )
    expected = (above - below) / (2 * step)
    got = sum(np.sum(s * d) for s, d in zip(second, directions))
    assert abs(got - expected) < 1e-3 * abs(expected)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("per_step", [False, True], ids=["fixed", "per_step"])
@pytest.mark.parametrize("time", LENGTHS)
def test_projected_scan_equals_its_definition(time, per_step, reverse):
    generator = np.random.default_rng(time)
    *decay, _, _, real, imag = system(time, per_step)
    inputs, *kernels = (
        generator.standard_normal(shape).astype("float32").astype("float64")
        for shape in ((2, time, 5), (5, 3), (5, 3), (3, 4), (3, 4))
    )

    def pair(parts):
        return parts[0] + 1j * parts[1]

    arguments = [
        tensors(decay),
        *tensors([inputs]),
        tensors(kernels[:2]),
        tensors(kernels[2:]),
    ]
    options = {"initial_state": tensors([real, imag]), "reverse": reverse}
    tolerance = 2e-5 + 2e-7 * time
    for resets in (None, some_resets(time)):
        expected, expected_final = definition.projected_scan(
            dropped(pair(decay), resets, reverse),
            inputs,
            pair(kernels[:2]),
            pair(kernels[2:]),
            real + 1j * imag,
            reverse,
        )
        options["reset_mask"] = resets
        outputs, final = ops.projected_scan(*arguments, **options)
        assert relative_error(to_numpy([outputs])[0], expected) < tolerance
        assert relative_error(pair(to_numpy(final)), expected_final) < tolerance
        none, final = ops.projected_scan(*arguments, **options, keep_all=False)
        assert none is None
        assert relative_error(pair(to_numpy(final)), expected_final) < tolerance


@pytest.mark.parametrize("count", [1, 4, 33])
@pytest.mark.parametrize("form", ["complex", "real", "per_step"])
def test_a_feedthrough_is_added_to_the_outputs(count, form):
    generator = np.random.default_rng(count)
    parts = 1 if form == "real" else 2

    def draw(*shape):
        return generator.uniform(-0.7, 0.7, shape).astype("float32")

    def number(*shape):
        drawn = tuple(draw(*shape) for _ in range(parts))
        return drawn if parts == 2 else drawn[0]

    decay = number(2, 9, 3) if form == "per_step" else number(3)
    inputs, feedthrough = draw(2, 9, 40), draw(count, 4)
    arguments = decay, inputs, number(40, 3), number(3, 4)
    plain, state = ops.projected_scan(*arguments)
    outputs, same = ops.projected_scan(*arguments, feedthrough=feedthrough)
    expected = to_numpy([plain])[0] + inputs[..., :count] @ feedthrough
    assert relative_error(to_numpy([outputs])[0], expected) < 1e-5
    for one, other in zip(to_numpy(same), to_numpy(state), strict=True):
        assert relative_error(one, other) < 1e-6
    _, last = ops.projected_scan(*arguments, keep_all=False)
    for one, other in zip(to_numpy(last), to_numpy(state), strict=True):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("shape", [(4, 4), (2, 5), (2,)])
def test_a_feedthrough_that_does_not_fit_is_named(shape):
    def pair(*shape):
        return (np.ones(shape, "float32"),) * 2

    with pytest.raises(ValueError, match="Received: feedthrough.shape="):
        ops.projected_scan(
            pair(3),
            np.ones((1, 2, 3), "float32"),
            pair(3, 3),
            pair(3, 4),
            feedthrough=np.ones(shape, "float32"),
        )


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_gradients_of_a_final_state_alone_are_those_of_the_definition(reverse):
    *decay, _, _, real, imag = system(70, False, batch=1)
    generator = np.random.default_rng(0)
    arrays = [*decay, generator.standard_normal((1, 70, 2)), real, imag]
    arrays += list(generator.standard_normal((2, 2, 3)))
    weights = list(generator.standard_normal((2, 1, 3)))

    def run(arguments):
        *decay, inputs, real, imag, into, into_imag = arguments
        return ops.projected_scan(
            decay,
            inputs,
            (into, into_imag),
            (keras.ops.ones((3, 1)),) * 2,
            (real, imag),
            reverse,
            keep_all=False,
        )[1]

    def define(arguments):
        *decay, inputs, real, imag, into, into_imag = arguments
        final = definition.projected_scan(
            decay[0] + 1j * decay[1],
            inputs,
            into + 1j * into_imag,
            np.ones((3, 1), complex),
            real + 1j * imag,
            reverse,
        )[1]
        return final.real, final.imag

    got = backend_gradients(run, arrays, weights)
    expected = numerical_gradients(define, arrays, weights)
    for one, other in zip(got, expected):
        assert relative_error(one, other) < 1e-4


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("native", 1e-4),
        # It takes minutes if each step is a call of the framework.
        pytest.param("sequential", 1e-4, marks=pytest.mark.slow),
        # Powers of the decay in float32: the 500,000th power of a number that
        # is off by 6e-8 is off by 3%, most of which averages out in the sums.
        pytest.param("associative", 1e-2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.rest("jax", "tensorflow")
def test_a_million_steps_stay_accurate(name, tolerance):
    steps, channels = 1_000_000, 3
    generator = np.random.default_rng(0)
    radius = 1 - np.array([1e-6, 1e-4, 1e-2])
    angle = generator.uniform(0, 2 * np.pi, channels)
    arrays = [radius * np.cos(angle), radius * np.sin(angle)]
    arrays += list(generator.standard_normal((2, 1, steps, channels)))
    arrays += list(generator.standard_normal((2, 1, channels)))
    arrays = [a.astype("float32").astype("float64") for a in arrays]
    weights = list(generator.standard_normal((2, 1, steps, channels)))
    weights += list(generator.standard_normal((2, 1, channels)))
    weights = [w.astype("float32").astype("float64") for w in weights]
    decay, inputs, state, d_outputs, d_final = (
        real + 1j * imag
        for real, imag in zip((arrays + weights)[::2], (arrays + weights)[1::2])
    )

    def recurrence(rate, rows):
        """The same recurrence by SciPy in float64, channel by channel."""
        return np.stack(
            [
                scipy.signal.lfilter([1], [1, -rate[c]], rows[0, :, c])
                for c in range(channels)
            ],
            axis=-1,
        )[None]

    inputs[:, 0] += decay * state
    outputs = recurrence(decay, inputs)
    d_outputs[:, -1] += d_final
    d_inputs = recurrence(decay.conj(), d_outputs[:, ::-1])[:, ::-1]
    before = np.concatenate([state[:, None], outputs[:, :-1]], axis=1)
    d_decay = (before.conj() * d_inputs).sum((0, 1))
    gradients = d_decay, d_inputs, decay.conj() * d_inputs[:, 0]

    if not kernels.available()[name]:
        tolerance = 1e-2
    keras_linrec.config.set_kernel(name)
    run, _ = complex_scan(False)
    got = to_numpy(run(tensors(arrays)))
    slopes = backend_gradients(run, arrays, weights)
    keras_linrec.config.set_kernel(None)
    for index, expected in enumerate((outputs, outputs[:, -1])):
        pair = got[2 * index] + 1j * got[2 * index + 1]
        # Channel by channel, because the slowest decay has the largest numbers.
        for c in range(channels):
            assert relative_error(pair[..., c], expected[..., c]) < tolerance
    for index, expected in enumerate(gradients):
        pair = slopes[2 * index] + 1j * slopes[2 * index + 1]
        for c in range(channels):
            assert relative_error(pair[..., c], expected[..., c]) < tolerance


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_inputs_are_accumulated_in_float32(dtype):
    decay, inputs = tensors([np.full(1, 0.999), np.ones((1, 500, 1))])
    inputs = keras.ops.cast(inputs, dtype)
    outputs, final = ops.linear_scan(decay, inputs)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    expected = (1 - np.float32(0.999).astype("float64") ** 500) / (
        1 - np.float32(0.999).astype("float64")
    )
    assert abs(to_numpy([final])[0][0, 0] / expected - 1) < 1e-5


# Dynamo warns about PyTorch's own code while it traces.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "jit_compile"),
    standing_for_all([(name, False) for name in KERNELS], [("native", False)])
    # Not the reference: XLA cannot differentiate its loop on TensorFlow, and
    # Dynamo would unroll it.
    + [
        pytest.param(
            name,
            True,
            marks=[
                pytest.mark.rest,
                # PyTorch compiles the portable kernels for a minute.
                *([pytest.mark.weekly("torch")] if name == "native" else SLOW),
            ],
        )
        for name in KERNELS[:-1]
    ],
)
def test_scan_runs_in_a_functional_model_of_any_length(name, jit_compile):
    if jit_compile:
        require_jit_compiler()
    keras_linrec.config.set_kernel(name)

    @keras.saving.register_keras_serializable("tests")
    class Scan(keras.layers.Layer):
        def call(self, inputs):
            decay = keras.ops.full((3,), 0.9)
            return ops.linear_scan(decay, inputs)[0]

        def compute_output_shape(self, shape):
            return shape

    inputs = keras.Input((None, 2))
    hidden = keras.layers.Dense(3)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(Scan()(hidden)))
    model.compile("sgd", "mse", jit_compile=jit_compile)
    for time in (6,) if jit_compile else (1, 6):
        sequences = np.ones((4, time, 2), "float32")
        before = model.get_weights()[0].copy()
        model.fit(sequences, sequences[..., :1], batch_size=3, verbose=0)
        assert np.abs(model.get_weights()[0] - before).max() > 0
        dense, _ = model.layers[1].get_weights()
        expected, _ = definition.linear_scan(
            np.full(3, 0.9), sequences @ dense + model.layers[1].bias.numpy()
        )
        expected = expected @ model.layers[3].get_weights()[0]
        expected += model.layers[3].get_weights()[1]
        got = model.predict(sequences, verbose=0)
        assert relative_error(got, expected) < 1e-5
    keras_linrec.config.set_kernel(None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((3,), (2, 3)), r"`inputs` should have the shape .* Received: "),
        (((4,), (2, 5, 3)), r"`decay` should .* Received: decay.shape=\(4,\)"),
        (((2, 4, 3), (2, 5, 3)), r"`decay` should .* Received: decay.shape="),
        (((3,), (2, 0, 3)), r"at least one time step. Received: inputs.shape"),
        (((3,), (2, 5, 3), (3, 3)), r"`initial_state` should .* Received: "),
    ],
)
def test_wrong_shapes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        ops.linear_scan(*(np.zeros(a, "float32") for a in arguments))


def test_a_reset_mask_that_does_not_fit_is_named():
    inputs = np.ones((2, 3, 4), "float32")
    with pytest.raises(ValueError, match="`reset_mask` should have the shape"):
        ops.linear_scan(inputs[0, 0], inputs, reset_mask=np.ones((2, 4), bool))


def test_a_complex_argument_that_is_no_pair_is_named():
    one = np.zeros((2, 5, 3), "float32")
    with pytest.raises(ValueError, match="`inputs` should be a pair"):
        ops.complex_linear_scan((one[0, 0], one[0, 0]), one)


def test_projections_that_do_not_fit_are_named():
    def pair(*shape):
        return (np.zeros(shape, "float32"),) * 2

    sequences = np.zeros((2, 5, 3), "float32")
    with pytest.raises(ValueError, match="`input_kernel` should be"):
        ops.projected_scan(pair(4), sequences, pair(2, 4), pair(4, 1))
    with pytest.raises(ValueError, match="`output_kernel` should be"):
        ops.projected_scan(pair(4), sequences, pair(3, 4), pair(3, 1))
