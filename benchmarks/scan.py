"""How fast the scans run, beside their peers and the machine's limits.

    python benchmarks/scan.py [--backends jax torch] [--output FOLDER]

One process a backend measures, for each size, our kernels, those that the
framework and Keras offer, a copy of the same memory and a large product of
matrices; rounds are interleaved, so that a busy machine disturbs all alike,
and the median counts. Times are multiples of the limit: for a scan, copying
its inputs into memory that is at hand; for a projected scan, its arithmetic at
the rate of the large product. "Backward" is forward and backward with given
cotangents. Memory is what the process needed beyond what it held before.

Prints a table, and writes it to FOLDER as scan.md with a plot, scan.png.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

BACKENDS = ("jax", "torch", "tensorflow")
# batch, time, channels
SCANS = ((16, 4096, 256), (4, 16384, 64), (1, 1048576, 16))
# batch, time, features, numbers of state (two a complex channel), units
PROJECTED_SCANS = (
    (32, 784, 128, 256, 128),
    (8, 4096, 128, 256, 128),
    (4, 16384, 96, 128, 96),
    (1, 65536, 64, 128, 64),
)
# A loop in Python over more steps would take minutes.
LONGEST_LOOP = 20_000
# What takes so long in all is not repeated again.
LONGEST_MILLISECONDS = 800
PRODUCT = 2048
FOLDER = Path(__file__).parent / "results"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backends", nargs="+", default=BACKENDS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--seconds",
        type=float,
        default=1200,
        help="stop a backend after so long, and report what there is",
    )
    parser.add_argument("--output", type=Path, default=FOLDER)
    # What this script calls itself with, once for each backend.
    parser.add_argument(
        "--measure", action="store_true", help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.measure:
        measure_backend(arguments.rounds)
        return
    results = []
    for backend in arguments.backends:
        process = subprocess.Popen(
            [
                *(sys.executable, __file__, "--measure"),
                *("--rounds", str(arguments.rounds)),
            ],
            env={**os.environ, "KERAS_BACKEND": backend},
            stdout=subprocess.PIPE,
            text=True,
        )
        deadline = threading.Timer(arguments.seconds, process.kill)
        deadline.start()
        for line in process.stdout:
            results.append(json.loads(line))
            print(f"{backend}: {results[-1]['case']}", file=sys.stderr)
        deadline.cancel()
        if process.wait():
            print(f"{backend} did not come to its end.", file=sys.stderr)
    text = report(results)
    print(text)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "scan.md").write_text(text)
    plot(results, arguments.output / "scan.png")


# What is measured.


def measure_backend(rounds):
    """Prints a line of JSON for each case."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import numpy as np

    generator = np.random.default_rng(0)
    rate = product_rate(rounds)
    for size in SCANS:
        for field in ("real", "complex"):
            parts = 1 + (field == "complex")
            decay = generator.uniform(0.5, 0.7, (parts, size[-1]))
            inputs = generator.standard_normal((parts, *size))
            arguments = [a.astype("float32") for a in (*decay, *inputs)]
            emit(
                f"{size} {field}",
                "copy",
                measure(scans(parts), arguments, arguments[parts:], rounds),
                copy_time(arguments[parts:], rounds),
            )
    for size in PROJECTED_SCANS:
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
            f"{size} projected",
            "arithmetic",
            measure(projected_scans(), arguments, cotangents, rounds),
            # The backward pass computes the states anew, and four products.
            {"forward": 1e3 * work / rate, "backward": 3.5e3 * work / rate},
        )


def emit(case, limit_name, times, limit):
    import keras

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
    """Contenders: functions of decay parts and inputs parts, in one list."""
    import keras

    from keras_linrec import kernels

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
        from jax import lax

        found["lax.associative_scan"] = by_combining(
            lambda combine, elements: lax.associative_scan(
                combine, elements, axis=1
            )
        )
        found["lax.scan"] = lax_scan
    if keras.backend.backend() == "torch":
        found["a loop in Python"] = python_loop
    return found


def require_short(inputs):
    """A loop in Python over very many steps is left out."""
    import keras

    compiled_loop = keras.backend.backend() == "jax"
    if inputs[0].shape[1] > LONGEST_LOOP and not compiled_loop:
        raise NotImplementedError


def multiply(a, b):
    if len(a) == 1:
        return (a[0] * b[0],)
    return (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0])


def by_combining(associative_scan):
    """A scan from a framework's associative scan."""
    from keras import ops

    def combine(earlier, later):
        parts = len(earlier) // 2
        moved = multiply(later[:parts], earlier[parts:])
        return (
            *multiply(later[:parts], earlier[:parts]),
            *(m + x for m, x in zip(moved, later[parts:])),
        )

    def scan(arguments):
        parts = len(arguments) // 2
        decay = [
            ops.broadcast_to(d, ops.shape(x))
            for d, x in zip(arguments[:parts], arguments[parts:])
        ]
        elements = (*decay, *arguments[parts:])
        return list(associative_scan(combine, elements)[parts:])

    return scan


def keras_associative_scan(arguments):
    from keras import ops

    def along_time(combine, elements):
        return ops.associative_scan(combine, elements, axis=1)

    return by_combining(along_time)(arguments)


def lax_scan(arguments):
    from jax import lax

    parts = len(arguments) // 2
    decay, inputs = arguments[:parts], arguments[parts:]

    def step(state, now):
        state = tuple(m + x for m, x in zip(multiply(decay, state), now))
        return state, state

    start = tuple(0.0 * part[:, 0] for part in inputs)
    _, outputs = lax.scan(
        step, start, tuple(part.swapaxes(0, 1) for part in inputs)
    )
    return [part.swapaxes(0, 1) for part in outputs]


def python_loop(arguments):
    import torch

    parts = len(arguments) // 2
    decay, inputs = arguments[:parts], arguments[parts:]
    require_short(inputs)
    state, outputs = tuple(0.0 * part[:, 0] for part in inputs), []
    for now in zip(*(part.unbind(1) for part in inputs)):
        state = tuple(m + x for m, x in zip(multiply(decay, state), now))
        outputs.append(state)
    return [torch.stack(part, dim=1) for part in zip(*outputs)]


def projected_scans():
    from keras import ops

    from keras_linrec import kernels
    from keras_linrec.kernels import projected_scan as projection

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


# How it is measured.


def compiled(function, backward):
    """A call with (arguments, cotangents) that returns when it is done."""
    import keras

    backend = keras.backend.backend()
    return globals()[f"compiled_{backend}"](function, backward)


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
    """Milliseconds and megabytes of each, forward and backward."""
    import keras

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
                times[name][f"{key} memory"] = peak_memory(run, given)
            except Exception:
                # Not every peer runs everywhere: a dash in the table.
                del runs[name]
        samples = interleaved(
            {name: lambda run=run: run(*given) for name, run in runs.items()},
            rounds,
        )
        for name, median in samples.items():
            times[name][key] = median
    return times


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


def peak_memory(run, given):
    """Megabytes that a call adds to the process at its highest, on Linux."""
    try:
        # What an earlier call freed and the allocator kept is not held.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        results = run(*given)
        del results
        return (_status("VmHWM") - before) / 1024
    except (OSError, AttributeError):
        return None


def _status(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise OSError(f"no {key}")


def copy_time(arrays, rounds):
    """Milliseconds to copy arrays on all cores, and for backward four times.

    A backward pass reads the outputs and their cotangents and writes those of
    the inputs; with the forward pass that is two and a half copies.
    """
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

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


def product_rate(rounds):
    """GFLOP/s of a large product, on this backend."""
    import keras

    square = keras.ops.ones((PRODUCT, PRODUCT))
    run = compiled(lambda arguments: [arguments[0] @ arguments[0]], False)
    run([square], [])
    median = interleaved(
        {"product": lambda: run([square], [])}, max(rounds, 15)
    )["product"]
    return 2e-6 * PRODUCT**3 / median


# What is shown.


def rows(results):
    """Backend, case, contender, and a cell each for what was measured."""
    for result in results:
        for name, times in result["times"].items():
            if not times:
                continue
            cells = []
            for key in ("forward", "backward"):
                if key not in times:
                    cells += ["-", "-"]
                    continue
                ratio = times[key] / result["limit"][key]
                memory = times.get(f"{key} memory")
                cells.append(f"{ratio:.1f} ({times[key]:.1f} ms)")
                cells.append("-" if memory is None else f"{memory:.0f} MB")
            yield result["backend"], result["case"], name, *cells


def report(results):
    lines = [
        "Multiples of the limit, with milliseconds: of copying the inputs, "
        "for scans of (batch, time, channels); of the arithmetic at the rate "
        f"of a {PRODUCT}-cubed product, for projected scans of (batch, time, "
        "features, numbers of state, units).",
        "",
        "| backend | case | kernel | forward | memory | with backward "
        "| memory |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows(results)]
    return "\n".join(lines) + "\n"


def plot(results, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(result["case"] for result in results))
    backends = list(dict.fromkeys(result["backend"] for result in results))
    figure, axes = pyplot.subplots(
        *(len(cases), len(backends)),
        figsize=(6 * len(backends), 2.2 * len(cases)),
        squeeze=False,
        layout="constrained",
    )
    for result in results:
        axis = axes[cases.index(result["case"])][
            backends.index(result["backend"])
        ]
        times = {n: t for n, t in result["times"].items() if "backward" in t}
        limit = result["limit"]
        axis.barh(
            list(times),
            [t["backward"] / limit["backward"] for t in times.values()],
        )
        axis.axvline(1.0, color="black", linewidth=1)
        axis.set_xscale("log")
        axis.set_title(f"{result['backend']}, {result['case']}", fontsize=9)
        axis.set_xlabel(f"multiples of the limit ({limit['name']})", fontsize=8)
        axis.tick_params(labelsize=8)
    figure.suptitle("Forward and backward; shorter is faster")
    figure.savefig(path, dpi=120)
    print(f"Wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
