"""The scan on NVIDIA GPUs, by kernels of our own.

Plain functions without gradients of their own: `native.py` makes operators of
them. The library is built from `native/source/cuda.cu`; a C++ compiler makes
one of it that computes on the CPU, which is how it is tested without a GPU.

Quantities are tuples of one tensor (real) or two (complex), which may all have
further axes in front: systems of their own.
"""

import ctypes
import math
from contextlib import nullcontext

import torch

from keras_linrec.kernels.native.flags import COMPLEX
from keras_linrec.kernels.native.flags import FLOAT64
from keras_linrec.kernels.native.flags import PER_STEP
from keras_linrec.kernels.native.flags import REVERSE

# As many as a large GPU holds at a time, within a factor of two.
_THREADS = 2**17


def nvcc_flags():
    """What to compile `cuda.cu` with.

    Machine code for the oldest GPU that nvcc 13 knows, and for the common ones
    of data centers; for those of the same generation it runs as well. A newer
    GPU's driver compiles the PTX of 9.0, which PTX of the newest would keep
    the others from.
    """
    return (
        *("-O3", "-std=c++17", "--shared", "-Xcompiler", "-fPIC"),
        *("-gencode", "arch=compute_75,code=sm_75"),
        *("-gencode", "arch=compute_80,code=sm_80"),
        *("-gencode", "arch=compute_90,code=[sm_90,compute_90]"),
    )


class Library:
    """A library compiled from `cuda.cu`."""

    def __init__(self, path):
        library = ctypes.CDLL(str(path))
        arrays = ctypes.POINTER(ctypes.c_void_p)
        sizes = ctypes.POINTER(ctypes.c_int64)
        self.scan = library.keras_linrec_cuda_scan
        self.scan_backward = library.keras_linrec_cuda_scan_backward
        for function in (self.scan, self.scan_backward):
            function.argtypes = (
                *(ctypes.c_int, sizes, arrays, arrays),
                ctypes.c_void_p,
            )
        self._error = library.keras_linrec_cuda_error
        self._error.restype = ctypes.c_char_p

    def call(self, function, flags, sizes, arguments, results):
        """Queue a call of one of the functions on the current stream.

        `arguments` and `results` are quantities in the order of the C
        function's. Nothing waits for the result.
        """
        arguments = [part.contiguous() for parts in arguments for part in parts]
        results = [part for parts in results for part in parts]
        device = results[0].device
        gpu = device.type == "cuda"
        with torch.cuda.device(device) if gpu else nullcontext():
            stream = torch.cuda.current_stream().cuda_stream if gpu else None
            error = function(
                flags,
                (ctypes.c_int64 * len(sizes))(*sizes),
                _pointers(arguments),
                _pointers(results),
                stream,
            )
        if error:
            raise RuntimeError(
                f"the CUDA kernel of the scan did not start: "
                f"{self._error(error).decode()} (error {error})"
            )


def scan(library, decay, inputs, initial_state, reverse=False):
    """`(outputs, final_state)` of h_t = decay_t * h_{t-1} + inputs_t."""
    sizes = _sizes(inputs)
    outputs, final_state = _empty_like(inputs), _empty_like(initial_state)
    library.call(
        library.scan,
        _flags(decay, inputs, reverse),
        sizes,
        (decay, inputs, initial_state),
        (outputs, final_state, *_scratch(inputs, sizes)),
    )
    return outputs, final_state


def scan_backward(
    library,
    decay,
    outputs,
    initial_state,
    d_outputs,
    d_final_state,
    reverse=False,
):
    """Cotangents of `(decay, inputs, initial_state)`, each a tuple."""
    sizes = _sizes(outputs)
    per_step = decay[0].ndim == outputs[0].ndim
    d_decay = _empty_like(decay) if per_step else _of_chunks(outputs, sizes)
    d_inputs, d_initial_state = _empty_like(outputs), _empty_like(initial_state)
    library.call(
        library.scan_backward,
        _flags(decay, outputs, reverse),
        sizes,
        (decay, outputs, initial_state, d_outputs, d_final_state),
        (d_decay, d_inputs, d_initial_state, *_scratch(outputs, sizes)),
    )
    if not per_step:
        # Each thread has left its own sum, and these are added in a fixed
        # order: the same numbers every time.
        d_decay = tuple(
            part.sum((1, 2)).reshape(decay[0].shape) for part in d_decay
        )
    return d_decay, d_inputs, d_initial_state


def _chunks(states, time):
    """Parts to cut time into: about as many threads as the GPU holds.

    Two passes take time / chunks steps, the pass between them takes chunks:
    beyond sqrt(2 * time) of them more parts make it slower.
    """
    wanted = min(_THREADS // max(states, 1), math.isqrt(2 * time))
    steps = -(-time // max(wanted, 1))
    return -(-time // steps)


def _sizes(sequences):
    """Groups, batch, time, channels, chunks."""
    *leading, batch, time, channels = sequences[0].shape
    groups = math.prod(leading)
    chunks = _chunks(groups * batch * channels, time)
    return groups, batch, time, channels, chunks


def _flags(decay, sequences, reverse):
    return (
        COMPLEX * (len(decay) == 2)
        + PER_STEP * (decay[0].ndim == sequences[0].ndim)
        + REVERSE * bool(reverse)
        + FLOAT64 * (decay[0].dtype == torch.float64)
    )


def _empty_like(parts):
    # Not `empty_like`, which would keep a transposed order.
    return tuple(part.new_empty(part.shape) for part in parts)


def _of_chunks(sequences, sizes):
    """A quantity of one number for each row, chunk and channel."""
    groups, batch, _, channels, chunks = sizes
    shape = (groups, batch, chunks, channels)
    return tuple(part.new_empty(shape) for part in sequences)


def _scratch(sequences, sizes):
    """What the passes hand to each other, if there is more than one."""
    if sizes[-1] == 1:
        return ()
    return _of_chunks(sequences, sizes), _of_chunks(sequences, sizes)


def _pointers(tensors):
    return (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
