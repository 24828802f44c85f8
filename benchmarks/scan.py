"""How fast the scans run: KERAS_BACKEND=jax python benchmarks/scan.py

Prints, for each size (batch, time, channels), the median milliseconds of our
kernels and of `keras.ops.associative_scan`, forward and forward with backward,
and the same as multiples of copying the inputs once in the same process.
Measurements of all are interleaved, so that a busy machine disturbs them
alike. The kernel that `auto` takes is marked with a star.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from keras import ops

import keras_linrec
from keras_linrec import kernels

SIZES = ((16, 4096, 256), (4, 16384, 64), (32, 784, 128))
BACKEND = keras.backend.backend()


def ours(kernel):
    def scan(decay, inputs):
        keras_linrec.config.set_kernel(kernel)
        if len(inputs) == 1:
            return keras_linrec.ops.linear_scan(decay[0], inputs[0])[:1]
        return keras_linrec.ops.complex_linear_scan(decay, inputs)[0]

    return scan


def keras_associative_scan(decay, inputs):
    """Keras' own, on real numbers; it is wrong on complex ones on PyTorch."""
    if len(inputs) == 2:
        raise NotImplementedError

    def combine(earlier, later):
        return (
            later[0] * earlier[0],
            later[0] * earlier[1] + later[1],
        )

    decay = ops.broadcast_to(decay[0], inputs[0].shape)
    return ops.associative_scan(combine, (decay, inputs[0]), axis=1)[1:]


def copy(decay, inputs):
    return tuple(part + 1.0 for part in inputs)


def compiled(function, backward):
    """A call of decay and inputs that returns when the work is done."""
    if BACKEND == "jax":
        return _compiled_jax(function, backward)
    if BACKEND == "tensorflow":
        return _compiled_tensorflow(function, backward)
    return _compiled_torch(function, backward)


def _loss(outputs):
    # Quadratic, so that the gradient of the outputs is at hand and cheap.
    return sum(ops.sum(part * part) for part in outputs)


def _compiled_jax(function, backward):
    import jax

    run = function
    if backward:
        run = jax.grad(lambda *a: _loss(function(*a)), argnums=(0, 1))
    run = jax.jit(run)
    return lambda *arguments: jax.block_until_ready(run(*arguments))


def _compiled_tensorflow(function, backward):
    import tensorflow as tf

    @tf.function
    def run(decay, inputs):
        if not backward:
            return function(decay, inputs)
        with tf.GradientTape() as tape:
            tape.watch((decay, inputs))
            loss = _loss(function(decay, inputs))
        return tape.gradient(loss, (decay, inputs))

    def call(decay, inputs):
        # Reading one number waits for the device.
        return float(tf.nest.flatten(run(decay, inputs))[-1][0, 0, 0])

    return call


def _compiled_torch(function, backward):
    import torch

    def call(decay, inputs):
        if not backward:
            with torch.no_grad():
                outputs = function(decay, inputs)
        else:
            tensors = [
                tensor.detach().requires_grad_() for tensor in (*decay, *inputs)
            ]
            field = len(inputs)
            loss = _loss(function(tensors[:field], tensors[field:]))
            outputs = torch.autograd.grad(loss, tensors)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return outputs

    return call


def measure(functions, arguments, repeats):
    """Median milliseconds of each, interleaved; None for what fails."""
    times = {}
    for name, function in functions.items():
        try:
            function(*arguments)
            times[name] = []
        except Exception:
            # Not every peer runs everywhere; a dash in the table says so.
            times[name] = None
    for _ in range(repeats):
        for name, function in functions.items():
            if times[name] is None:
                continue
            begin = time.perf_counter()
            function(*arguments)
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {
        name: None if values is None else statistics.median(values)
        for name, values in times.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    scans = {
        name: ours(name)
        for name, available in kernels.available().items()
        if available
    }
    preferred = kernels.registry._preferred()
    scans["keras.ops.associative_scan"] = keras_associative_scan
    generator = np.random.default_rng(0)
    print(f"backend {BACKEND}, median of {repeats}, multiples of a copy\n")
    print(
        "| batch, time, channels | field | kernel | forward | with backward |"
    )
    print("|---|---|---|---|---|")
    for size in SIZES:
        for field in ("real", "complex"):
            parts = 1 + (field == "complex")
            decay = generator.uniform(0.5, 0.7, (parts, size[-1]))
            inputs = generator.standard_normal((parts, *size))
            arguments = [
                [ops.convert_to_tensor(a.astype("float32")) for a in both]
                for both in (decay, inputs)
            ]
            results = [
                measure(
                    {
                        "copy": compiled(copy, False),
                        **{n: compiled(f, back) for n, f in scans.items()},
                    },
                    arguments,
                    repeats,
                )
                for back in (False, True)
            ]
            for name in scans:
                cells = [
                    "-"
                    if result[name] is None
                    else f"{result[name] / result['copy']:.1f} "
                    f"({result[name]:.1f} ms)"
                    for result in results
                ]
                star = " *" if name == preferred else ""
                print(
                    f"| {size} | {field} | {name}{star} | "
                    f"{' | '.join(cells)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
