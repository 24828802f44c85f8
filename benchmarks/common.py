"""What the benchmarks share: times, memory, limits, steps of training, tables.

Contenders take turns, round after round, so that a busy machine disturbs all
alike; medians count.
"""

import ctypes
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
from keras import ops

# What takes so long in all is not repeated again.
LONGEST_MILLISECONDS = 800
# The order of the matrices whose product shows what a machine can do.
PRODUCT = 2048
RATE = 1e-3


def for_backend(**choices):
    """Of what is given under the backends' names, what is for this one."""
    return choices[keras.backend.backend()]


# Times and memory.


def interleaved(calls, rounds):
    """The median milliseconds of each, the second of two calls in a row.

    The first brings back what the others drove out of caches and threads: a
    training loop, too, does the same step again and again.
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
            # Freed outside of what is timed.
            del results
    return {name: statistics.median(times) for name, times in samples.items()}


def peak_memory(call):
    """Megabytes that a call adds to the process at its highest, on Linux."""
    try:
        # What an earlier call freed and the allocator kept is not held.
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


# What the machine can do.


def copy_time(arrays, rounds):
    """Milliseconds to copy arrays on all cores, and for backward four times.

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
    """Operations a second of JAX's large product, whatever the backend."""
    import jax
    import jax.numpy as jnp

    matrix = jnp.ones((PRODUCT, PRODUCT), "float32")
    product = jax.jit(jnp.matmul)
    times = []
    for _ in range(15):
        begin = time.perf_counter()
        jax.block_until_ready(product(matrix, matrix))
        times.append(time.perf_counter() - begin)
    # What it can reach, not what a busy moment leaves of it.
    return 2 * PRODUCT**3 / min(times)


# A step of training: forward, backward, a step of gradient descent.


def training_step(layer, sequences):
    """A call that trains a layer once."""
    layer.build(tuple(sequences.shape))
    make = for_backend(
        jax=_jax_step, tensorflow=_tensorflow_step, torch=_torch_step
    )
    return make(layer, sequences)


def _jax_step(layer, sequences):
    """As Keras trains: what is no weight goes in, and comes out, too."""
    import jax

    weights = [variable.value for variable in layer.trainable_variables]
    state = {"rest": [v.value for v in layer.non_trainable_variables]}

    def loss(weights, rest):
        outputs, new = layer.stateless_call(weights, rest, sequences)
        return ops.mean(ops.square(outputs)), new

    descend = jax_descent(loss)

    def step():
        results, state["rest"] = descend(weights, state["rest"])
        return jax.block_until_ready(results)

    return step


def jax_descent(loss):
    """New weights, and what else `loss` returns, of `loss`'s arguments."""
    import jax

    @jax.jit
    def descend(weights, *others):
        gradients, new = jax.grad(loss, has_aux=True)(weights, *others)
        return jax.tree.map(lambda w, g: w - RATE * g, weights, gradients), new

    return descend


def _tensorflow_step(layer, sequences):
    import tensorflow as tf

    variables = [variable.value for variable in layer.trainable_variables]

    @tf.function
    def descend():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(sequences)))
        gradients = tape.gradient(loss, variables)
        return loss, [RATE * gradient for gradient in gradients]

    return lambda: float(descend()[0])


def _torch_step(layer, sequences):
    import torch

    variables = [variable.value for variable in layer.trainable_variables]

    def step():
        loss = layer(sequences).square().mean()
        gradients = torch.autograd.grad(loss, variables)
        return [RATE * gradient for gradient in gradients]

    return step


def keras_layer(name, units, **arguments):
    """`LSTM`, `GRU` or `SimpleRNN`, without cuDNN's form on PyTorch.

    On a processor its loops take a hundred times as long.
    """
    if keras.backend.backend() == "torch" and name != "SimpleRNN":
        arguments["use_cudnn"] = False
    return getattr(keras.layers, name)(units, **arguments)


# Tables.


def print_header(*titles):
    print(f"\n| {' | '.join(titles)} |")
    print("|---" * len(titles) + "|", flush=True)


def print_row(*cells):
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_comparison(title, calls, rounds):
    """Times and memory of some calls, as multiples of the first's."""
    memory = {}
    # TensorFlow keeps what it once had, so that none can be told.
    pooled = keras.backend.backend() == "tensorflow"
    for name, call in calls.items():
        # What is compiled is compiled now.
        call()
        memory[name] = None if pooled else peak_memory(call)
    times = interleaved(calls, rounds)
    first = next(iter(times.values()))
    print_header(f"{keras.backend.backend()}: {title}", "ms", "ratio", "memory")
    for name, median in times.items():
        size = "" if memory[name] is None else f"{memory[name]:.0f} MB"
        print_row(name, f"{median:.1f}", f"{median / first:.1f}", size)
