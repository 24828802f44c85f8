"""The core as several compilers make it: KERAS_BACKEND=torch python
benchmarks/compilers.py g++ clang++ "python -m ziglang c++"

Builds the core with each command, as the environment variable CXX would, and
times the forward and backward pass of four units at (32, 784, 128) in one
process, where the libraries take turns, round after round. Prints the medians
of the first one in milliseconds and those of the others as multiples of it.
With `--cpu`, times are the CPU time of this process, which depends less on what
else runs; use one thread then (OMP_NUM_THREADS=1), since threads that wait take
CPU time too.
"""

import argparse
import ctypes
import os
import statistics
import time

import keras
import torch
from common import mean_square
from common import print_header
from common import print_row

from keras_linrec import config
from keras_linrec import layers
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import core
from keras_linrec.kernels.torch import operators

SHAPE = 32, 784, 128
UNITS = ("RotRNN", "LSSL", "LipschitzRNN", "OrthogonalRNN")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("compilers", nargs="+", help="commands, as for CXX")
    parser.add_argument("--units", nargs="+", default=UNITS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu", action="store_true", help="CPU time")
    options = parser.parse_args()
    config.keep_freed_memory()
    clock = time.process_time if options.cpu else time.perf_counter
    libraries = {name: built_by(name) for name in options.compilers}
    for name, library in libraries.items():
        use(library)
        print(f"{name}: {core.description()}")
    print_header("unit", "ms", *options.compilers[1:])
    for unit in options.units:
        step = step_of(unit)
        medians = interleaved(libraries, step, options.rounds, clock)
        first, *others = medians.values()
        ratios = (f"{median / first:.2f}" for median in others)
        print_row(unit, f"{1e3 * first:.1f}", *ratios)


def built_by(compiler):
    """The core that a compiler makes; the cache keeps one for each."""
    os.environ["CXX"] = compiler
    return ctypes.CDLL(str(build.library("core")))


def use(library):
    """Let PyTorch's operators call this library, on PyTorch's threads."""
    build.core = lambda: library
    operators.lend_threads()


def step_of(unit):
    keras.utils.set_random_seed(0)
    layer = getattr(layers, unit)(SHAPE[-1])
    sequences = torch.randn(SHAPE, requires_grad=True)
    layer.build(SHAPE)
    variables = [variable.value for variable in layer.trainable_variables]

    def step():
        loss = mean_square(layer(sequences))
        torch.autograd.grad(loss, [sequences, *variables])

    return step


def interleaved(libraries, step, rounds, clock):
    """The median seconds of each library, by the second of two in a row."""
    samples = {name: [] for name in libraries}
    for _ in range(rounds):
        for name, library in libraries.items():
            use(library)
            step()
            begin = clock()
            step()
            samples[name].append(clock() - begin)
    return {name: statistics.median(times) for name, times in samples.items()}


if __name__ == "__main__":
    main()
