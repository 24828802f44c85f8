"""The table of native operations, and the checks that follow from it."""

import re
from itertools import product
from pathlib import Path

import keras
import numpy as np
import pytest
from support.needs_native import require_native

from keras_linrec import kernels
from keras_linrec.kernels.native.call_encoding import COMPLEX
from keras_linrec.kernels.native.call_encoding import FROM_ZEROS
from keras_linrec.kernels.native.call_encoding import GATED
from keras_linrec.kernels.native.call_encoding import LINEAR
from keras_linrec.kernels.native.call_encoding import LOGARITHMIC
from keras_linrec.kernels.native.call_encoding import PER_STEP
from keras_linrec.kernels.native.call_encoding import POSITIVE
from keras_linrec.kernels.native.call_encoding import RATES
from keras_linrec.kernels.native.call_encoding import RESETS
from keras_linrec.kernels.native.call_encoding import TWO_GATES
from keras_linrec.kernels.native.call_encoding import solver_flags
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.native.table import each_tensor
from keras_linrec.kernels.native.table import nested
from keras_linrec.kernels.native.table import operations
from keras_linrec.kernels.native.table import sizes_of
from keras_linrec.kernels.operations import OPERATIONS

require_native()

# Sizes of the axes that are free; the others follow.
SIZES = {
    **{"b": 2, "t": 7, "f": 4, "c": 3, "u": 5, "n": 6, "l": 4},
    **{"m": 0, "q": 0, "z": 7},
    **{
        "d": 2,
        "o": 2,
        "x": 2,
        "y": 1,
        "h": 4,
        "i": 3,
        "v": 5,
        "a": 3,
        "e": 4,
        "w": 4,
    },
}
ATTRIBUTES = {
    **{"time": 7, "block": 3, "alpha": 0.5},
    **{"leak": 0.0, "keep": 1},
}
NAMES = [one.name for one in operations().values() if one.on_cpu]
FLAGS = {
    "none": 0,
    "all": COMPLEX | PER_STEP | RESETS,
}
GATED_FLAGS = {
    "none": TWO_GATES,
    "all": RATES | POSITIVE | RESETS,
}
NONLINEAR_FLAGS = {
    "none": 0,
    "all": solver_flags("rk2") | LINEAR | GATED | PER_STEP | RESETS,
}


def each_call():
    return pytest.mark.parametrize(
        ("name", "form"), list(product(NAMES, ("none", "all")))
    )


def a_call(name, form, **sizes):
    """A call, and for each tensor its argument and its shape."""
    operation = operations()[name]
    flags = 0
    if "nonlinear" in name:
        flags = NONLINEAR_FLAGS[form]
    elif "gated" in name:
        flags = GATED_FLAGS[form]
    elif operation.is_complex:
        flags = FLAGS[form]
        # Whose numbers are never real.
        if "diagonal" in name or "oscillator" in name:
            flags |= COMPLEX
    elif "matrix" in name and form == "all":
        flags = LOGARITHMIC | RESETS
    elif name.removesuffix("_backward") == "structured_scan":
        flags = {"none": FROM_ZEROS, "all": 0}[form]
    attributes = tuple(ATTRIBUTES[name] for name in operation.attributes)
    call = Call(name, flags, attributes)
    return call, shapes_of(call, operation.arguments, **sizes)


def shapes_of(call, side, **sizes):
    """For each tensor of arguments or results, the quantity and its shape."""
    flags = call.flags
    sizes = SIZES | {str(digit): digit for digit in range(10)} | sizes
    sizes["k"] = sizes["t"] // ATTRIBUTES["block"] + 2
    is_complex = call.operation.is_complex and flags & COMPLEX
    sizes["p"] = 2 if is_complex else 1
    # Those of a nonlinear scan.
    sizes["g"] = sizes["n"] * (2 if flags & GATED else 1)
    sizes["r"] = sizes["n"] * (2 if flags & LINEAR else 1)
    if "gated" in call.name:
        sizes["g"] = sizes["c"] * (3 if flags & TWO_GATES else 2)
    return [
        (one, tuple(sizes[letter] for letter in one.letters(flags)))
        for one in each_tensor(side, flags)
    ]


def run(call, arrays):
    """The results of a call in the backend's own native form."""
    tensors = list(map(keras.ops.convert_to_tensor, arrays))
    backend = keras.backend.backend()
    wanted = None
    if call.operation.wanted:
        wanted = (True,) * len(call.operation.results)
    if backend == "jax":
        from keras_linrec.kernels.jax.core_calls import run_call

        return run_call(call, tensors, wanted)
    if backend == "tensorflow":
        from keras_linrec.kernels.tensorflow.operations import run_call

        return run_call(call, tensors, wanted)
    from keras_linrec.kernels.torch.operators import OPERATORS

    operator = OPERATORS[call.name]
    settings = [list(wanted)] if wanted else []
    settings += call.flags, *call.attributes
    return operator(*settings, *nested(call, tensors))


def zeros(shapes, dtype="float32"):
    return [np.zeros(shape, dtype) for _, shape in shapes]


@each_call()
def test_results_have_the_shapes_of_the_table(name, form):
    call, shapes = a_call(name, form)
    results = run(call, zeros(shapes))
    expected = shapes_of(call, call.operation.results)
    assert [tuple(result.shape) for result in results] == [
        shape for _, shape in expected
    ]


@each_call()
def test_rows_are_independent_and_all_else_is_summed(name, form):
    """By which devices share a batch."""
    call, shapes = a_call(name, form, b=4)
    generator = np.random.default_rng(0)
    arrays = [
        generator.uniform(0.1, 0.9, shape).astype("float32")
        for _, shape in shapes
    ]
    for array, (one, _) in zip(arrays, shapes):
        if one.name == "lengths":
            array[:] = SIZES["t"]
    if not any(one.has_rows(call.flags) for one, _ in shapes):
        assert name.startswith("impulse_response")
        return
    whole = run(call, arrays)
    halves = [
        run(
            call,
            [
                array[rows] if one.has_rows(call.flags) else array
                for array, (one, _) in zip(arrays, shapes)
            ],
        )
        for rows in (slice(2), slice(2, 4))
    ]
    results = shapes_of(call, call.operation.results)
    for (one, _), got, *parts in zip(results, whole, *halves, strict=True):
        if one not in call.operation.differentiated:
            # The core need not write all checkpoints.
            continue
        got, *parts = map(keras.ops.convert_to_numpy, (got, *parts))
        expected = sum(parts)
        if one.has_rows(call.flags):
            expected = np.concatenate(parts)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def spoilt(call, shapes):
    """Shapes that do not fit, each with what is wrong."""
    letters = [one.letters(call.flags) for one, _ in shapes]
    everywhere = "".join(letters)
    # What flags and attributes say counts as another argument.
    everywhere += "kgrqz"
    if "time" in call.operation.attributes:
        everywhere += "t"
    for place, (one, shape) in enumerate(shapes):
        others = shapes[:place], shapes[place + 1 :]

        def with_shape(shape, one=one, others=others):
            return [*others[0], (one, shape), *others[1]]

        yield f"{one.name} without its last axis", with_shape(shape[:-1])
        if one.has_rows(call.flags):
            yield f"{one.name} without rows", with_shape(shape[1:])
        for axis, letter in enumerate(letters[place]):
            if letter.isdigit() or everywhere.count(letter) > 1:
                longer = list(shape)
                longer[axis] += 1
                yield f"{one.name} with a longer {letter}", with_shape(longer)


@each_call()
def test_tensors_of_other_shapes_are_refused(name, form):
    call, shapes = a_call(name, form)
    run(call, zeros(shapes))
    for what, wrong in spoilt(call, shapes):
        with pytest.raises(Exception, match="(?s)`.*Received|rank") as caught:
            run(call, zeros(wrong))
        assert "rank" in str(caught.value) or any(
            f"`{one.name}`" in str(caught.value)
            for one in call.operation.arguments
        ), what


@each_call()
def test_another_number_of_tensors_is_refused(name, form):
    call, shapes = a_call(name, form)
    given = tuple(shape for _, shape in shapes)
    sizes_of(call, given)
    for wrong in (given[:-1], (*given, given[-1])):
        with pytest.raises(ValueError, match=f"`{name}`: there should be"):
            sizes_of(call, wrong)


@each_call()
def test_tensors_of_other_dtypes_are_refused(name, form):
    call, shapes = a_call(name, form)
    arrays = zeros(shapes)
    for place in range(len(arrays)):
        wrong = list(arrays)
        wrong[place] = wrong[place].astype("float16")
        with pytest.raises(Exception, match="(?i)dtype|half|float16"):
            run(call, wrong)
    with pytest.raises(Exception, match="(?i)dtype|half|float16"):
        run(call, [array.astype("float16") for array in arrays])


def test_no_steps_are_refused():
    call, shapes = a_call("scan", "none")
    none = tuple(
        tuple(0 if size == SIZES["t"] else size for size in shape)
        for _, shape in shapes
    )
    with pytest.raises(ValueError, match="at least one time step"):
        sizes_of(call, none)


def test_every_operation_has_its_native_function_and_its_gradient():
    native = kernels.registry.load("native")
    assert all(native), native
    called = {one.call_native.__module__ for one in OPERATIONS.values()}
    assert len(called) == len(OPERATIONS)
    for name, operation in operations().items():
        if operation.on_cpu:
            assert operation.is_gradient or operation.backward, name


@pytest.mark.parametrize(
    "function",
    ["structured_scan", "impulse_response", "structured_scan_irregular"],
)
def test_only_the_native_kernel_has_structured_systems(function):
    assert getattr(kernels.registry.load("native"), function)
    for name in ("associative", "sequential", "reference"):
        assert getattr(kernels.registry.load(name), function) is None


def test_gradients_are_wired_by_name():
    """Every name that a gradient reads or returns is one of its operation."""
    for operation in operations().values():
        backward = operation.backward
        if backward is None or not operation.on_cpu:
            continue
        arguments = {one.name for one in operation.arguments}
        results = {one.name for one in operation.results}
        known = arguments | results | {f"d_{name}" for name in results}
        assert {one.name for one in backward.arguments} <= known
        # In the order of the arguments, as the plain form returns them. The
        # nonlinear scan gives cotangents of its resets too, which are zero.
        marks = {"resets", "mask", "lengths"} - {
            "resets" if "nonlinear" in operation.name else ""
        }
        assert [one.name for one in backward.results] == [
            f"d_{one.name}"
            for one in operation.arguments
            if one.name not in marks
        ]
        assert len(backward.wanted) in (0, len(backward.results))


def test_the_flags_of_python_are_those_of_the_core():
    from keras_linrec.kernels.native import call_encoding
    from keras_linrec.kernels.native.recipes import SOURCE

    text = Path(SOURCE, "base/core.h").read_text()
    flags = text.split("enum KerasLinrecFlags {")[1].split("};")[0]
    in_core = {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper(): int(value)
        for name, value in re.findall(r"kKerasLinrec(\w+) = (\d+)", flags)
    }
    assert len(in_core) == 18
    for name, value in in_core.items():
        assert getattr(call_encoding, name) == value, name


def test_a_gradient_of_what_the_core_cannot_leave_out_is_refused():
    backward = operations()["impulse_response_backward"]
    one, *others = [True] * len(backward.results)
    backward.require_wanted([one, *others])
    backward.require_wanted([False] * len(others) + [True])
    for wrong in (others, [one, *others[1:], False], [False, *others]):
        with pytest.raises(ValueError, match="Received: wanted="):
            backward.require_wanted(wrong)
