"""Scans in a process, forks it, and scans in both.

With the argument "torch", on PyTorch's threads.
"""

import os
import sys
import warnings

import numpy as np

from keras_linrec.kernels.native import core

# Frameworks warn about forks because of their threads, which are idle here.
warnings.simplefilter("ignore")

if "torch" in sys.argv:
    import keras_linrec.kernels.torch.native  # noqa: F401

sizes = (1, 4, 20_000, 8)
inputs = np.random.default_rng(0).standard_normal(sizes[1:]).astype("float32")
decay, state = np.full(8, 0.9, "float32"), np.zeros((4, 8), "float32")


def scanned():
    outputs = np.empty_like(inputs)
    core.call(
        "keras_linrec_scan",
        0,
        sizes,
        [array.ctypes.data for array in (decay, inputs, state, state)],
        [array.ctypes.data for array in (outputs, state.copy())],
    )
    return outputs


before = scanned()
child = os.fork()
if child:
    os.waitpid(child, 0)
name = "parent" if child else "child"
same = np.array_equal(scanned(), before)
print(name, "same" if same else "different", flush=True)
if not child:
    os._exit(0)
