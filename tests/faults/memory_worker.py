"""Steps of every kind of kernel within limits of memory.

    KERAS_BACKEND=... python memory_worker.py TRIES SEED

Draws how much more memory the process may map, runs the outputs and the
gradient of a layer, and lifts the limit again. Prints a line for each step:
what it is, and "done" or the error. The last line says whether the steps then
give what they gave before: "same" or "different".
"""

import os
import random
import resource
import sys
import warnings
from pathlib import Path

import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from support.autodiff import compiled
from support.autodiff import gradient

from keras_linrec import layers

PAGE = os.sysconf("SC_PAGE_SIZE")
MOST = 24 * 2**20
ARGUMENTS = {"return_sequences": True}
UNITS = {
    "lssl": layers.LSSL(8, state_size=16, **ARGUMENTS),
    "lssl's states": layers.LSSL(8, state_size=16, return_state=True),
    "rotrnn": layers.RotRNN(16, state_size=32, **ARGUMENTS),
    "rotrnn's states": layers.RotRNN(16, state_size=32, return_state=True),
    "ldstack": layers.LDStack(8, state_size=16, **ARGUMENTS),
    "orthogonal": layers.OrthogonalRNN(16, reflections=4, **ARGUMENTS),
    "lipschitz": layers.LipschitzRNN(16, **ARGUMENTS),
}


def steps():
    """The name and the function of each step."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((4, 1500, 8)).astype("float32")
    mask = np.arange(1500) < generator.integers(700, 1500, (4, 1))
    deltas = generator.uniform(0.5, 2, (4, 1500)).astype("float32")
    for name, layer in UNITS.items():
        layer.build(inputs.shape)
        forms = {"": {}, ", masked": {"mask": mask}}
        if name == "lssl":
            forms[", time deltas"] = {"time_deltas": deltas}
        for form, arguments in forms.items():
            yield name + form, step(layer, inputs, arguments)


def step(layer, inputs, arguments):
    arguments = {
        name: keras.ops.convert_to_tensor(value)
        for name, value in arguments.items()
    }

    def loss(given):
        outputs = keras.tree.flatten(layer(given[0], **arguments))
        return sum(keras.ops.sum(keras.ops.square(one)) for one in outputs)

    slope = compiled(gradient(loss))
    given = keras.ops.convert_to_tensor(inputs)

    def run():
        (result,) = slope([given])
        if keras.backend.backend() == "jax":
            result.block_until_ready()
        return result

    return run


def mapped():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * PAGE


def within(extra, function):
    """Run a function while the process may map so many more bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped() + extra, hard))
    try:
        function()
        answer = "done"
    except Exception as failure:
        answer = f"{type(failure).__name__}: {failure}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    return " ".join(answer.split())[:150]


def main(tries, seed):
    draw = random.Random(seed)
    known = list(steps())
    expected = [function() for _, function in known]
    print("ready", flush=True)
    for _ in range(tries):
        name, function = draw.choice(known)
        extra = int(MOST * draw.random() ** 3)
        print(f"{name}, {extra >> 10} KiB: ", end="", flush=True)
        print(within(extra, function), flush=True)
    same = [
        np.array_equal(
            keras.ops.convert_to_numpy(function()),
            keras.ops.convert_to_numpy(before),
        )
        for (_, function), before in zip(known, expected)
    ]
    print("same" if all(same) else f"different: {same}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(int(sys.argv[1]), int(sys.argv[2]))
