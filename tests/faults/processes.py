"""Forks, threads and interpreters that end, around native code at work."""

import os
import subprocess
import sys
import threading

import numpy as np

from faults.forks import Child
from keras_linrec import ops

ENDS = """
import os, sys, threading, time
import numpy as np
from keras_linrec import ops
decay = np.full(64, 0.9, "float32")
inputs = np.ones((8, 20_000, 64), "float32")
ops.linear_scan(decay, inputs)
def forever():
    while True:
        ops.linear_scan(decay, inputs)
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
    """Interpreters end, in several ways, while native threads run."""
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
