"""Every kernel on this device: `python -m keras_linrec.kernels check`.

The self-test of each kernel with its tiny cases; a complex scan, an impulse
response and a causal convolution with their gradients at odd sizes; and a large
real scan, which is timed. Where a kernel has no impulse response or convolution
of its own, the form that runs in its place is checked. Errors are relative to
the largest value, against loops in float64.
"""

import platform
import sys
import time
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version

import keras
import numpy as np

from keras_linrec.kernels import backends
from keras_linrec.kernels import registry
from keras_linrec.kernels import self_test
from keras_linrec.kernels.operations import OPERATIONS
from keras_linrec.settings import KERNELS
from keras_linrec.version import __version__

# By operation, odd sizes of its first case.
_ODD = {
    name: operation.odd_sizes
    for name, operation in OPERATIONS.items()
    if operation.odd_sizes
}
_LARGE = (16, 4096, 256)
_REPEATS = 7


def check():
    """Print the table; return the number of kernels that fail."""
    for name, what in versions():
        print(f"{name}: {what}")
    bandwidth = copy_bandwidth()
    print(f"copies: {bandwidth / 1e9:.1f} GB/s, measured on {_LARGE}\n")
    titles = (
        "kernel",
        "tiny, all operations",
        *(f"{name} and gradients {sizes}" for name, sizes in _ODD.items()),
        f"real scan {_LARGE}",
        "ms",
        "share of copies",
    )
    print(_row(titles), _row("---" for _ in titles), sep="\n")
    failures = 0
    for name in KERNELS:
        cells, failed = _cells(name, bandwidth)
        failures += failed
        print(_row((name, *cells)), flush=True)
    return failures


def versions():
    """Pairs of a name and a version or a description."""
    backend = keras.backend.backend()
    yield "keras_linrec", __version__
    yield "keras", f"{keras.__version__}, backend {backend}"
    for name in (backend, f"{backend}lib", "numpy"):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue
    yield "python", f"{sys.version.split()[0]}, {platform.platform()}"
    yield "device", backends.current().device_name()


def copy_bandwidth():
    """Bytes that are read or written a second where an array is doubled."""
    array = keras.ops.ones(_LARGE)
    seconds = _seconds(lambda given: given * 2.0, array)
    return 2 * 4 * np.prod(_LARGE) / seconds


def _row(cells):
    return f"| {' | '.join(cells)} |"


def _cells(name, bandwidth):
    """The cells of a kernel's row, and whether it fails."""
    available = registry.available()[name]
    if not available:
        return [available.reason.replace("\n", " "), *[""] * 6], (
            available.failed
        )
    place, vjp = registry.platform_of(name), backends.current().vjp
    kernel = registry.on_platform(place, registry.load(name))
    with backends.current().checking():
        errors = [
            registry.error_on(place, kernel),
            *(
                self_test.error_at(sizes, OPERATIONS[name], kernel, vjp)
                for name, sizes in _ODD.items()
            ),
        ]
    error, seconds = _large_scan(kernel)
    errors.append(error)
    allowed = self_test.tolerance(name, place)
    # Inputs are read once, and outputs written once.
    share = 2 * 4 * np.prod(_LARGE) / seconds / bandwidth
    return [
        *(_judged(error, allowed) for error in errors),
        f"{1e3 * seconds:.2f}",
        f"{100 * share:.0f}%",
    ], not all(error < allowed for error in errors)


def _judged(error, allowed):
    return f"{error:.0e}" if error < allowed else f"{error:.0e} WRONG"


def _large_scan(kernel):
    """The error and the seconds of a scan with decays near one."""
    generator = np.random.default_rng(0)
    decay = generator.uniform(0.9, 1.0, _LARGE[-1]).astype("float32")
    inputs = generator.standard_normal(_LARGE).astype("float32")
    expected = np.empty(_LARGE)
    state = np.zeros((_LARGE[0], _LARGE[-1]))
    for step in range(_LARGE[1]):
        state = decay.astype("float64") * state + inputs[:, step]
        expected[:, step] = state
    decay, inputs, state = map(
        keras.ops.convert_to_tensor, (decay, inputs, np.zeros_like(state, "f"))
    )

    def scan(inputs):
        return kernel.scan((decay,), (inputs,), (state,))[0][0]

    got = keras.ops.convert_to_numpy(backends.current().program(scan)(inputs))
    error = np.abs(got - expected).max() / np.abs(expected).max()
    return error, _seconds(scan, inputs)


def _seconds(function, tensor):
    """The least seconds of a call, of several."""
    run = backends.current().program(function)

    def timed():
        start = time.perf_counter()
        # The call is over when one of its numbers can be read.
        float(keras.ops.convert_to_numpy(run(tensor)[-1, -1, -1]))
        return time.perf_counter() - start

    timed()
    return min(timed() for _ in range(_REPEATS))
