"""The functions of `docs/guides/authors_weights.md` that copy checkpoints.

A layer with a copied checkpoint is compared with the equations of the code that
wrote it, in float64: theirs multiply rows, h A, where ours multiply columns.
"""

import numpy as np
import pytest
from keras import ops
from support import DOCS
from support import pages

PAGE = DOCS / "guides" / "authors_weights.md"
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


def diagonal_checkpoint(*names):
    """Arrays as the codes of S5 and LinOSS have them, one for each name."""
    return drawn(
        {
            **dict.fromkeys(names, (UNITS,)),
            "B": (UNITS, FEATURES, 2),
            "C": (FEATURES, UNITS, 2),
            "D": (FEATURES,),
        }
    )


@pytest.mark.parametrize("clip_eigs", [False, True])
@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
def test_an_s5_of_flax_gives_the_same_outputs(
    functions, discretization, clip_eigs
):
    params = diagonal_checkpoint("Lambda_re", "Lambda_im", "log_step")
    params["log_step"] = params["log_step"][:, None] - 1.0
    assert (params["Lambda_re"] > 0).any() and (params["Lambda_re"] < 0).any()
    layer = functions["s5_from_flax"](params, discretization, clip_eigs)
    real = params["Lambda_re"].astype("float64")
    if clip_eigs:
        real = np.minimum(real, -1e-4)
    eigenvalues = real + 1j * params["Lambda_im"].astype("float64")
    step = np.exp(params["log_step"][:, 0].astype("float64"))
    if discretization == "zoh":
        decay = np.exp(eigenvalues * step)
        gain = (decay - 1) / eigenvalues
    else:
        decay = (1 + eigenvalues * step / 2) / (1 - eigenvalues * step / 2)
        gain = step / (1 - eigenvalues * step / 2)
    state, inputs, expected = 0.0, sequences(), []
    p = {name: value.astype("float64") for name, value in params.items()}
    b, c = (p[name][..., 0] + 1j * p[name][..., 1] for name in "BC")
    for now in np.moveaxis(inputs.astype("float64"), 1, 0):
        state = decay * state + gain * (now @ b.T)
        # Of each conjugate pair they compute one.
        expected.append(2 * (state @ c.T).real + p["D"] * now)
    outputs = ops.convert_to_numpy(layer(inputs))
    assert np.abs(outputs - np.stack(expected, 1)).max() < 1e-5


@pytest.mark.parametrize("discretization", ["imex", "im"])
def test_a_linoss_of_jax_gives_the_same_outputs(functions, discretization):
    arrays = diagonal_checkpoint("A_diag", "steps")
    assert (arrays["A_diag"] < 0).any() and (arrays["A_diag"] > 0).any()
    layer = functions["linoss_from_jax"](arrays, discretization)
    stiffness = np.maximum(arrays["A_diag"].astype("float64"), 0)
    step = 1 / (1 + np.exp(-arrays["steps"].astype("float64")))
    position = speed = np.zeros((4, UNITS))
    inputs, expected = sequences(), []
    p = {name: value.astype("float64") for name, value in arrays.items()}
    b, c = (p[name][..., 0] + 1j * p[name][..., 1] for name in "BC")
    for now in np.moveaxis(inputs.astype("float64"), 1, 0):
        speed = speed + step * (now @ b.T - stiffness * position)
        if discretization == "im":
            speed = speed / (1 + step**2 * stiffness)
        position = position + step * speed
        expected.append((position @ c.T).real + p["D"] * now)
    outputs = ops.convert_to_numpy(layer(inputs))
    assert np.abs(outputs - np.stack(expected, 1)).max() < 1e-5


def silu(x):
    return x / (1 + np.exp(-x))


def convolved(sequence, taps, bias=0.0):
    """As a `Conv1d` with groups, of padded inputs (time, channels)."""
    padded = np.pad(sequence, ((taps.shape[-1] - 1, 0), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(
        padded, taps.shape[-1], axis=0
    )
    return silu((windows * taps[:, 0]).sum(-1) + bias)


def over_root_of_mean_square(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_mamba2_of_torch_gives_the_same_outputs(functions, groups):
    heads, size, inner = 2, 5, 8
    wide = inner + 2 * groups * size
    state = drawn(
        {
            "in_proj.weight": (inner + wide + heads, 4),
            "conv1d.weight": (wide, 1, 4),
            "conv1d.bias": (wide,),
            **dict.fromkeys(("A_log", "dt_bias", "D"), (heads,)),
            "norm.weight": (inner,),
            "out_proj.weight": (4, inner),
        },
        scale=1.0,
    )
    layer = functions["mamba2_from_torch"](state, groups)
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(1, STEPS, 4)).astype("float32")
    s = {name: value.astype("float64") for name, value in state.items()}
    # Their split: z, x B C, dt.
    z, xbc, dt = np.split(
        inputs[0] @ s["in_proj.weight"].T, [inner, inner + wide], axis=-1
    )
    xbc = convolved(xbc, s["conv1d.weight"], s["conv1d.bias"])
    x, b, c = np.split(xbc, [inner, inner + groups * size], axis=-1)
    dt = np.log1p(np.exp(dt + s["dt_bias"]))
    h, outputs = np.zeros((heads, inner // heads, size)), []
    for t in range(STEPS):
        decay = np.exp(-np.exp(s["A_log"]) * dt[t])
        to_head = np.repeat(np.arange(groups), heads // groups)
        b_t, c_t = (m[t].reshape(groups, size)[to_head] for m in (b, c))
        x_t = x[t].reshape(heads, -1)
        h = h * decay[:, None, None] + np.einsum(
            "h,hn,hp->hpn", dt[t], b_t, x_t
        )
        y = np.einsum("hpn,hn->hp", h, c_t) + s["D"][:, None] * x_t
        y = (y.ravel() * silu(z[t])).reshape(groups, -1)
        y = over_root_of_mean_square(y).ravel() * s["norm.weight"]
        outputs.append(s["out_proj.weight"] @ y)
    got = ops.convert_to_numpy(layer(inputs))[0]
    assert np.abs(got - np.stack(outputs)).max() < 1e-5


@pytest.mark.parametrize(
    ("gated", "gate", "products"), [(1, 1, 1), (0, 0, 1), (1, 1, 2)]
)
def test_a_delta_net_of_fla_gives_the_same_outputs(
    functions, gated, gate, products
):
    shared, heads, key, value, wide = 2, 4, 3, 5, 6
    sizes = {
        "q": shared * key,
        "k": products * shared * key,
        "v": products * heads * value,
    }
    shapes = {f"{n}_proj.weight": (w, wide) for n, w in sizes.items()}
    shapes |= {f"{n}_conv1d.weight": (w, 1, 4) for n, w in sizes.items()}
    shapes["b_proj.weight"] = products * heads, wide
    shapes |= {
        "o_norm.weight": (value,),
        "o_proj.weight": (wide, heads * value),
    }
    if gated:
        shapes["a_proj.weight"] = heads, wide
        shapes |= {"A_log": (heads,), "dt_bias": (heads,)}
    if gate:
        shapes["g_proj.weight"] = heads * value, wide
    state = drawn(shapes, scale=1.0)
    layer = functions["delta_net_from_fla"](
        state, shared, negative_eigenvalues=products > 1
    )
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(1, STEPS, wide)).astype("float32")
    s = {name: array.astype("float64") for name, array in state.items()}
    u = inputs[0].astype("float64")
    q, k, v = (
        convolved(u @ s[f"{n}_proj.weight"].T, s[f"{n}_conv1d.weight"])
        for n in sizes
    )
    unit = [
        m / np.sqrt((m**2).sum(-1, keepdims=True) + 1e-6)
        for m in (
            q.reshape(STEPS, 1, shared, key),
            k.reshape(STEPS, products, shared, key),
        )
    ]
    # Heads of a group lie side by side.
    q, k = (np.repeat(m, heads // shared, axis=2) for m in unit)
    v = v.reshape(STEPS, products, heads, value)
    beta = (products > 1) + 1.0
    beta = beta / (1 + np.exp(-u @ s["b_proj.weight"].T))
    beta = beta.reshape(STEPS, products, heads)
    memory, outputs = np.zeros((heads, key, value)), []
    for t in range(STEPS):
        if gated:
            step = np.log1p(np.exp(s["a_proj.weight"] @ u[t] + s["dt_bias"]))
            memory = memory * np.exp(-np.exp(s["A_log"]) * step)[:, None, None]
        for j in range(products):
            held = np.einsum("hkv,hk->hv", memory, k[t, j])
            change = beta[t, j][:, None] * (v[t, j] - held)
            memory = memory + k[t, j][:, :, None] * change[:, None]
        o = np.einsum("hkv,hk->hv", memory, q[t, 0]) * key**-0.5
        o = over_root_of_mean_square(o) * s["o_norm.weight"]
        if gate:
            o = o * silu(s["g_proj.weight"] @ u[t]).reshape(heads, value)
        outputs.append(s["o_proj.weight"] @ o.ravel())
    expected = np.stack(outputs)
    got = ops.convert_to_numpy(layer(inputs))[0]
    # A head whose output is small is divided by it, with its rounding.
    assert np.abs(got - expected).max() < 3e-6 * np.abs(expected).max()


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
