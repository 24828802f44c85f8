"""`ops.nonlinear_scan` equals its definition on cases that Hypothesis draws.

`drawn_cases.py` explains how many cases there are.
"""

from functools import cache

import keras
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.drawn_cases import FEW_SHAPES
from support.drawn_cases import NOT_FINITE
from support.drawn_cases import SEEDS
from support.drawn_cases import cases
from support.drawn_cases import kernel
from support.drawn_cases import rounded
from support.drawn_cases import run_as_chosen
from support.drawn_cases import tensors
from support.units import array

from keras_linrec import ops

FEATURES = 2
ACTIVATIONS = {
    "linear": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
# Units, time and whether steps are reset.
NONLINEAR_SIZES = (
    st.sampled_from([(3, 6, False), (17, 33, True)])
    if FEW_SHAPES
    else st.tuples(st.integers(1, 20), st.integers(1, 40), st.booleans())
)


@cache
def nonlinear_program(name, activation, solver, keep_all):
    options = {} if solver is None else {"step_size": 0.1}

    def run(given):
        return ops.nonlinear_scan(
            **given,
            activation=activation,
            solver=solver,
            keep_all=keep_all,
            **options,
        )

    return run_as_chosen(run)


def define_nonlinear(given, resets, activation, solver):
    activate = ACTIVATIONS[activation]
    state, weights = given["initial_state"], given["recurrent_kernel"]
    states = []
    for step, inputs in enumerate(given["inputs"].swapaxes(0, 1)):
        drive = inputs @ given["input_kernel"]

        def slope(state, drive=drive):
            return activate(state @ weights + drive)

        state = np.where(resets[:, step, None], 0.0, state)
        if solver is None:
            state = slope(state)
        else:
            state = state + 0.1 * slope(state + 0.05 * slope(state))
        states.append(state)
    return np.stack(states, axis=1), state


@cases(0.17)
@given(
    name=st.sampled_from(["native", "reference"]),
    size=NONLINEAR_SIZES,
    activation=st.sampled_from(
        ["relu", "tanh"] if FEW_SHAPES else sorted(ACTIVATIONS)
    ),
    solver=st.sampled_from([None, "rk2"]),
    radius=st.sampled_from([0.0, 0.5, 1.0, 1e-40]),
    value=st.one_of(st.none(), NOT_FINITE),
    seed=SEEDS,
)
def test_a_nonlinear_scan_equals_its_definition(
    name, size, activation, solver, radius, value, seed
):
    units, time, with_resets = size
    if FEW_SHAPES:
        solver = None if units == 3 else "rk2"
    generator = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(generator.standard_normal((units, units)))
    numbers = {
        "inputs": generator.standard_normal((3, time, FEATURES)),
        "input_kernel": generator.standard_normal((FEATURES, units)),
        "recurrent_kernel": radius * basis,
        "initial_state": generator.standard_normal((3, units)),
    }
    numbers = {name: rounded(part) for name, part in numbers.items()}
    resets = (generator.random((3, time)) < 0.1) & with_resets
    expected = define_nonlinear(numbers, resets, activation, solver)
    step = time // 2
    others = np.arange(3) != 1 if value is not None else slice(None)
    if value is not None:
        numbers["inputs"][1, step] = value
    given = {name: tensors(part, False) for name, part in numbers.items()}
    if with_resets:
        given["reset_mask"] = keras.ops.convert_to_tensor(resets)
    with kernel(name):
        got = nonlinear_program(name, activation, solver, True)(given)
    outputs, state = (array(part) for part in got)
    for one, other in zip((outputs, state), expected):
        one, other = one[others], other[others]
        bound = 1e-6 * (time + 10) * (1 + np.abs(other).max())
        assert (np.abs(one - other) <= bound).all()
    if value is None:
        return
    before = expected[0][1, :step]
    bound = 1e-6 * (time + 10) * (1 + np.abs(before).max(initial=0))
    assert (np.abs(outputs[1, :step] - before) <= bound).all()
    if np.isnan(value):
        assert np.isnan(outputs[1, step]).all()
