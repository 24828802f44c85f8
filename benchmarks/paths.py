"""What masks, resets, time deltas and states add to a training step.

    KERAS_BACKEND=jax python benchmarks/paths.py

times a training step (forward, backward, a step of gradient descent) of each
unit at (batch 16, 2048 steps, 64 features), plain and with

- "all true": a mask that masks nothing;
- "padded": a mask of rows that end after 50 to 100% of the steps;
- "random": a mask without 30% of the steps, at random;
- "resets": `reset_mask`, with a new sequence every 200 steps or so;
- "time deltas": steps of unequal length, for units that take them;
- "states": from an initial state, with the final state returned and trained
  through.

Prints the milliseconds of a plain step, and the others as multiples of it. All
variants of a unit take turns in one process.
"""

import argparse

import keras
import numpy as np
from common import interleaved
from common import parsed_options
from common import print_header
from common import print_row
from common import training_step
from keras import ops

from keras_linrec import layers

BATCH, TIME, FEATURES = 16, 2048, 64
VARIANTS = ("all true", "padded", "random", "resets", "time deltas", "states")
TAKE_TIME_DELTAS = ("LSSL", "LipschitzRNN")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--units", nargs="+", default=list(UNITS))
    parser.add_argument("--variants", nargs="*", default=VARIANTS)
    print_variants(parsed_options(parser))


def lssl(features, **arguments):
    return layers.LSSL(features, state_size=features, **arguments)


def rotrnn(features, **arguments):
    return layers.RotRNN(features, state_size=2 * features, **arguments)


def lru(features, **arguments):
    return layers.LRU(features, state_size=features, **arguments)


def ldstack(features, **arguments):
    return layers.LDStack(features, state_size=features, **arguments)


def lipschitz(features, **arguments):
    return layers.LipschitzRNN(features, return_sequences=True, **arguments)


def orthogonal(features, **arguments):
    return layers.OrthogonalRNN(features, return_sequences=True, **arguments)


UNITS = {
    "LSSL": lssl,
    "RotRNN": rotrnn,
    "LRU": lru,
    "LDStack": ldstack,
    "LipschitzRNN": lipschitz,
    "OrthogonalRNN": orthogonal,
}


def print_variants(options):
    backend = keras.backend.backend()
    print_header(
        f"{backend}: {BATCH}, {TIME}, {FEATURES}", "plain", *options.variants
    )
    for unit in options.units:
        steps = {"plain": step_of(unit)}
        for name in options.variants:
            if name != "time deltas" or unit in TAKE_TIME_DELTAS:
                steps[name] = step_of(unit, name)
        for step in steps.values():
            # The first call compiles.
            step()
        times = interleaved(steps, options.rounds)
        plain = times["plain"]
        ratios = [
            f"{times[name] / plain:.2f}" if name in times else ""
            for name in options.variants
        ]
        print_row(unit, f"{plain:.1f} ms", *ratios)


def step_of(unit, variant=None):
    """A function that trains a new layer for one step."""
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    sequences = generator.standard_normal((BATCH, TIME, FEATURES))
    sequences = ops.convert_to_tensor(sequences.astype("float32"))
    layer = UNITS[unit](FEATURES, return_state=variant == "states")
    layer.build(sequences.shape)
    arguments = call_arguments(variant, generator, layer)
    return training_step(layer, sequences, **arguments)


def call_arguments(variant, generator, layer):
    """The arguments of a call beside its sequences."""
    if variant is None:
        return {}
    if variant == "states":
        return {"initial_state": layer.get_initial_state(BATCH)}
    if variant == "time deltas":
        deltas = generator.uniform(0.5, 2, (BATCH, TIME)).astype("float32")
        return {"time_deltas": ops.convert_to_tensor(deltas)}
    random = generator.uniform(size=(BATCH, TIME))
    if variant == "resets":
        return {"reset_mask": ops.convert_to_tensor(random < 1 / 200)}
    lengths = generator.uniform(0.5, 1, (BATCH, 1)) * TIME
    mask = {
        "all true": random >= 0,
        "padded": np.arange(TIME) < lengths,
        "random": random >= 0.3,
    }[variant]
    return {"mask": ops.convert_to_tensor(mask)}


if __name__ == "__main__":
    main()
