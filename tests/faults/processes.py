"""Forks, threads and interpreters that end, around native code at work."""

import os
import subprocess
import sys
import threading

import numpy as np

from faults.forks import Child
from keras_linrec import ops

# The core by itself, since threads within PyTorch or JAX abort the process at
# this moment, whatever they call (docs/limits.md). Two of its threads work on
# each scan.
ENDS = """
import os, sys, threading, time
import numpy as np
from keras_linrec.kernels.native import core
batch, steps, channels = sizes = 8, 20_000, 64
decay = np.full(channels, 0.9, "float32")
inputs = np.ones(sizes, "float32")
state = np.zeros((batch, channels), "float32")
def scan():
    outputs, final = np.empty_like(inputs), np.empty_like(state)
    given = [a.ctypes.data for a in (decay, inputs)] + [None, state.ctypes.data]
    made = [a.ctypes.data for a in (outputs, final)]
    core.call("keras_linrec_scan", 0, (1, *sizes), given, made)
    return outputs
assert np.allclose(scan()[:, -1], 10.0, atol=1e-4)
def forever():
    while True:
        scan()
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
time.sleep({seconds})
{end}
"""
WAYS = (
    "sys.exit()",
    "sys.exit(3)",
    "raise ValueError",
    "os._exit(0)",
)


def scanned():
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((4, 20_000, 16)).astype("float32")
    outputs, _ = ops.linear_scan(np.full(16, 0.9, "float32"), inputs)
    return np.asarray(outputs).tobytes()


def forks(tries):
    """Forks before and after the first use, and while threads scan."""
    answers = []

    def work(report):
        report(hash(scanned()))

    answers += [Child(work).end(60) for _ in range(tries)]
    expected = [str(hash(scanned()))]
    is_over = threading.Event()

    def scan():
        while not is_over.is_set():
            scanned()

    threads = [threading.Thread(target=scan) for _ in range(3)]
    for thread in threads:
        thread.start()
    answers += [Child(work).end(60) for _ in range(tries)]
    is_over.set()
    for thread in threads:
        thread.join()
    return sum(answer == (0, expected) for answer in answers), 2 * tries


def ends(tries):
    """Interpreters end, in several ways, while native threads scan."""
    survived = 0
    for index in range(tries):
        end = WAYS[index % len(WAYS)]
        code = ENDS.format(seconds=0.02 * index, end=end)
        process = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            timeout=120,
            env={**os.environ, "KERAS_LINREC_NUM_THREADS": "2"},
        )
        expected = {"sys.exit(3)": 3, "raise ValueError": 1}.get(end, 0)
        survived += process.returncode == expected
        if process.returncode != expected:
            print(f"  {end}: {process.returncode}, not {expected}")
    return survived, tries
