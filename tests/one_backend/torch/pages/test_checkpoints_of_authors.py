"""The functions of `docs/guides/coming_from.md` that copy checkpoints.

A layer with a copied checkpoint is compared with the equations of the code that
wrote it, in float64: theirs multiply rows, h A, where ours multiply columns.
"""

import numpy as np
import pytest
from keras import ops
from support import DOCS
from support import pages

PAGE = DOCS / "guides" / "coming_from.md"
UNITS, FEATURES, CLASSES, STEPS = 6, 3, 2, 20


@pytest.fixture(scope="module")
def functions():
    return pages.run(PAGE)


def drawn(shapes, scale=0.3):
    generator = np.random.default_rng(0)
    return {
        name: generator.normal(0, scale, shape).astype("float32")
        for name, shape in shapes.items()
    }


def sequences():
    generator = np.random.default_rng(1)
    return generator.normal(size=(4, STEPS, FEATURES)).astype("float32")


def test_an_lru_of_flax_gives_the_same_outputs(functions):
    into, out = (UNITS, FEATURES), (FEATURES, UNITS)
    params = drawn(
        {
            **dict.fromkeys(("nu_log", "theta_log", "gamma_log"), (UNITS,)),
            **{"B_re": into, "B_im": into, "C_re": out, "C_im": out},
            "D": (FEATURES,),
        }
    )
    layer = functions["lru_from_flax"](params)
    inputs = sequences()
    p = {name: value.astype("float64") for name, value in params.items()}
    eigenvalues = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    b = (p["B_re"] + 1j * p["B_im"]) * np.exp(p["gamma_log"])[:, None]
    c = p["C_re"] + 1j * p["C_im"]
    state, expected = np.zeros((4, UNITS)), []
    for now in np.moveaxis(inputs.astype("float64"), 1, 0):
        state = state * eigenvalues + now @ b.T
        expected.append((state @ c.T).real + p["D"] * now)
    outputs = ops.convert_to_numpy(layer(inputs))
    assert np.abs(outputs - np.stack(expected, 1)).max() < 1e-5


def test_a_lipschitz_rnn_of_torch_gives_the_same_answers(functions):
    state = drawn(
        {
            "E.weight": (UNITS, FEATURES),
            "E.bias": (UNITS,),
            "B": (UNITS, UNITS),
            "C": (UNITS, UNITS),
            "D.weight": (CLASSES, UNITS),
            "D.bias": (CLASSES,),
        }
    )
    beta, gamma, eps = 0.7, 0.02, 0.05
    layer, head = functions["lipschitz_from_torch"](state, beta, gamma, eps)
    inputs = sequences()
    s = {name: value.astype("float64") for name, value in state.items()}

    def square(m):
        skew, symmetric = m - m.T, m + m.T
        return beta * skew + (1 - beta) * symmetric - gamma * np.eye(UNITS)

    h = np.zeros((4, UNITS))
    for now in np.moveaxis(inputs.astype("float64"), 1, 0):
        z = now @ s["E.weight"].T + s["E.bias"]
        h = h + eps * (h @ square(s["B"]) + np.tanh(h @ square(s["C"]) + z))
    expected = h @ s["D.weight"].T + s["D.bias"]
    answers = ops.convert_to_numpy(head(layer(inputs)))
    assert np.abs(answers - expected).max() < 1e-5
