"""The cores as PyTorch's operators, one for each operation of the table.

Importing this module builds and loads the library for the CPU. An operator
takes the flags and attributes of a call, and its quantities: a list of one
tensor (real) or two (complex) where they may have parts. All tensors may have
further leading axes, which `torch.vmap` adds and the cores treat as independent
systems. `gradients.py` makes the operators differentiable.
"""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native.table import REAL
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.native.table import flatten
from keras_linrec.kernels.native.table import operations
from keras_linrec.kernels.native.table import result_shapes
from keras_linrec.kernels.native.table import sizes_of
from keras_linrec.kernels.torch import cuda
from keras_linrec.kernels.torch.tensors import device_of
from keras_linrec.kernels.torch.tensors import number_flag

# It holds the operators for as long as the process lives.
library = torch.library.Library("keras_linrec", "DEF")


def lend_threads():
    """Makes the core run on PyTorch's threads, if these are OpenMP's.

    They spin while they wait, and would take the processors from the core's
    own threads: RotRNN's training step at (32, 784, 128) takes 57 ms with
    separate threads and 44 with shared ones.
    """
    library = build.core()
    folder = Path(torch.__file__).parent / "lib"
    for path in folder.glob("libgomp*.so*"):
        runtime = ctypes.CDLL(str(path))
        library.keras_linrec_use_openmp(
            runtime.GOMP_parallel,
            runtime.omp_get_thread_num,
            runtime.omp_get_max_threads,
        )
        return


lend_threads()


class Operator:
    """An operation of the table as an operator.

    Its arguments are, in this order: which results to compute, where an
    operation need not compute all; the flags; the attributes; the quantities.
    """

    def __init__(self, operation):
        self.operation = operation
        self.name = operation.name
        # The arguments before the quantities.
        self.settings = bool(operation.wanted) + 1 + len(operation.attributes)
        self.checkpoints = sum(
            one not in operation.differentiated for one in operation.results
        )
        library.define(
            f"{self.name}{self._schema()}", tags=(torch.Tag.pt2_compliant_tag,)
        )
        library.impl(self.name, self._run, "CPU")
        if operation.on_cuda:
            library.impl(self.name, self._run, "CUDA")
        qualified = f"keras_linrec::{self.name}"
        torch.library.register_fake(qualified, self._fake, lib=library)
        self.call = getattr(torch.ops.keras_linrec, self.name).default

    def __call__(self, *given):
        return self.call(*given)

    def _schema(self):
        operation = self.operation
        settings = ["int flags"] + [
            f"{'float' if name in REAL else 'int'} {name}"
            for name in operation.attributes
        ]
        if operation.wanted:
            settings.insert(0, "bool[] wanted")
        quantities = [
            f"Tensor{'[]' * operation.has_parts(one)} {one.name}"
            for one in operation.arguments
        ]
        return f"({', '.join([*settings, *quantities])}) -> Tensor[]"

    def read(self, given):
        """The `Call`, which results are wanted, and the flat tensors."""
        settings, quantities = given[: self.settings], given[self.settings :]
        wanted = None
        if self.operation.wanted:
            wanted, *settings = settings
            wanted = tuple(wanted)
        flags, *attributes = settings
        call = Call(self.name, flags, tuple(attributes))
        return call, wanted, flatten(quantities)

    def _fake(self, *given):
        call, wanted, tensors = self.read(given)
        shapes = result_shapes(call, [part.shape for part in tensors], wanted)
        return self._results(tensors, shapes)

    def _results(self, tensors, shapes):
        results = [tensors[0].new_empty(shape) for shape in shapes]
        for checkpoints in results[len(results) - self.checkpoints :]:
            # The core does not write all of them, and
            # `torch.library.opcheck` compares results.
            checkpoints.zero_()
        return results

    def _run(self, *given):
        call, wanted, tensors = self.read(given)
        device = device_of(self.name, tensors)
        given_shapes = tuple([part.shape for part in tensors])
        try:
            sizes, shapes = _plan(call, given_shapes, wanted)
        except ValueError:
            self._check_parts(call, given[self.settings :])
            raise
        results = self._results(tensors, shapes)
        run = CALLS[device.type]
        run(self.name, call.flags, sizes, tensors, results)
        return results

    def _check_parts(self, call, quantities):
        """Raise if a list of tensors has another length than it should."""
        for one, given in zip(self.operation.arguments, quantities):
            count = one.parts(call.flags)
            if self.operation.has_parts(one) and len(given) != count:
                raise ValueError(
                    f"`{self.name}`: `{one.name}` should have {count} parts. "
                    f"Received: {len(given)}"
                )


@lru_cache(maxsize=4096)
def _plan(call, shapes, wanted):
    """The core's sizes for a call, and the shapes of its results."""
    sizes = sizes_of(call, shapes)
    return sizes, result_shapes(call, shapes, wanted)


def _call_core(name, flags, sizes, arguments, results):
    arguments = [tensor.contiguous() for tensor in arguments]
    # OpenMP reports its default to a thread until PyTorch has set the number
    # of threads there, which this call does.
    torch.get_num_threads()
    core.call(
        f"keras_linrec_{name}",
        flags | number_flag(name, arguments),
        sizes,
        [tensor.data_ptr() for tensor in arguments],
        [tensor.data_ptr() for tensor in results],
    )


# Calls of a core, by the type of the device.
CALLS = {"cpu": _call_core, "cuda": cuda.call}

# By name, those that run on CPUs. Of the others `cuda.py` makes whole
# operations.
OPERATORS = {
    name: Operator(operation)
    for name, operation in operations().items()
    if operation.on_cpu
}


def _checked(name, run):
    def run_checked(*given):
        call, _, tensors = OPERATORS[name].read(given)
        sizes_of(call, tuple([part.shape for part in tensors]))
        return run(call, tensors)

    return run_checked


ON_CUDA = {
    name: _checked(name, getattr(cuda, name))
    for name in ("nonlinear_scan", "nonlinear_scan_backward")
}
for _name, _run in ON_CUDA.items():
    library.impl(_name, _run, "CUDA")
