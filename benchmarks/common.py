"""Shared by the benchmarks: timing, memory, limits, training steps, tables.

Contenders take turns, round after round, so that a busy machine slows all of
them alike. Results are medians.
"""

import ctypes
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_linrec import config

# A call that has taken this long in total is not repeated.
LONGEST_MILLISECONDS = 800
# The order of the matrices whose product gives the machine's peak rate.
PRODUCT = 2048
RATE = 1e-3


def for_backend(**choices):
    """The argument that is named after the current backend."""
    return choices[keras.backend.backend()]


@contextmanager
def on_kernel(name):
    """A scope in which the scans run on a kernel."""
    config.set_kernel(name)
    try:
        yield
    finally:
        config.set_kernel(None)


def parsed_options(parser):
    """The command line's options, with the one that sets what memory does."""
    parser.add_argument(
        "--return-memory",
        action="store_true",
        help="return freed memory to the system, as the C library does, "
        "instead of keeping it (`config.keep_freed_memory`)",
    )
    options = parser.parse_args()
    if not options.return_memory:
        config.keep_freed_memory()
    return options


# Times and memory.


def interleaved(calls, rounds):
    """The median milliseconds of each call, by the second of two in a row.

    The first of the two warms caches and threads up again, as in a training
    loop, which repeats the same step.
    """
    samples = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            if sum(samples[name]) > LONGEST_MILLISECONDS:
                continue
            call()
            begin = time.perf_counter()
            results = call()
            samples[name].append(1e3 * (time.perf_counter() - begin))
            # Freed outside the timed region.
            del results
    return {name: statistics.median(times) for name, times in samples.items()}


def peak_memory(call):
    """Megabytes that a call adds to the process's peak memory, on Linux."""
    try:
        # Return what the allocator has kept from earlier calls.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        results = call()
        del results
        return (_status("VmHWM") - before) / 1024
    except (OSError, AttributeError):
        return None


def _status(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise OSError(f"no {key}")


# The machine's limits.


def copy_time(arrays, rounds):
    """Milliseconds to copy arrays on all cores: once, and 2.5 times.

    A backward pass reads the outputs and their cotangents and writes those of
    the inputs; with the forward pass that is two and a half copies.
    """
    workers = len(os.sched_getaffinity(0))
    pieces = [
        (np.zeros_like(piece), piece)
        for array in arrays
        for piece in np.array_split(array.reshape(-1), workers)
    ]
    with ThreadPoolExecutor(workers) as pool:

        def copy():
            return list(pool.map(lambda pair: np.copyto(*pair), pieces))

        copy()
        median = interleaved({"copy": copy}, max(rounds, 15))["copy"]
    return {"forward": median, "backward": 2.5 * median}


def product_rate():
    """Operations per second of a large product in JAX, on any backend."""
    import jax
    import jax.numpy as jnp

    matrix = jnp.ones((PRODUCT, PRODUCT), "float32")
    product = jax.jit(jnp.matmul)
    times = []
    for _ in range(15):
        begin = time.perf_counter()
        jax.block_until_ready(product(matrix, matrix))
        times.append(time.perf_counter() - begin)
    # The peak rate, so the minimum rather than the median.
    return 2 * PRODUCT**3 / min(times)


# A training step: forward, backward, a step of gradient descent.


def training_step(layer, sequences, **arguments):
    """A function that trains a layer for one step; takes call arguments."""
    if not layer.built:
        layer.build(tuple(sequences.shape))
    make = for_backend(
        jax=_jax_step, tensorflow=_tensorflow_step, torch=_torch_step
    )
    return make(layer, sequences, arguments)


def mean_square(outputs):
    """The mean square of outputs, and of the states if they are there."""
    return sum(
        ops.mean(ops.square(part)) for part in keras.tree.flatten(outputs)
    )


def _jax_step(layer, sequences, arguments):
    """As Keras trains: non-trainable variables are passed in and out."""
    import jax

    weights = [variable.value for variable in layer.trainable_variables]
    state = {"rest": [v.value for v in layer.non_trainable_variables]}

    def loss(weights, rest, sequences, arguments):
        outputs, new = layer.stateless_call(
            weights, rest, sequences, **arguments
        )
        return mean_square(outputs), new

    descend = jax_descent(loss)

    def step():
        results, state["rest"] = descend(
            weights, state["rest"], sequences, arguments
        )
        return jax.block_until_ready(results)

    return step


def jax_descent(loss):
    """A compiled step: the new weights, and what `loss` returns beside it."""
    import jax

    @jax.jit
    def descend(weights, *others):
        gradients, new = jax.grad(loss, has_aux=True)(weights, *others)
        return jax.tree.map(lambda w, g: w - RATE * g, weights, gradients), new

    return descend


def _tensorflow_step(layer, sequences, arguments):
    import tensorflow as tf

    variables = [variable.value for variable in layer.trainable_variables]

    @tf.function
    def descend():
        with tf.GradientTape() as tape:
            loss = mean_square(layer(sequences, **arguments))
        gradients = tape.gradient(loss, variables)
        return loss, [RATE * gradient for gradient in gradients]

    return lambda: float(descend()[0])


def _torch_step(layer, sequences, arguments):
    import torch

    variables = [variable.value for variable in layer.trainable_variables]

    def step():
        loss = mean_square(layer(sequences, **arguments))
        gradients = torch.autograd.grad(loss, variables)
        return [RATE * gradient for gradient in gradients]

    return step


def keras_layer(name, units, **arguments):
    """`LSTM`, `GRU` or `SimpleRNN`, on PyTorch with `use_cudnn=False`.

    On a CPU the cuDNN form of their loops takes a hundred times as long.
    """
    if keras.backend.backend() == "torch" and name != "SimpleRNN":
        arguments["use_cudnn"] = False
    return getattr(keras.layers, name)(units, **arguments)


def framework_layers():
    """The framework's own recurrent layers, where it has any, by name."""
    return for_backend(
        jax=(), tensorflow=(), torch=("torch.nn.LSTM", "torch.nn.GRU")
    )


def framework_step(name, sequences):
    """As `training_step`, for one of `framework_layers`."""
    import torch

    units = sequences.shape[-1]
    layer = getattr(torch.nn, name.split(".")[-1])(
        units, units, batch_first=True
    )
    weights = list(layer.parameters())

    def step():
        loss = mean_square(layer(sequences)[0])
        gradients = torch.autograd.grad(loss, weights)
        return [RATE * gradient for gradient in gradients]

    return step


# Tables.


def print_header(*titles):
    print(f"\n| {' | '.join(titles)} |")
    print("|---" * len(titles) + "|", flush=True)


def print_row(*cells):
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_comparison(title, calls, rounds):
    """Print times and memory of calls, and times relative to the first."""
    memory = {}
    # TensorFlow does not return memory, so that it cannot be measured.
    pooled = keras.backend.backend() == "tensorflow"
    for name, call in calls.items():
        # The first call compiles.
        call()
        memory[name] = None if pooled else peak_memory(call)
    times = interleaved(calls, rounds)
    first = next(iter(times.values()))
    print_header(f"{keras.backend.backend()}: {title}", "ms", "ratio", "memory")
    for name, median in times.items():
        size = "" if memory[name] is None else f"{memory[name]:.0f} MB"
        print_row(name, f"{median:.1f}", f"{median / first:.1f}", size)
