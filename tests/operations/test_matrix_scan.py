"""The scan of matrix states against its float64 definition, by every kernel."""

from typing import NamedTuple

import keras
import numpy as np
import pytest
from definitions import matrix_scan as definition
from selection import COMPILING
from selection import standing_for_all
from support.autodiff import BACKEND
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import relative_error
from support.autodiff import second_derivatives
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.conformance_cases import float64
from support.needs_native import each_kernel

from keras_linrec import config
from keras_linrec import kernels
from keras_linrec import ops
from keras_linrec.kernels.operations import matrix_by_chunks

kernel = each_kernel("native", "associative", "reference")
portable = each_kernel("associative")


class Sizes(NamedTuple):
    batch: int
    time: int
    products: int
    query_heads: int
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int


# Chunks of the portable form have up to 32 rows, blocks of the native one 16.
SIZES = [
    Sizes(1, 1, 1, 1, 1, 1, 1, 1),
    Sizes(3, 2, 1, 2, 2, 2, 3, 5),
    Sizes(1, 16, 1, 1, 1, 2, 8, 17),
    Sizes(2, 17, 1, 4, 2, 4, 5, 3),
    Sizes(1, 64, 1, 1, 1, 1, 7, 40),
    Sizes(2, 65, 1, 1, 2, 2, 33, 9),
    Sizes(1, 300, 1, 3, 1, 3, 20, 6),
    Sizes(2, 1, 3, 1, 1, 2, 4, 4),
    Sizes(1, 43, 3, 2, 1, 2, 6, 5),
    Sizes(2, 6, 20, 1, 2, 2, 24, 3),
]
SMALL = Sizes(2, 21, 2, 1, 2, 2, 5, 4)
DECAYS = [None, "heads", "channels", "logarithms", "logarithms of channels"]


class Case(NamedTuple):
    """Arrays by the names of arguments; those left out are not there."""

    arrays: dict
    sizes: Sizes
    resets: np.ndarray | None = None

    def defined(self):
        """The arguments of the definition."""
        sizes, given = self.sizes, dict(self.arrays)
        steps = sizes.batch, sizes.time
        ones = np.ones((*steps, sizes.heads))
        if "log_decay" in given:
            given["decay"] = np.exp(given.pop("log_decay"))
        given.setdefault("decay", ones)
        rows = (*steps, sizes.products, sizes.heads)
        given.setdefault("erase", np.zeros(rows))
        given.setdefault("write", np.ones(rows))
        shape = sizes.batch, sizes.heads, sizes.key_dim, sizes.value_dim
        given.setdefault("initial_state", np.zeros(shape))
        for name in ("keys", "values", "erase", "write"):
            axes = 2 if name in ("keys", "values") else 1
            last = given[name].shape[-axes:]
            given[name] = given[name].reshape(*steps, sizes.products, *last)
        return definition.Arguments(**given)

    def outputs(self):
        return definition.matrix_scan(self.defined(), self.resets)

    def gradients(self, weights):
        """By name, those of sum(weights * outputs)."""
        defined = self.defined()
        found = definition.gradients(defined, *weights, self.resets)._asdict()
        found["log_decay"] = found["decay"] * defined.decay
        return {
            name: found[name].reshape(array.shape)
            for name, array in self.arrays.items()
        }

    def run(self, given):
        """The operation, on a list of tensors for the arrays."""
        named = dict(zip(self.arrays, given, strict=True))
        return ops.matrix_scan(**named, reset_mask=self.resets)


def a_case(sizes, decay="heads", without=(), seed=0, weakest=0.5):
    random = np.random.default_rng([seed, *sizes])
    steps = sizes.batch, sizes.time
    rows = steps if sizes.products == 1 else (*steps, sizes.products)
    keys = random.normal(size=(*rows, sizes.key_heads, sizes.key_dim))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    normal, uniform = random.normal, random.uniform
    shape = sizes.batch, sizes.heads, sizes.key_dim, sizes.value_dim
    arrays = {
        "queries": normal(size=(*steps, sizes.query_heads, sizes.key_dim)),
        "keys": keys,
        "values": normal(size=(*rows, sizes.heads, sizes.value_dim)),
        # The products stay short, whatever the decay.
        "erase": uniform(0, 1.9, (*rows, sizes.heads)),
        "write": normal(size=(*rows, sizes.heads)),
        "initial_state": normal(size=shape),
    }
    if decay:
        channels = (sizes.key_dim,) * ("channels" in decay)
        decays = uniform(weakest, 1, (*steps, sizes.heads, *channels))
        if "logarithms" in decay:
            arrays["log_decay"] = np.log(decays)
        else:
            arrays["decay"] = decays
    for name in without:
        del arrays[name]
    return Case(
        {
            name: array.astype("float32").astype("float64")
            for name, array in arrays.items()
        },
        sizes,
    )


def with_resets(case, seed=0):
    random = np.random.default_rng(seed)
    resets = random.random((case.sizes.batch, case.sizes.time)) < 0.15
    resets[0, 0] = True
    return case._replace(resets=resets)


def weights_for(case):
    random = np.random.default_rng(1)
    return [random.normal(size=part.shape) for part in case.outputs()]


def results(case, weights, dtype="float32"):
    """Outputs, and gradients by name."""
    given = [
        keras.ops.convert_to_tensor(array, dtype)
        for array in case.arrays.values()
    ]
    factors = [keras.ops.convert_to_tensor(part, dtype) for part in weights]

    def loss(given):
        pairs = zip(case.run(given), factors)
        return sum(keras.ops.sum(part * factor) for part, factor in pairs)

    outputs = to_numpy(compiled(case.run)(given))
    slopes = to_numpy(compiled(gradient(loss))(given))
    return outputs, dict(zip(case.arrays, slopes))


def require_defined(case, tolerance=1e-6, dtype="float32"):
    weights = weights_for(case)
    outputs, slopes = results(case, weights, dtype)
    for got, expected in zip(outputs, case.outputs(), strict=True):
        assert relative_error(got, expected) < tolerance
    for name, expected in case.gradients(weights).items():
        assert relative_error(slopes[name], expected) < tolerance, name


@pytest.mark.parametrize(
    "sizes",
    # In tuples of one, which a tuple of sizes is taken for.
    standing_for_all([(sizes,) for sizes in SIZES], ((SIZES[8],),)),
    ids=str,
)
def test_outputs_and_gradients_equal_their_definition(sizes, kernel):
    require_defined(a_case(sizes))


@pytest.mark.parametrize(
    "decay", standing_for_all(DECAYS, ("channels",)), ids=str
)
def test_decays_of_every_kind(decay, kernel):
    require_defined(a_case(SMALL, decay))
    require_defined(a_case(SMALL._replace(products=1, time=70), decay))


@pytest.mark.weekly(*COMPILING)
@pytest.mark.parametrize("decay", [None, "heads", "channels"], ids=str)
@pytest.mark.parametrize(
    "without",
    [("erase",), ("write",), ("erase", "write", "initial_state")],
    ids=str,
)
def test_what_is_left_out_has_its_default(without, decay, kernel):
    require_defined(a_case(SMALL, decay, without))


@pytest.mark.parametrize(
    "decay", standing_for_all(DECAYS, ("logarithms",)), ids=str
)
@pytest.mark.parametrize("without", [(), ("erase",)], ids=str)
def test_resets_drop_the_state(decay, without, kernel):
    require_defined(with_resets(a_case(SMALL, decay, without)))
    long = SMALL._replace(products=1, time=150)
    require_defined(with_resets(a_case(long, decay, without)))


def test_groups_of_chunks_are_of_almost_equal_length(portable, monkeypatch):
    lengths = []
    run = matrix_by_chunks._by_groups
    monkeypatch.setattr(
        matrix_by_chunks,
        "_by_groups",
        lambda *given: lengths.append(given[-1]) or run(*given),
    )
    monkeypatch.setattr(matrix_by_chunks, "_NUMBERS_OF_GROUP", 2**13)
    rows = 8
    assert matrix_by_chunks._rows_of_a_chunk(SMALL.key_dim) == rows
    for time in (65, 97, 200):
        case = a_case(SMALL._replace(batch=1, products=1, time=time))
        case.run(tensors(case.arrays.values()))
        count = -(-time // lengths[-1])
        assert count * lengths[-1] < time + rows * count
    assert len(lengths) == 3 and lengths[-1] > rows


@pytest.mark.weekly(*COMPILING)
@pytest.mark.parametrize("decay", ["heads", "logarithms of channels"])
@pytest.mark.parametrize("products", [1, 3])
def test_groups_of_chunks_equal_the_whole(
    decay, products, portable, monkeypatch
):
    monkeypatch.setattr(matrix_by_chunks, "_NUMBERS_OF_GROUP", 1)
    sizes = SMALL._replace(time=75, products=products)
    require_defined(with_resets(a_case(sizes, decay)))
    # A whole number of groups.
    require_defined(a_case(sizes._replace(time=64), decay))


@pytest.mark.parametrize("decay", ["heads", "channels"])
def test_decays_of_zero_are_exact(decay, kernel):
    case = a_case(SMALL._replace(time=70), decay)
    decays = case.arrays["decay"]
    decays[np.random.default_rng(2).random(decays.shape) < 0.2] = 0.0
    require_defined(case)


@pytest.mark.weekly(*COMPILING)
@pytest.mark.parametrize("decay", ["heads", "channels"])
def test_decays_may_be_tiny_or_negative(decay, kernel):
    case = a_case(SMALL._replace(time=70), decay)
    case.arrays["decay"][:, ::3] = 1e-30
    case.arrays["decay"][:, 1::3] *= -1
    require_defined(case)


@pytest.mark.parametrize(
    "decay", ["logarithms", "logarithms of channels"], ids=str
)
def test_logarithms_of_zero_are_exact(decay, kernel):
    """Minus infinity, the logarithm of 0: nothing is left."""
    case = a_case(SMALL, decay)
    random = np.random.default_rng(2)
    logarithms = case.arrays["log_decay"]
    logarithms[random.random(logarithms.shape) < 0.2] = -np.inf
    require_defined(case)


@pytest.mark.parametrize("decay", ["logarithms", "logarithms of channels"])
def test_logarithms_of_decays_close_to_one_are_exact(decay):
    """As float32, these decays themselves would be off by 4e-6 in the end."""
    case = a_case(Sizes(1, 600, 1, 1, 1, 1, 4, 8), decay, ("erase", "write"))
    case.arrays["log_decay"][:] = np.float32(-1.9e-7)
    case.arrays["values"][:] = np.abs(case.arrays["values"])
    case.arrays["keys"][:] = np.abs(case.arrays["keys"])
    require_defined(case)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("decay", standing_for_all(DECAYS, ("heads",)), ids=str)
def test_nan_does_not_pass_a_reset(decay, bad, kernel):
    # Chunks of 8 rows: each of the sequences lies in several, and two end
    # within one.
    sizes = Sizes(1, 90, 1, 1, 1, 2, 4, 3)
    case = with_resets(a_case(sizes, decay))
    case.resets[:] = False
    case.resets[0, [9, 30]] = True
    weights = weights_for(case)
    # A loss knows nothing of the middle sequence, which is broken.
    weights[0][:, 9:30] = 0.0
    expected_outputs, expected = case.outputs(), case.gradients(weights)
    broken = {name: array.copy() for name, array in case.arrays.items()}
    for name, array in broken.items():
        if name != "initial_state":
            array[:, 12 + len(name)] = bad
        if "decay" in name:
            # Not used at a reset.
            array[:, 30] = bad
    outputs, slopes = results(case._replace(arrays=broken), weights)
    others = np.r_[:9, 30:90]
    got = outputs[0][:, others], outputs[1]
    for one, other in zip(
        got, (expected_outputs[0][:, others], expected_outputs[1]), strict=True
    ):
        assert relative_error(one, other) < 1e-6
    assert not np.isfinite(outputs[0][:, 25]).any()
    for name, slope in slopes.items():
        wanted = expected[name]
        if name != "initial_state":
            slope, wanted = slope[:, others], wanted[:, others]
        assert relative_error(slope, wanted) < 1e-6, name


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "decay", standing_for_all(["heads", "channels"], ("heads",))
)
def test_nan_reaches_no_earlier_output(decay, bad, kernel):
    case = a_case(Sizes(1, 40, 1, 1, 1, 2, 4, 3), decay)
    if kernel == "associative":
        # Only then it looks for them: docs/limits.md.
        case = case._replace(resets=np.zeros((1, 40), bool))
    expected = case.outputs()[0]
    for name in case.arrays.keys() - {"initial_state"}:
        broken = {**case.arrays, name: case.arrays[name].copy()}
        # Within a block, and within a chunk.
        broken[name][:, 21] = bad
        arrays = [array.astype("float32") for array in broken.values()]
        got = to_numpy(case.run(tensors(arrays))[:1])[0]
        assert relative_error(got[:, :21], expected[:, :21]) < 1e-6, name
        assert not np.isfinite(got[:, 21:22]).any(), name


def test_a_state_of_nan_is_dropped(kernel):
    case = a_case(SMALL)
    case = case._replace(resets=np.zeros((2, 21), bool))
    case.resets[:, 0] = True
    weights = weights_for(case)
    expected, slopes = case.outputs(), case.gradients(weights)
    case.arrays["initial_state"][:] = np.nan
    outputs, found = results(case, weights)
    for one, other in zip(outputs, expected, strict=True):
        assert relative_error(one, other) < 1e-6
    for name in found:
        assert relative_error(found[name], slopes[name]) < 1e-6, name


@pytest.mark.weekly(*COMPILING)
@pytest.mark.parametrize("decay", DECAYS, ids=str)
def test_float64_stays_float64(decay, kernel):
    with float64():
        for case in (
            a_case(SMALL, decay),
            with_resets(a_case(SMALL._replace(products=1, time=70), decay)),
        ):
            require_defined(case, 1e-12, "float64")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(dtype, kernel):
    case = a_case(SMALL)
    given = tensors(case.arrays.values())
    halves = [keras.ops.cast(part, dtype) for part in given]
    got = case.run(halves)
    expected = case.run([keras.ops.cast(part, "float32") for part in halves])
    for one, other in zip(got, expected, strict=True):
        assert keras.backend.standardize_dtype(one.dtype) == "float32"
        assert np.array_equal(*to_numpy([one, other]))


@pytest.mark.parametrize("decay", ["heads", "channels"])
def test_one_step_at_a_time_is_the_same(decay, kernel):
    case = a_case(SMALL._replace(time=5), decay)
    expected, final_state = case.outputs()
    outputs, state = [], case.arrays["initial_state"].astype("float32")
    for step in range(5):
        given = {
            name: array[:, step : step + 1].astype("float32")
            for name, array in case.arrays.items()
        }
        output, state = ops.matrix_scan(**{**given, "initial_state": state})
        outputs.append(output)
    got = to_numpy([keras.ops.concatenate(outputs, axis=1), state])
    for one, other in zip(got, (expected, final_state), strict=True):
        assert relative_error(one, other) < 1e-6


@pytest.mark.weekly(*COMPILING)
@pytest.mark.parametrize("decay", ["heads", "channels"])
def test_second_derivatives_are_those_of_the_loop(decay):
    case = with_resets(a_case(SMALL._replace(time=9), decay))
    found = {}
    for name in ("native", "associative", "reference"):
        if kernels.available()[name]:
            config.set_kernel(name)
            found[name] = second_derivatives(case.run, case.arrays.values())
    config.set_kernel(None)
    expected = found.pop("reference")
    for got in found.values():
        for one, other in zip(got, expected, strict=True):
            assert relative_error(one, other) < 1e-5


def test_full_erasure_is_a_reflection(kernel):
    """With e = 2 and no values, S is multiplied by reflections."""
    case = a_case(Sizes(1, 1, 3, 1, 1, 1, 5, 2), None)
    # Column j has no entries above row j, as a product of reflections has it.
    reflectors = np.tril(np.random.default_rng(3).normal(size=(5, 3)))
    reflectors /= np.linalg.norm(reflectors, axis=0)
    # The last reflection there is the first to be applied.
    case.arrays["keys"][0, 0, :, 0] = reflectors.T[::-1]
    case.arrays["erase"][:], case.arrays["values"][:] = 2.0, 0.0
    _, state = to_numpy(case.run(tensors(case.arrays.values())))
    (product,) = to_numpy([ops.reflection_product(*tensors([reflectors]))])
    expected = product @ case.arrays["initial_state"][0, 0]
    assert relative_error(state[0, 0], expected) < 1e-6


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch has no such programs")
@pytest.mark.parametrize("decay", [None, "channels"], ids=str)
def test_batch_and_time_may_be_unknown(decay, kernel):
    case = with_resets(a_case(SMALL._replace(time=70), decay))
    given = [*tensors(case.arrays.values()), case.resets]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        def run(*given):
            named = dict(zip(case.arrays, given))
            return ops.matrix_scan(**named, reset_mask=given[-1])

        signature = [
            tf.TensorSpec([None, *part.shape[1:]], part.dtype)
            if name == "initial_state"
            else tf.TensorSpec([None, None, *part.shape[2:]], part.dtype)
            for name, part in zip([*case.arrays, "resets"], given)
        ]
        outputs = tf.function(run, signature)(*given)
    else:
        import jax
        from jax import export

        def run(*given):
            named = dict(zip(case.arrays, given))
            return ops.matrix_scan(**named, reset_mask=given[-1])

        batch, time = export.symbolic_shape("batch, time")
        shapes = [
            jax.ShapeDtypeStruct(
                (batch, *part.shape[1:])
                if name == "initial_state"
                else (batch, time, *part.shape[2:]),
                part.dtype,
            )
            for name, part in zip([*case.arrays, "resets"], given)
        ]
        program = export.export(jax.jit(run))(*shapes)
        outputs = program.call(*given)
    for got, expected in zip(to_numpy(outputs), case.outputs(), strict=True):
        assert relative_error(got, expected) < 1e-6


def test_a_short_call_is_not_cut_into_chunks():
    options = {"shape": (2, 2, 64)}
    (decision,) = kernels.explain("matrix_scan", **options)
    assert decision.form == "steps"


QUERIES = np.ones((2, 5, 2, 3), "float32")
VALUES = np.ones((2, 5, 4, 6), "float32")
ROWS = np.ones((2, 5, 4), "float32")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": QUERIES[0]}, "`queries` should have the shape"),
        ({"keys": QUERIES[0]}, "`keys` should have the shape"),
        ({"keys": QUERIES[..., :2]}, r"`keys` .* \(2, 5, 2, 3\)"),
        ({"keys": QUERIES[:, :4]}, "`keys` should have the shape"),
        ({"keys": QUERIES[:, :, None]}, "`values` should have the shape"),
        ({"keys": QUERIES[:, :, [0, 1, 1]]}, "`keys` should divide"),
        ({"queries": QUERIES[:, :, [0, 1, 1]]}, "`queries` should divide"),
        ({"values": VALUES[:1]}, "`values` should have the shape"),
        ({"decay": ROWS[..., :2]}, "`decay` should have the shape"),
        ({"log_decay": ROWS[..., :2]}, "`log_decay` should have the shape"),
        ({"decay": ROWS, "log_decay": ROWS}, "should not both be given"),
        ({"erase": ROWS[..., None]}, "`erase` should have the shape"),
        ({"write": ROWS[:, :, None]}, "`write` should have the shape"),
        ({"initial_state": VALUES}, "`initial_state` should have the shape"),
        ({"reset_mask": ROWS}, "`reset_mask` should have the shape"),
        ({"queries": QUERIES[:, :0]}, "at least one time step"),
        ({"keys": np.ones((2, 5, 0, 2, 3))}, "at least one product"),
        ({"decay": "fast"}, "`decay`"),
    ],
    ids=lambda value: value if isinstance(value, str) else "_".join(value),
)
def test_wrong_arguments_are_refused(changes, message):
    given = {"queries": QUERIES, "keys": QUERIES, "values": VALUES}
    with pytest.raises(ValueError, match=message) as error:
        ops.matrix_scan(**{**given, **changes})
    assert "Received: " in str(error.value)
