"""The measurements of scan.py on one backend.

    KERAS_BACKEND=torch python benchmarks/scan_measurements.py --rounds 9

prints a line of JSON for each case.
"""

import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from common import PRODUCT
from common import copy_time
from common import for_backend
from common import interleaved
from common import parsed_options
from common import peak_memory
from keras import ops
from peers import keras_associative_scan
from peers import lax_associative_scan
from peers import lax_scan
from peers import python_loop
from peers import require_short

from keras_linrec import kernels
from keras_linrec.kernels.operations import projected_scan as projection

# batch, time, channels
SCANS = ((16, 4096, 256), (4, 16384, 64), (1, 1048576, 16))
# batch, time, features, numbers of state (two per complex channel), units
PROJECTED_SCANS = (
    (32, 784, 128, 256, 128),
    (8, 4096, 128, 256, 128),
    (4, 16384, 96, 128, 96),
    (1, 65536, 64, 128, 64),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cases", default="")
    options = parsed_options(parser)
    measure_backend(options.rounds, options.cases)


def measure_backend(rounds, cases):
    """Prints a line of JSON for each case with `cases` in its name."""
    generator = np.random.default_rng(0)
    rate = product_rate(rounds)
    for size in SCANS:
        for field in ("real", "complex"):
            if cases not in (case := f"{size} {field}"):
                continue
            parts = 1 + (field == "complex")
            decay = generator.uniform(0.5, 0.7, (parts, size[-1]))
            inputs = generator.standard_normal((parts, *size))
            arguments = [a.astype("float32") for a in (*decay, *inputs)]
            emit(
                case,
                "copy",
                measure(scans(parts), arguments, arguments[parts:], rounds),
                copy_time(arguments[parts:], rounds),
            )
    for size in PROJECTED_SCANS:
        if cases not in (case := f"{size} projected"):
            continue
        batch, time_, features, numbers, units = size
        channels = numbers // 2
        shapes = [(channels,)] * 2 + [(batch, time_, features)]
        shapes += [(features, channels)] * 2 + [(channels, units)] * 2
        arguments = [
            0.1 * generator.standard_normal(s).astype("float32") for s in shapes
        ]
        cotangents = [np.ones((batch, time_, units), "float32")]
        work = 2e-9 * batch * time_ * numbers * (features + units)
        emit(
            case,
            "arithmetic",
            measure(projected_scans(), arguments, cotangents, rounds),
            # The backward pass recomputes the states and has four products.
            {"forward": 1e3 * work / rate, "backward": 3.5e3 * work / rate},
        )


def emit(case, limit_name, times, limit):
    print(
        json.dumps(
            {
                "backend": keras.backend.backend(),
                "case": case,
                "limit": {"name": limit_name, **limit},
                "times": times,
            }
        ),
        flush=True,
    )


def scans(parts):
    """Contenders: functions of a list, the decay's parts and the inputs'."""

    def ours(name):
        def scan(arguments):
            decay, inputs = arguments[:parts], arguments[parts:]
            if name == "sequential":
                require_short(inputs)
            state = tuple(0.0 * part[:, 0] for part in inputs)
            kernel = kernels.registry.load(name)
            return list(kernel.scan(tuple(decay), tuple(inputs), state)[0])

        return scan

    available = kernels.available()
    found = {
        f"ours: {name}": ours(name)
        for name in ("native", "associative", "sequential")
        if available[name]
    }
    found["keras.ops.associative_scan"] = keras_associative_scan
    if keras.backend.backend() == "jax":
        found["lax.associative_scan"] = lax_associative_scan
        found["lax.scan"] = lax_scan
    if keras.backend.backend() == "torch":
        found["a loop in Python"] = python_loop
    return found


def projected_scans():
    def with_scan(projected_scan):
        def run(arguments):
            decay, inputs = tuple(arguments[:2]), arguments[2]
            zeros = ops.zeros((ops.shape(inputs)[0], decay[0].shape[0]))
            outputs, _ = projected_scan(
                decay,
                inputs,
                tuple(arguments[3:5]),
                tuple(arguments[5:]),
                (zeros, zeros),
            )
            return [outputs]

        return run

    def unfused(name):
        scan = kernels.registry.load(name).scan
        return with_scan(
            lambda *arguments: projection.projected_scan(scan, *arguments)
        )

    def products_alone(arguments):
        _, inputs, *weights = arguments[1:]
        weights = [
            ops.concatenate(weights[:2], 1),
            ops.concatenate(weights[2:]),
        ]
        return [inputs @ weights[0] @ weights[1]]

    found = {"the two products alone": products_alone}
    if kernels.available()["native"]:
        native = kernels.registry.load("native")
        found["ours: native, fused"] = with_scan(native.projected_scan)
        found["ours: native, unfused"] = unfused("native")
    found["ours: associative, unfused"] = unfused("associative")
    return found


# Timing.


def compiled(function, backward):
    """A function of (arguments, cotangents) that waits for its results."""
    make = for_backend(
        jax=compiled_jax, tensorflow=compiled_tensorflow, torch=compiled_torch
    )
    return make(function, backward)


def compiled_jax(function, backward):
    import jax

    def both(arguments, cotangents):
        outputs, pull_back = jax.vjp(function, arguments)
        return outputs, pull_back(cotangents)

    run = jax.jit(both if backward else lambda a, _: function(a))
    return lambda *given: jax.block_until_ready(run(*given))


def compiled_tensorflow(function, backward):
    import tensorflow as tf

    @tf.function
    def run(arguments, cotangents):
        if not backward:
            return function(arguments)
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            outputs = function(arguments)
        return outputs, tape.gradient(outputs, arguments, cotangents)

    def call(*given):
        results = run(*given)
        # Reading one number waits for the device.
        for part in tf.nest.flatten(results):
            if part is not None:
                float(tf.reshape(part, (-1,))[0])
        return results

    return call


def compiled_torch(function, backward):
    import torch

    def call(arguments, cotangents):
        if not backward:
            with torch.no_grad():
                results = function(arguments)
        else:
            arguments = [a.detach().requires_grad_() for a in arguments]
            outputs = function(arguments)
            gradients = torch.autograd.grad(
                outputs, arguments, cotangents, allow_unused=True
            )
            results = outputs, gradients
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return results

    return call


def measure(functions, arguments, cotangents, rounds):
    """Milliseconds and megabytes of each function, forward and backward."""
    given = [
        [keras.ops.convert_to_tensor(array) for array in arrays]
        for arrays in (arguments, cotangents)
    ]
    times = {name: {} for name in functions}
    for backward in (False, True):
        runs = {
            name: compiled(function, backward)
            for name, function in functions.items()
        }
        key = "backward" if backward else "forward"
        for name, run in list(runs.items()):
            try:
                run(*given)
                times[name][f"{key} memory"] = peak_memory(
                    lambda run=run: run(*given)
                )
            except Exception:
                # Not every peer runs everywhere; the table shows a dash.
                del runs[name]
        samples = interleaved(
            {name: lambda run=run: run(*given) for name, run in runs.items()},
            rounds,
        )
        for name, median in samples.items():
            times[name][key] = median
    return times


def product_rate(rounds):
    """GFLOP/s of a large product on this backend."""
    square = keras.ops.ones((PRODUCT, PRODUCT))
    run = compiled(lambda arguments: [arguments[0] @ arguments[0]], False)
    run([square], [])
    median = interleaved(
        {"product": lambda: run([square], [])}, max(rounds, 15)
    )["product"]
    return 2e-6 * PRODUCT**3 / median


if __name__ == "__main__":
    main()
