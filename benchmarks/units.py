"""A training step of S5, S4D, LinOSS and the gated units, beside their peers.

    KERAS_BACKEND=jax python benchmarks/units.py

times a training step (forward, backward, a step of gradient descent) of each
unit with 128 states, and beside it

- "portable": the same layer without native kernels;
- "associative_scan": the same recurrence by `keras.ops.associative_scan`, which
  under JAX is that of `jax.lax`, as the public codes of S5, LinOSS and the
  gated units run it;
- "without a scan": what enters, in place of the states; other numbers, but the
  least that a step with these products and gates takes;
- "loop", with `--loop`: the same recurrence as a plain loop;
- "time_deltas", of S5, S4D and LinOSS: the same layer over steps that differ in
  length, and without native kernels (`--loop` for all three).

S4D has no such peers: its public code is a convolution too.
"""

import argparse

import keras
import numpy as np
from common import framework_layers
from common import framework_step
from common import parsed_options
from common import print_comparison
from common import training_step
from keras import ops

from keras_linrec import config
from keras_linrec import layers

SIZES = ((32, 784, 128), (8, 4096, 128))
STATES = 128


def s5(**arguments):
    return layers.S5(state_size=STATES, **arguments)


def s4d(**arguments):
    return layers.S4D(state_size=STATES, **arguments)


def linoss(**arguments):
    return layers.LinOSS(state_size=STATES, **arguments)


UNITS = {
    "S5": s5,
    "S4D": s4d,
    "LinOSS": linoss,
    "MinGRU": layers.MinGRU,
    "MinLSTM": layers.MinLSTM,
    "RGLRU": layers.RGLRU,
}
TIMED = ("S5", "S4D", "LinOSS")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--units", nargs="+", default=list(UNITS))
    parser.add_argument("--loop", action="store_true", help="the loop too")
    options = parsed_options(parser)
    for size in SIZES:
        for unit in options.units:
            compare(unit, size, options)


def compare(unit, size, options):
    generator = np.random.default_rng(0)
    sequences = generator.standard_normal(size).astype("float32")
    sequences = ops.convert_to_tensor(sequences)
    calls = {unit: step_of(unit, sequences)}
    calls["portable"] = on_portable(step_of(unit, sequences))
    if unit in RECURRENCES:
        calls["associative_scan"] = step_of(unit, sequences, by_tree)
        calls["without a scan"] = step_of(unit, sequences, by_nothing)
    if unit in RECURRENCES and options.loop:
        calls["loop"] = step_of(unit, sequences, by_loop)
    if unit in TIMED:
        lengths = generator.uniform(0.5, 1.5, size[:2]).astype("float32")
        lengths = {"time_deltas": ops.convert_to_tensor(lengths)}
        calls["time_deltas"] = step_of(unit, sequences, **lengths)
        # S4D's takes half a minute a step, and LinOSS' is a loop.
        if options.loop or unit == "S5":
            calls["time_deltas, portable"] = on_portable(
                step_of(unit, sequences, **lengths)
            )
    for name in framework_layers():
        calls[name] = framework_step(name, sequences)
    print_comparison(f"{unit} {size}", calls, options.rounds)


def step_of(unit, sequences, run=None, **arguments):
    """A function that trains a new layer for one step.

    Args:
        unit: a key of `UNITS`.
        sequences: tensor (batch, time, features).
        run: how the recurrence runs; `None`, the default, as the layer does.
        **arguments: further ones of the call.
    """
    keras.utils.set_random_seed(0)
    layer = UNITS[unit]()
    layer.build(tuple(sequences.shape))
    if run is not None:
        layer = Peer(layer, RECURRENCES[unit], run)
        layer.build(tuple(sequences.shape))
    return training_step(layer, sequences, **arguments)


def on_portable(step):
    def run():
        with config.portable_kernels():
            return step()

    return run


class Peer(keras.layers.Layer):
    """A unit whose recurrence runs in another way, with the same weights."""

    def __init__(self, unit, recurrence, run):
        super().__init__()
        self.unit, self.recurrence, self.run = unit, recurrence, run

    def build(self, shape):
        self.built = True

    def call(self, sequences):
        return self.recurrence(self.unit, sequences, self.run)


# Each `run(combine, apply, transitions, entering)` returns the states of all
# steps. Transitions and entering numbers are lists of tensors (batch, time,
# states).


def by_tree(combine, apply, transitions, entering):
    def joined(earlier, later):
        count = len(transitions)
        one, other = earlier[:count], later[:count]
        moved = apply(other, earlier[count:])
        return [
            *combine(other, one),
            *(a + b for a, b in zip(moved, later[count:])),
        ]

    every = ops.associative_scan(joined, [*transitions, *entering], axis=1)
    return every[len(transitions) :]


def by_nothing(combine, apply, transitions, entering):
    return entering


def by_loop(combine, apply, transitions, entering):
    state, every = [0.0 for _ in entering], []
    for step in range(entering[0].shape[1]):
        moved = apply([part[:, step] for part in transitions], state)
        state = [a + part[:, step] for a, part in zip(moved, entering)]
        every.append(state)
    return [ops.stack(parts, axis=1) for parts in zip(*every)]


def of_numbers(decay, state):
    return [decay[0] * state[0]]


def of_complex_numbers(decay, state):
    (a, b), (x, y) = decay, state
    return [a * x - b * y, a * y + b * x]


def of_matrices(matrix, state):
    """2 x 2 matrices by vectors, whose parts have a real and an imaginary."""
    a, b, c, d = matrix
    x, y, z, w = state
    return [a * x + b * z, a * y + b * w, c * x + d * z, c * y + d * w]


def product_of_matrices(one, other):
    a, b, c, d = one
    e, f, g, h = other
    return [a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h]


def gated(unit, sequences, run):
    decay, entering = unit._gates(sequences, unit.step_constants())
    (states,) = run(of_numbers, of_numbers, [decay], [entering])
    return states


def diagonal(unit, sequences, run):
    system = unit.diagonal_system()
    entering = [sequences @ kernel for kernel in system.input_kernel]
    decay = [
        ops.broadcast_to(d, e.shape) for d, e in zip(system.decay, entering)
    ]
    real, imag = run(of_complex_numbers, of_complex_numbers, decay, entering)
    first, second = system.output_kernel
    return real @ first - imag @ second + sequences * system.feedthrough


def oscillating(unit, sequences, run):
    """IMEX, by matrices of velocities and positions."""
    step = ops.exp(unit.log_timescale)
    stiffness = ops.relu(unit.stiffness)
    forces = [sequences @ part for part in (unit.input_real, unit.input_imag)]
    matrix = [
        ops.broadcast_to(part, forces[0].shape)
        for part in (
            ops.ones_like(step),
            -step * stiffness,
            step,
            1.0 - step * step * stiffness,
        )
    ]
    entering = [
        scale * part for scale in (step, step * step) for part in forces
    ]
    *_, real, imag = run(product_of_matrices, of_matrices, matrix, entering)
    outputs = real @ unit.output_real - imag @ unit.output_imag
    return outputs + sequences * unit.feedthrough


RECURRENCES = {
    "S5": diagonal,
    "LinOSS": oscillating,
    "MinGRU": gated,
    "MinLSTM": gated,
    "RGLRU": gated,
}


if __name__ == "__main__":
    main()
