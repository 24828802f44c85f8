"""The training speed of nonlinear units: python benchmarks/stable_rnns.py

Times a training step (forward, backward, a step of gradient descent) of
LipschitzRNN and of OrthogonalRNN with 16 reflections, on sequences of one
feature with a loss of the last state, beside

- "torch loop": the authors' recurrence, a Python loop of plain PyTorch over the
  steps, which computes A, W and the reflections' factors once instead of at
  every step, to its advantage;
- "lax.scan": the same step in a compiled `jax.lax.scan`;
- "RNN(cell)": `keras.layers.RNN` over our cell, on this backend;
- "LSTM": `keras.layers.LSTM` with as many units, on this backend (on PyTorch
  with `use_cudnn=False`, without which it takes a hundred times as long).

All run in one process (it needs PyTorch and JAX on any backend), taking turns
round after round; times are medians in milliseconds. The bound is three times
the recurrent products of a forward pass at the rate of the largest product,
JAX's of 2048 x 2048 matrices; "share" is the bound's share of our time. Slow
contenders are measured fewer times (see `interleaved` in common.py).
"""

import argparse
import itertools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import torch
from common import RATE
from common import interleaved
from common import keras_layer
from common import parsed_options
from common import print_header
from common import print_row
from common import product_rate
from common import training_step
from keras import ops

import keras_linrec

REFLECTIONS = 16
STEP_SIZE = 0.03
UNITS = ("lipschitz", "orthogonal")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, nargs="+", default=[784, 4096])
    parser.add_argument("--units", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument(
        "--alone", action="store_true", help="without RNN(cell) and LSTM"
    )
    options = parsed_options(parser)
    rate = product_rate()
    backend = keras.backend.backend()
    print(f"{backend}; the largest product reaches {rate / 1e9:.0f} GFLOP/s")
    names = ["torch loop", "lax.scan"]
    if not options.alone:
        names += ["RNN(cell)", "LSTM"]
    titles = ("steps", "unit", "units", "batch", "ours", "share")
    print_header(*titles, *names)
    for steps, kind, units, batch in itertools.product(
        options.steps, UNITS, options.units, options.batches
    ):
        sequences = np.random.default_rng(0).standard_normal((batch, steps, 1))
        calls = contenders(kind, units, sequences.astype("float32"), names)
        times = interleaved(calls, options.rounds)
        ours = times.pop("ours")
        bound = 1e3 * 3 * operations(kind, units) * batch * steps / rate
        ratios = [f"{ms / ours:.1f} x ({ms:.0f})" for ms in times.values()]
        shown = f"{ours:.1f} ms", f"{bound / ours:.0%}"
        print_row(steps, kind, units, batch, *shown, *ratios)


def operations(kind, units):
    """Additions and multiplications per row in a step's recurrent products."""
    if kind == "lipschitz":
        return 2 * 2 * units**2
    # The cheaper of the reflections' factors and their product.
    return 2 * min(2 * units * REFLECTIONS, units**2)


def contenders(kind, units, sequences, names):
    layer, cell = make(kind, units)
    tensor = ops.convert_to_tensor(sequences)
    makers = {
        "ours": lambda: training_step(layer, tensor),
        "torch loop": lambda: torch_loop(kind, units, sequences),
        "lax.scan": lambda: lax_scan(kind, units, sequences),
        "RNN(cell)": lambda: training_step(keras.layers.RNN(cell), tensor),
        "LSTM": lambda: training_step(keras_layer("LSTM", units), tensor),
    }
    calls = {name: makers[name]() for name in ("ours", *names)}
    for call in calls.values():
        # The first call compiles.
        call()
    return calls


def make(kind, units):
    layers = keras_linrec.layers
    if kind == "lipschitz":
        return layers.LipschitzRNN(units), layers.LipschitzRNNCell(units)
    return (
        layers.OrthogonalRNN(units, reflections=REFLECTIONS),
        layers.OrthogonalRNNCell(units, reflections=REFLECTIONS),
    )


def weights_of(kind, units):
    """Input kernel, bias, and the parameters of the recurrent matrices."""
    generator = np.random.default_rng(0)
    inputs = [0.1 * generator.standard_normal((1, units)), np.zeros(units)]
    if kind == "lipschitz":
        shapes = [(units, units)] * 2
        scale = 1 / units
    else:
        shapes, scale = [(units, REFLECTIONS)], 1.0
    recurrent = [scale * generator.standard_normal(shape) for shape in shapes]
    return [array.astype("float32") for array in (*inputs, *recurrent)]


def symmetric_skew(m, identity, beta=0.75, gamma=0.001):
    return (1 - beta) * (m + m.T) + beta * (m - m.T) - gamma * identity


def torch_loop(kind, units, sequences):
    weights = [torch.tensor(w) for w in weights_of(kind, units)]
    weights = [weight.requires_grad_() for weight in weights]
    sequences = torch.tensor(sequences)
    identity = torch.eye(units)

    def final_state():
        kernel, bias, *recurrent = weights
        state = torch.zeros(len(sequences), units)
        if kind == "lipschitz":
            a, w = (symmetric_skew(m, identity) for m in recurrent)
            a, w = a.T, w.T
            for x in sequences.unbind(1):
                z = x @ kernel + bias
                change = state @ a + torch.tanh(state @ w + z)
                state = state + STEP_SIZE * change
            return state
        (u,) = recurrent
        u = u.tril()
        gram = u.T @ u
        t = gram.triu(1) + 0.5 * torch.diag(gram.diagonal())
        right = torch.linalg.solve_triangular(t, u.T, upper=True)
        for x in sequences.unbind(1):
            z = x @ kernel + bias
            product = state - (state @ right.T) @ u.T
            state = torch.nn.functional.leaky_relu(product + z, 0.1)
        return state

    def step():
        gradients = torch.autograd.grad(final_state().square().mean(), weights)
        return [RATE * gradient for gradient in gradients]

    return step


def lax_scan(kind, units, sequences):
    weights = [jnp.array(w) for w in weights_of(kind, units)]
    sequences = jnp.swapaxes(jnp.array(sequences), 0, 1)
    identity = jnp.eye(units)

    def final_state(weights):
        kernel, bias, *recurrent = weights
        if kind == "lipschitz":
            a, w = (symmetric_skew(m, identity).T for m in recurrent)

            def step(state, x):
                z = x @ kernel + bias
                change = state @ a + jnp.tanh(state @ w + z)
                return state + STEP_SIZE * change, None
        else:
            u = jnp.tril(recurrent[0])
            gram = u.T @ u
            t = jnp.triu(gram, 1) + 0.5 * jnp.diag(jnp.diag(gram))
            right = jax.scipy.linalg.solve_triangular(t, u.T)

            def step(state, x):
                z = x @ kernel + bias
                product = state - (state @ right.T) @ u.T
                return jax.nn.leaky_relu(product + z, 0.1), None

        state = jnp.zeros((sequences.shape[1], units))
        return jax.lax.scan(step, state, sequences)[0]

    @jax.jit
    def descend(weights):
        gradients = jax.grad(
            lambda weights: jnp.mean(jnp.square(final_state(weights)))
        )(weights)
        return [RATE * gradient for gradient in gradients]

    return lambda: jax.block_until_ready(descend(weights))


if __name__ == "__main__":
    main()
