"""The training speed of RotRNN and LRU.

    KERAS_BACKEND=jax python benchmarks/rotrnn.py

Times a training step (forward, backward, a step of gradient descent) of one
layer at (batch 32, 784 steps, 128 features), 256 states in 32 heads: with each
of our kernels; with `keras.ops.associative_scan` and, on PyTorch, a Python loop
as its scan; and on JAX with the algorithm of the paper's appendix C, which
scans all heads in real numbers with `jax.lax.associative_scan`. An LRU with as
many numbers of state stands beside them. Prints median milliseconds of
interleaved rounds, and the peak memory of a step beyond what the process held
before.
"""

import argparse
from contextlib import contextmanager
from functools import partial

import keras
import numpy as np
from common import jax_descent
from common import on_kernel
from common import parsed_options
from common import print_comparison
from common import training_step
from keras import ops
from peers import keras_associative_scan
from peers import python_loop

import keras_linrec
from keras_linrec import kernels
from keras_linrec.kernels import registry
from keras_linrec.kernels.operations import projected_scan as projection

BATCH, TIME, FEATURES, STATES, HEADS = 32, 784, 128, 256, 32


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parsed_options(parser).rounds
    sequences = np.random.default_rng(0).standard_normal(
        (BATCH, TIME, FEATURES)
    )
    sequences = ops.convert_to_tensor(sequences.astype("float32"))
    available = kernels.available()
    steps = {
        f"ours: {name}": layer_step(name, sequences)
        for name in ("native", "associative", "sequential")
        if available[name]
    }
    best = registry.choose("auto")
    steps[f"LRU: {best}"] = layer_step(best, sequences, lru)
    peers = {"keras.ops.associative_scan": keras_associative_scan}
    if keras.backend.backend() == "torch":
        peers["a loop in Python"] = python_loop
    for name, scan in peers.items():
        # Our layer with another library's scan.
        steps[name] = layer_step(peer_scan(scan), sequences)
    if keras.backend.backend() == "jax":
        steps["the paper's algorithm"] = paper_step(sequences)
    print_comparison("RotRNN", steps, rounds)


@contextmanager
def running(kernel):
    """A scope in which layers run on a kernel, given by name or as a scan."""
    name = kernel
    if not isinstance(kernel, str):
        # It replaces a kernel that this benchmark does not measure.
        name = "reference"
        ours = registry.load(name)
        registry._loaded[name] = registry.Kernel(
            kernel, partial(projection.projected_scan, kernel)
        )
    with on_kernel(name):
        yield
    if name != kernel:
        registry._loaded[name] = ours


def peer_scan(peer):
    def scan(decay, inputs, initial_state, reverse=False, resets=None):
        # Forward, from a state of zero and without resets: what a step needs.
        outputs = peer([*decay, *inputs])
        return outputs, tuple(part[:, -1] for part in outputs)

    return scan


def rotrnn():
    return keras_linrec.layers.RotRNN(state_size=STATES, num_heads=HEADS)


def lru():
    """An LRU with as many real numbers of state."""
    return keras_linrec.layers.LRU(state_size=STATES // 2)


def layer_step(kernel, sequences, make=rotrnn):
    """A function that trains a new layer for one step, on a kernel."""
    keras.utils.set_random_seed(0)
    step = training_step(make(), sequences)

    def run():
        # PyTorch selects the kernel in each call, the others while tracing.
        with running(kernel):
            step()

    return run


def paper_step(sequences):
    """A step of the paper's algorithm: heads as rows of real numbers."""
    import jax
    import jax.numpy as jnp

    size = STATES // HEADS
    generator = np.random.default_rng(0)
    gamma = np.sqrt(generator.uniform(0.25, 0.998, (HEADS, 1)))
    weights = (
        generator.uniform(0, 2 * np.pi, (HEADS, size // 2)),
        np.log(-np.log(gamma)),
        generator.standard_normal((HEADS, size, size)),
        generator.standard_normal((HEADS, size, FEATURES)) / FEATURES**0.5,
        generator.standard_normal((FEATURES, STATES)) / STATES**0.5,
        generator.standard_normal(FEATURES),
    )
    weights = tuple(jnp.asarray(w, "float32") for w in weights)

    def combine(earlier, later):
        """Rotate and shrink the earlier state, and add the later one."""
        decay, angle, state = later
        angles = jnp.repeat(angle, 2, axis=-1)
        turned = jnp.stack(
            [-earlier[2][..., 1::2], earlier[2][..., ::2]], axis=-1
        ).reshape(state.shape)
        moved = jnp.cos(angles) * earlier[2] + jnp.sin(angles) * turned
        return earlier[0] * decay, earlier[1] + angle, decay * moved + state

    def scan_head(*elements):
        return jax.lax.associative_scan(combine, elements)[2]

    def forward(weights, inputs):
        theta, gamma_log, rotation_kernel, into, out, feedthrough = weights
        time = inputs.shape[0]
        gamma = jnp.exp(-jnp.exp(gamma_log))
        trace = jnp.trace(into.transpose(0, 2, 1) @ into, axis1=1, axis2=2)
        into = into * jnp.sqrt((1 - gamma[:, 0] ** 2) / trace)[:, None, None]
        rotation = jax.scipy.linalg.expm(
            rotation_kernel - rotation_kernel.transpose(0, 2, 1)
        )
        states = jnp.einsum("hki,ti->htk", into, inputs)
        states = jnp.einsum("hjk,htj->htk", rotation, states)
        states = jax.vmap(scan_head)(
            jnp.repeat(gamma[:, None], time, axis=1),
            jnp.repeat(theta[:, None], time, axis=1),
            states,
        )
        states = jnp.einsum("hkj,htj->htk", rotation, states)
        states = states.transpose(1, 0, 2).reshape(time, -1)
        return states @ out.T + feedthrough * inputs

    def loss(weights):
        outputs = jax.vmap(forward, (None, 0))(weights, sequences)
        return jnp.mean(jnp.square(outputs)), None

    descend = jax_descent(loss)
    return lambda: jax.block_until_ready(descend(weights)[0])


if __name__ == "__main__":
    main()
