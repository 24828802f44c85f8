"""Calls every native kernel from several Python threads of a framework.

`frameworks.sh` runs it with the runtime of a sanitizer. Other tests check the
numbers; here, threads that compute the same have to give the same bits.

    frameworks_worker.py torch calls    every kernel, from several threads
    frameworks_worker.py torch wrong    a call that a sanitizer has to report
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["KERAS_BACKEND"] = sys.argv[1]
sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import tensors
from support.autodiff import to_numpy
from support.units import UNITS
from support.units import initial_states
from support.units import sequences

from keras_linrec import kernels
from keras_linrec.kernels.native import core

BATCH, THREADS = 3, 4
ROUNDS = 3


def cases():
    """A layer, and the further arguments of its calls, by kernel."""
    time = 70
    gaps = np.linspace(0.5, 1.5, 3 * time, dtype="float32").reshape(3, time)
    resets = np.arange(time)[None] % np.array([[9], [17], [70]]) == 8
    mask = np.arange(time)[None] < np.array([[70], [40], [3]])
    for name, form, arguments in (
        ("lssl", {}, {"initial_state": True}),
        ("lssl", {}, {"time_deltas": gaps, "reset_mask": resets}),
        ("rotrnn", {"bidirectional": True}, {"mask": mask}),
        ("rotrnn", {"return_sequences": False}, {"reset_mask": resets}),
        ("ldstack", {"activation": "tanh"}, {"mask": mask}),
        ("orthogonal_rnn", {}, {"reset_mask": resets}),
        ("lipschitz_rnn", {"gated": True, "solver": "rk2"}, {}),
    ):
        yield UNITS[name](**form), time, arguments


def program(layer, arguments):
    """A function of inputs that returns their gradients, as bytes."""
    if "initial_state" in arguments:
        arguments = {"initial_state": initial_states(layer, BATCH)}

    def loss(tensors):
        return keras.ops.sum(layer(tensors[0], **arguments))

    gradients = compiled(gradient(loss))
    return lambda inputs: [
        part.tobytes() for part in to_numpy(gradients(tensors([inputs])))
    ]


def wrong():
    """Threads that write to one array, beyond its end."""
    steps = 4096
    decay, states = np.full(1, 0.5, "float32"), np.zeros(1, "float32")
    inputs = np.ones(steps + 1, "float32")
    outputs = np.empty(steps, "float32")
    addresses = [
        [array.ctypes.data for array in arrays]
        for arrays in ((decay, inputs, inputs, states), (outputs, states))
    ]

    def scan(_):
        core.call("keras_linrec_scan", 0, (1, 1, steps + 1, 1), *addresses)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(scan, range(100)))


def calls():
    native = kernels.available()["native"]
    assert native, native.reason
    for layer, time, arguments in cases():
        inputs = sequences(time, batch=BATCH)
        layer.build(inputs.shape)
        run = program(layer, arguments)
        expected = run(inputs)
        with ThreadPoolExecutor(THREADS) as pool:
            jobs = [pool.submit(run, inputs) for _ in range(THREADS * ROUNDS)]
        assert all(job.result() == expected for job in jobs), layer.name
        print(f"{layer.name}: {len(jobs)} calls", flush=True)


{"calls": calls, "wrong": wrong}[sys.argv[2]]()
