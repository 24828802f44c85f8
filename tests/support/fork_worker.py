"""Scans in a process, forks it, and scans in both.

With the argument "torch", on PyTorch's threads.
"""

import os
import sys
import warnings

import numpy as np
from support.core_calls import results_of

from keras_linrec.kernels.native.table import Call

# Frameworks warn about forks because of their threads, which are idle here.
warnings.simplefilter("ignore")

if "torch" in sys.argv:
    import keras_linrec.kernels.torch.native  # noqa: F401

inputs = np.random.default_rng(0).standard_normal((4, 20_000, 8))
given = np.full(8, 0.9), inputs, np.empty((0, 0)), np.zeros((4, 8))


def scanned():
    (outputs,), _ = results_of(Call("scan", 0), given, "float32")
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
