"""The plain form of a projected scan: a product, a scan, a product.

It computes the same as the fused kernels, in `keras.ops`: for second
derivatives, and where no fused kernel runs.
"""

from functools import partial

import numpy as np
from keras import ops

from keras_linrec.double_precision import product
from keras_linrec.kernels import backends
from keras_linrec.kernels.native import block_length
from keras_linrec.kernels.native.call_encoding import REVERSE
from keras_linrec.kernels.native.call_encoding import flags_of
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations.final_state import final_state
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import is_short
from keras_linrec.kernels.operations.record import is_symbol
from keras_linrec.kernels.operations.tiny_cases import complex_of
from keras_linrec.kernels.operations.tiny_cases import numbers
from keras_linrec.kernels.operations.tiny_cases import parts_of
from keras_linrec.kernels.operations.tiny_cases import recurrence
from keras_linrec.kernels.resets import or_none


def projected_scan(
    scan,
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state,
    reverse=False,
    resets=None,
):
    """`(outputs, final_state)` of scan(inputs @ input_kernel) @ output_kernel.

    Args:
        scan: `scan(decay, inputs, initial_state, reverse, resets)` on tuples
            of tensors, which returns `(outputs, final_state)`.
        decay, input_kernel, output_kernel, initial_state: tuples of one
            tensor (real) or two (complex, of which the outputs keep the real
            part).
        inputs: tensor, (batch, time, features).
        reverse: the direction of the scan.
        resets: see `resets.py`. Defaults to `None`.
    """
    if len(decay) == 1:
        states, final_state = scan(
            decay,
            (product(inputs, input_kernel[0]),),
            initial_state,
            reverse,
            resets,
        )
        return product(states[0], output_kernel[0]), final_state
    # One product for both parts reads the inputs once instead of twice.
    projected = product(inputs, ops.concatenate(input_kernel, axis=1))
    states, final_state = scan(
        decay,
        tuple(ops.split(projected, 2, axis=-1)),
        initial_state,
        reverse,
        resets,
    )
    real, imag = output_kernel
    outputs = product(
        ops.concatenate(states, axis=-1),
        ops.concatenate([real, -imag], axis=0),
    )
    return outputs, final_state


# How it runs.


def _form_of(case, kernel):
    if not (case.keep_all or case.per_step or is_symbol(case.time)):
        return "blocks", "only the final state is needed"
    if is_short(case):
        return "products", "a few steps"
    if case.platform == "cuda" and _has_sections(case):
        return "sections", "states of a section of time stay in the cache"
    if case.platform != "cpu":
        return "products", "no fused kernel for this device yet"
    return "fused", ""


def _has_sections(case):
    """Whether a projected scan can keep the states of some steps only."""
    symbols = is_symbol(case.time) or is_symbol(case.batch)
    return case.operators and not symbols


def _products(kernel):
    return partial(projected_scan, kernel.scan)


def _blocks(kernel):
    """A projected scan that returns the final state alone."""

    def run(decay, inputs, input_kernel, _, *rest):
        return None, final_state(kernel, decay, inputs, input_kernel, *rest)

    return run


def _projected_scan_case(kernel):
    """Complex, a fixed decay, forward in time."""
    parts = [(3,), (4, 3), (3, 2), (2, 3)]
    shapes = [shape for shape in parts for _ in range(2)]
    shapes.insert(2, (2, 5, 4))
    arrays = numbers(*shapes)
    cotangents = numbers((2, 5, 2), (2, 3), (2, 3))

    def function(tensors):
        outputs, final_state = kernel.projected_scan(
            tuple(tensors[:2]),
            tensors[2],
            tuple(tensors[3:5]),
            tuple(tensors[5:7]),
            tuple(tensors[7:]),
            False,
        )
        return [outputs, *final_state]

    decay, inputs = complex_of(*arrays[:2]), arrays[2].astype("float64")
    into, out, state = (complex_of(*arrays[i : i + 2]) for i in range(3, 9, 2))
    decays = np.broadcast_to(decay, (2, 5, 3))
    states, before = recurrence(decays, inputs @ into, state, range(5))
    d_outputs, carry = cotangents[0], complex_of(*cotangents[1:])
    d_projected = np.empty_like(states)
    d_states = d_outputs @ out.conj().T
    for step in range(4, -1, -1):
        d_projected[:, step] = carry = carry + d_states[:, step]
        carry = decay.conj() * carry
    expected = [
        (states @ out).real,
        *parts_of(states[:, -1]),
        *parts_of((before.conj() * d_projected).sum((0, 1))),
        (d_projected @ into.conj().T).real,
        *parts_of(np.einsum("btf,btc->fc", inputs, d_projected)),
        *parts_of(np.einsum("btc,btu->cu", states.conj(), d_outputs)),
        *parts_of(carry),
    ]
    return function, arrays, cotangents, expected


def _call_native(
    run,
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state,
    reverse=False,
    resets=None,
):
    block = block_length(len(decay) * decay[0].shape[-1])
    call = Call("projected_scan", flags_of(decay, reverse, resets), (block,))
    kernels = input_kernel, output_kernel
    return run(call, decay, inputs, *kernels, resets, initial_state)


def _call_plain(
    kernel,
    call,
    decay,
    inputs,
    input_kernel,
    output_kernel,
    resets,
    initial_state,
):
    return projected_scan(
        kernel.scan,
        decay,
        inputs,
        input_kernel,
        output_kernel,
        initial_state,
        bool(call.flags & REVERSE),
        or_none(resets),
    )


OPERATION = Operation(
    function="projected_scan",
    choose=_form_of,
    forms={
        "fused": lambda kernel: kernel.projected_scan,
        "products": _products,
        "sections": lambda kernel: backends.current().by_sections(kernel.scan),
        "blocks": _blocks,
    },
    plain=_products,
    call_native=_call_native,
    call_plain=_call_plain,
    self_tests=(_projected_scan_case,),
)
