"""The setting of a case: dtypes, kernel, and how the backend runs it."""

import contextlib
from typing import NamedTuple

import keras
import numpy as np
from support.conformance_cases import float64
from support.drawn_cases import kernel
from support.drawn_cases import rounded
from support.drawn_layers import pick
from support.programs import BACKEND
from support.programs import MODES

from keras_linrec import kernels

POLICIES = ("float32", "float64", "mixed_bfloat16", "mixed_float16")
# The share of cases that run in another way than the backend's usual one.
OTHER_MODES = {"jax": 0.1, "tensorflow": 0.2, "torch": 0.02}
KERNELS = ("auto", "native", "associative", "sequential", "reference")


class Setting(NamedTuple):
    """What a case runs under.

    Attributes:
        policy: the dtype policy of its layers.
        kernel: the kernel that is set.
        mode: one of `programs.MODES`, for the first answer of a case.
    """

    policy: str
    kernel: str
    mode: str

    @property
    def recurrence(self):
        """The dtype of the recurrence and of states."""
        return "float64" if self.policy == "float64" else "float32"

    @property
    def outputs(self):
        """The dtype of layers' inputs and outputs."""
        return self.policy.removeprefix("mixed_")

    @property
    def usual_mode(self):
        """The mode of further answers: PyTorch traces for half a minute."""
        return MODES[0] if BACKEND == "torch" else self.mode

    def scope(self):
        return scope(self.policy, self.kernel)


def draw_setting(generator):
    usual, *others = MODES
    return Setting(
        POLICIES[generator.choice(4, p=[0.55, 0.15, 0.15, 0.15])],
        pick(generator, usable_kernels()),
        pick(generator, others)
        if generator.random() < OTHER_MODES[BACKEND]
        else usual,
    )


def usable_kernels():
    """The kernels that may be set here."""
    native = kernels.available()["native"]
    if native:
        return KERNELS
    assert "self-test" not in native.reason, native.reason
    return tuple(name for name in KERNELS if name != "native")


@contextlib.contextmanager
def scope(policy, name):
    """A scope with a kernel, and with float64 where JAX has to be told."""
    dtypes = float64() if policy == "float64" else contextlib.nullcontext()
    with dtypes, kernel(name):
        yield


def numbers(structure):
    """All tensors of a structure as arrays of at least 32 bits."""
    return [number(part) for part in keras.tree.flatten(structure)]


def number(tensor):
    if "16" in keras.backend.standardize_dtype(tensor.dtype):
        tensor = keras.ops.cast(tensor, "float32")
    return np.array(keras.ops.convert_to_numpy(tensor))


def draw_inputs(generator, shape, setting):
    """Inputs that the compute dtype holds exactly, as float64."""
    scale = pick(generator, [1.0, 1.0, 1e-3, 10.0])
    return rounded(scale * generator.standard_normal(shape), setting.outputs)
