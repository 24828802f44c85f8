"""Whole layers and models on a GPU, beside the LSTM of cuDNN.

    KERAS_BACKEND=torch python benchmarks/layers_on_gpu.py
    KERAS_BACKEND=jax python benchmarks/layers_on_gpu.py

A training step (forward, backward, gradients of all weights) of RotRNN, LSSL
and LipschitzRNN, as a layer and as a `SequenceClassifier` of two blocks, beside
`keras.layers.LSTM` and, on PyTorch, `torch.nn.LSTM`, for 300 to 100,000 steps,
in float32 and with bfloat16 for what Keras' and PyTorch's policies compute in
it. Memory is what a step adds at its peak: on PyTorch by its allocator, on JAX
by XLA's plan of the program's temporaries. What would take longer than
`--patience` seconds a step, by the length before, is left out, and nothing
begins after `--seconds`. On a CPU it runs to check itself: `--steps 20 40
--batch 2 --features 8`.
"""

import argparse
import time
from contextlib import nullcontext
from statistics import median

import keras
import numpy as np
from common import for_backend
from common import framework_layers
from common import keras_layer
from common import mean_square
from common import parsed_options
from common import peak_memory
from common import print_header
from common import print_row
from keras import ops

from keras_linrec import layers
from keras_linrec import models

# Layers, and their names in models.
OURS = {"RotRNN": "rotrnn", "LSSL": "lssl", "LipschitzRNN": "lipschitz_rnn"}
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
CLASSES, BLOCKS = 10, 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[300, 3000, 30_000, 100_000]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=3)
    parser.add_argument("--seconds", type=float, default=420)
    options = parsed_options(parser)
    end = time.monotonic() + options.seconds
    peers = ["keras LSTM"]
    peers += ["torch.nn.LSTM"] * ("torch.nn.LSTM" in framework_layers())
    print(f"{keras.backend.backend()}, Keras {keras.__version__}: {device()}")
    print_header("what", "dtype", "steps", "ms", "MB")
    for dtype in POLICIES:
        for kind in ("layer", "model"):
            for name in (*OURS, *peers):
                print_lengths(name, kind, dtype, options, end)


def print_lengths(name, kind, dtype, options, end):
    """A row for each length that is not expected to take too long."""
    last = None
    for steps in options.steps:
        title = f"{name}, {kind}", dtype, f"{steps:,}"
        if last and last[1] * steps / last[0] > 1e3 * options.patience:
            print_row(*title, "too long", "")
            return
        if time.monotonic() > end:
            print_row(*title, "no time left", "")
            return
        try:
            milliseconds, memory = measured(name, kind, dtype, options, steps)
        except Exception as failure:
            # Out of memory, or a peer that has no kernel for a dtype.
            print_row(*title, f"{type(failure).__name__}: {failure}"[:70], "")
            return
        last = steps, milliseconds
        size = "" if memory is None else f"{memory:.0f}"
        print_row(*title, f"{milliseconds:.2f}", size)


def measured(name, kind, dtype, options, steps):
    """Milliseconds of a training step, and megabytes that it takes."""
    keras.utils.set_random_seed(0)
    shape = options.batch, steps, options.features
    numbers = np.random.default_rng(0).standard_normal(shape)
    inputs = ops.convert_to_tensor(numbers.astype("float32"))
    if name == "torch.nn.LSTM":
        call, weights = torch_peer(kind, options.features, inputs, dtype)
    else:
        call, weights = keras_call(name, kind, options.features, inputs, dtype)
    make = for_backend(
        jax=jax_step, tensorflow=tensorflow_step, torch=torch_step
    )
    step, memory = make(call, weights, inputs)
    for _ in range(2):
        step()
    size = memory()
    times = []
    for _ in range(options.rounds):
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    return median(times), size


def keras_call(name, kind, features, inputs, dtype):
    """A layer or model of Keras, and its weights."""
    policy = {"dtype": POLICIES[dtype]}

    def peer(**arguments):
        if is_on_gpu():
            # Keras decides whether cuDNN can run it.
            return keras.layers.LSTM(features, **arguments, **policy)
        return keras_layer("LSTM", features, **arguments, **policy)

    if name == "keras LSTM" and kind == "layer":
        made = peer(return_sequences=True)
    elif name == "keras LSTM":
        deep = [peer(return_sequences=True) for _ in range(BLOCKS - 1)]
        head = keras.layers.Dense(CLASSES, **policy)
        made = keras.Sequential([*deep, peer(), head])
    elif kind == "layer":
        made = getattr(layers, name)(features, **policy)
    else:
        made = models.SequenceClassifier(
            CLASSES,
            num_layers=BLOCKS,
            units=features,
            unit=OURS[name],
            **policy,
        )
    made(inputs[:1, :2])
    return made, made.trainable_variables


def torch_peer(kind, features, inputs, dtype):
    """The same of PyTorch's own LSTM."""
    import torch

    count = 1 if kind == "layer" else BLOCKS
    layer = torch.nn.LSTM(features, features, count, batch_first=True)
    head = torch.nn.Linear(features, CLASSES)
    layer, head = layer.to(inputs.device), head.to(inputs.device)

    def call(inputs):
        scope = nullcontext()
        if dtype == "bfloat16":
            scope = torch.autocast(inputs.device.type, torch.bfloat16)
        with scope:
            outputs = layer(inputs)[0]
            return outputs if kind == "layer" else head(outputs[:, -1])

    weights = [*layer.parameters()]
    return call, weights + [*head.parameters()] * (kind == "model")


# Each returns a step, and a function that tells its memory in megabytes.


def torch_step(call, weights, inputs):
    import torch

    weights = [getattr(weight, "value", weight) for weight in weights]

    def step():
        loss = mean_square(ops.cast(call(inputs), "float32"))
        gradients = torch.autograd.grad(loss, weights)
        if inputs.is_cuda:
            torch.cuda.synchronize()
        return gradients

    def memory():
        if not inputs.is_cuda:
            return peak_memory(step)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return (torch.cuda.max_memory_allocated() - before) / 1e6

    return step, memory


def jax_step(call, weights, inputs):
    import jax

    rest = [variable.value for variable in call.non_trainable_variables]

    def loss(weights, inputs):
        outputs, _ = call.stateless_call(weights, rest, inputs)
        return mean_square(ops.cast(outputs, "float32"))

    values = [variable.value for variable in weights]
    compiled = jax.jit(jax.grad(loss)).lower(values, inputs).compile()

    def memory():
        return compiled.memory_analysis().temp_size_in_bytes / 1e6

    return lambda: jax.block_until_ready(compiled(values, inputs)), memory


def tensorflow_step(call, weights, inputs):
    import tensorflow as tf

    values = [variable.value for variable in weights]

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            loss = mean_square(ops.cast(call(inputs), "float32"))
        return tape.gradient(loss, values)

    return lambda: [part.numpy() for part in gradients()], lambda: None


def device():
    if keras.backend.backend() == "torch" and is_on_gpu():
        import torch

        return torch.cuda.get_device_name()
    return "GPU" if is_on_gpu() else "CPU"


def is_on_gpu():
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    if backend == "jax":
        import jax

        return jax.default_backend() == "gpu"
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


if __name__ == "__main__":
    main()
