"""The training speed of LDStack as sequences grow.

    KERAS_BACKEND=jax python benchmarks/ldstack.py

times a training step (forward, backward, a step of gradient descent) of

- "depth 1", "depth 2", "depth 4": LDStack with that many recurrences;
- "linear, last": `LinearDynamicalSystem` with `return_sequences=False`;
- `keras.layers.SimpleRNN`, `GRU` and `LSTM` with as many states, on this
  backend (on PyTorch with `use_cudnn=False`, without which GRU and LSTM take a
  hundred times as long),

on sequences of 128 to 65,536 steps. The loss takes the outputs of all steps,
which have as many numbers as there are states. From 4096 steps on the batch
shrinks, so that batch times steps stays constant.

All run in one process (it needs PyTorch and JAX on any backend), taking turns
round after round; times are medians in milliseconds. Slow contenders are
measured fewer times (see `interleaved` in common.py). On PyTorch, which
compiles nothing, a contender whose first call takes longer than `--once` is not
called again. Keras' layers are left out beyond `--longest` steps, 16,384 except
on JAX, because a step would take minutes.

The tables are

- times, with the ratio to LDStack of depth 2 in parentheses;
- the first call in seconds, which includes tracing and compiling;
- the limit's share of LDStack's time. The limit is three times the products of
  the forward pass at the rate of the largest product, or three copies of what
  the recurrences exchange (inputs, states and corrections, outputs), whichever
  takes longer;
- the break-even length: the number of steps beyond which LDStack is faster,
  interpolated in the logarithms of steps and times.
"""

import argparse
import time

import keras
import numpy as np
from common import copy_time
from common import interleaved
from common import keras_layer
from common import parsed_options
from common import print_header
from common import print_row
from common import product_rate
from common import training_step
from keras import ops

import keras_linrec

DEPTHS = (1, 2, 4)
STEPS = (128, 512, 2048, 4096, 16384, 65536)
LINEAR = "linear, last"
RECURRENT = ("SimpleRNN", "GRU", "LSTM")
# Other times are also given as multiples of this one's.
REFERENCE = "depth 2"


def main():
    options = read_options()
    rate = product_rate()
    backend = keras.backend.backend()
    print(
        f"{backend}; {options.state_size} states, {options.features} features; "
        f"the largest product reaches {rate / 1e9:.0f} GFLOP/s"
    )
    names = [*map(stack_name, DEPTHS), LINEAR, *RECURRENT]
    first, shares, times = [], [], []
    print_titles("ms", names)
    for steps in options.steps:
        batch = max(1, min(options.batch, options.elements // steps))
        calls, first_calls = contenders(options, batch, steps)
        medians = measured(calls, first_calls, options)
        print_row(steps, batch, *with_ratios(medians, names))
        times.append(medians)
        first.append((steps, batch, seconds(first_calls, names)))
        bound = limits(options, batch, steps, rate)
        shares.append((steps, batch, shares_of(bound, medians)))
    print_table("first call, s", names, first)
    print_table("share of the limit", map(stack_name, DEPTHS), shares)
    print_crossings(options.steps, times)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--state-size", type=int, default=32)
    parser.add_argument("--features", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16, help="largest batch")
    parser.add_argument(
        "--elements", type=int, default=65536, help="largest batch x steps"
    )
    parser.add_argument(
        "--longest",
        type=int,
        default=max(STEPS) if keras.backend.backend() == "jax" else 16384,
        help="leave out Keras' layers beyond this length (%(default)s)",
    )
    parser.add_argument(
        "--once",
        type=float,
        default=5,
        help="on PyTorch, call contenders once if that takes more seconds",
    )
    return parsed_options(parser)


def stack_name(depth):
    return f"depth {depth}"


# Measurements.


def contenders(options, batch, steps):
    """Functions that train for a step, and milliseconds of their first call."""
    shape = batch, steps, options.features
    sequences = np.random.default_rng(0).standard_normal(shape)
    tensor = ops.convert_to_tensor(sequences.astype("float32"))
    calls, first_calls = {}, {}
    for name, layer in make_layers(options, steps).items():
        begin = time.perf_counter()
        call = training_step(layer, tensor)
        results = call()
        first_calls[name] = 1e3 * (time.perf_counter() - begin)
        del results
        calls[name] = call
    return calls, first_calls


def make_layers(options, steps):
    size = options.state_size
    layers = keras_linrec.layers
    found = {
        stack_name(depth): layers.LDStack(size, size, depth) for depth in DEPTHS
    }
    found[LINEAR] = layers.LinearDynamicalSystem(
        size, size, return_sequences=False
    )
    if steps > options.longest:
        return found
    for name in RECURRENT:
        found[name] = keras_layer(name, size, return_sequences=True)
    return found


def measured(calls, first_calls, options):
    """The median milliseconds of each call."""
    # On other backends the first call mostly compiles.
    compiles = keras.backend.backend() != "torch"
    longest = np.inf if compiles else 1e3 * options.once
    again = {n: call for n, call in calls.items() if first_calls[n] < longest}
    return {**first_calls, **interleaved(again, options.rounds)}


def limits(options, batch, steps, rate):
    """The limit for each depth, in milliseconds."""
    size, features = options.state_size, options.features
    found = {}
    for depth in DEPTHS:
        more = depth - 1
        # The feedthrough; B and C; and for each further recurrence A, which is
        # a product with the inverse basis and one with the basis.
        products = features * size + depth * features * size
        products += size * size + 2 * more * size * size
        arithmetic = 3 * 2 * products * batch * steps / rate
        # The states of one recurrence, and the corrections of the next.
        width = features + 2 * more * size + size
        array = np.zeros((batch, steps, width), "float32")
        copy = 3 * copy_time([array], options.rounds)["forward"]
        found[stack_name(depth)] = max(1e3 * arithmetic, copy)
    return found


# Tables.


def with_ratios(medians, names):
    reference = medians[REFERENCE]
    return [
        f"{medians[n]:.1f} ({multiple(medians[n] / reference)})"
        if n in medians
        else ""
        for n in names
    ]


def multiple(ratio):
    return f"{ratio:.0f} x" if ratio >= 10 else f"{ratio:.2g} x"


def seconds(milliseconds, names):
    return [
        f"{1e-3 * milliseconds[n]:.2f}" if n in milliseconds else ""
        for n in names
    ]


def shares_of(bound, medians):
    return [f"{bound[name] / medians[name]:.0%}" for name in bound]


def print_table(title, names, rows):
    print_titles(title, names)
    for steps, batch, texts in rows:
        print_row(steps, batch, *texts)


def print_titles(title, names):
    backend = keras.backend.backend()
    print_header(f"{backend}, {title}: steps", "batch", *names)


def print_crossings(steps, times):
    backend = keras.backend.backend()
    print_header(f"{backend}, faster beyond", *RECURRENT)
    for depth in DEPTHS:
        name = stack_name(depth)
        cells = [crossing(steps, times, name, other) for other in RECURRENT]
        print_row(name, *cells)


def crossing(steps, times, ours, theirs):
    """The number of steps beyond which ours is faster, as text."""
    both = [
        (np.log(count), np.log(medians[theirs] / medians[ours]))
        for count, medians in zip(steps, times)
        if theirs in medians
    ]
    if not both:
        return "not measured"
    counts, advantages = np.array(both).T
    slower = np.flatnonzero(advantages <= 0)
    if not len(slower):
        return f"less than {np.exp(counts[0]):.0f}"
    last = slower[-1]
    if last + 1 == len(counts):
        return f"more than {np.exp(counts[-1]):.0f}"
    between = slice(last, last + 2)
    found = np.interp(0, advantages[between], counts[between])
    return f"{np.exp(found):.0f}"


if __name__ == "__main__":
    main()
