"""The shapes of the tensors in a call of the core.

The core takes addresses. With another number of tensors, or with other shapes,
it would read and write beyond their memory, so that whoever calls it checks
them first. A quantity's shapes are a list, with one shape for each part.
"""

from keras_linrec.kernels.native import checkpoint_count
from keras_linrec.kernels.native.call_encoding import COMPLEX
from keras_linrec.kernels.native.call_encoding import GATED
from keras_linrec.kernels.native.call_encoding import LINEAR
from keras_linrec.kernels.native.call_encoding import PER_STEP
from keras_linrec.kernels.native.call_encoding import RESETS
from keras_linrec.kernels.native.call_encoding import is_modrelu


def require_shapes(function, names, quantities, expected, axes=()):
    """Raise unless all quantities consist of tensors of the expected shapes.

    Args:
        function: the name of the function that was called.
        names: the quantities' names.
        quantities: tensors, or sequences of tensors.
        expected: for each quantity, the list of its shapes.
        axes: leading axes that all tensors have before these.
    """
    for name, quantity, shapes in zip(names, quantities, expected):
        parts = quantity if isinstance(quantity, (list, tuple)) else [quantity]
        received = [tuple(part.shape) for part in parts]
        if axes:
            shapes = [(*axes, *shape) for shape in shapes]
        if received != shapes:
            raise ValueError(
                f"`{function}` expects `{name}` to have the shapes {shapes}. "
                f"Received: shapes of {name}={received}"
            )


def parts_of(flags):
    """The number of parts of a number: two if it is complex."""
    return 2 if flags & COMPLEX else 1


def resets_shape(flags, batch, time):
    """The resets of a scan, or none."""
    return (batch, time) if flags & RESETS else (0, 0)


def scan_shapes(flags, batch, time, channels):
    """Decay, inputs, resets, initial state; cotangents of the results."""
    parts = parts_of(flags)
    sequence = parts * [(batch, time, channels)]
    state = parts * [(batch, channels)]
    decay = sequence if flags & PER_STEP else parts * [(channels,)]
    resets = [resets_shape(flags, batch, time)]
    return decay, sequence, resets, state, sequence, state


def projected_shapes(flags, batch, time, features, channels, units):
    """Decay, inputs, kernels, resets, initial state of a projected scan."""
    decay, _, resets, state, *_ = scan_shapes(flags, batch, time, channels)
    parts = parts_of(flags)
    inputs = [(batch, time, features)]
    into, out = parts * [(features, channels)], parts * [(channels, units)]
    return decay, inputs, into, out, resets, state


def checkpoint_shape(flags, batch, time, channels, block):
    """The states that enter the blocks of a projected scan."""
    return batch, checkpoint_count(time, block), parts_of(flags), channels


def response_shapes(features, channels, state):
    """p, d, q, t, b, timescale, output matrix of an impulse response."""
    vector, bands = (state,), (3, state)
    output_matrix = features, channels, state
    return [vector, vector, vector, bands, vector, (features,), output_matrix]


def varying_shapes(batch, time, features, channels, state):
    """The arguments of a response whose steps differ in length."""
    steps, inputs = (batch, time), (batch, time, features)
    states = batch, features, state
    system = response_shapes(features, channels, state)
    return [*system, steps, steps, inputs, states]


def varying_checkpoint_shape(batch, time, features, state, block):
    """The states that enter the blocks of such a response."""
    return batch, checkpoint_count(time, block), features, state


def carried_shapes(batch, time, features, channels, state):
    """The arguments of a response with states before and after it."""
    system = response_shapes(features, channels, state)
    inputs, states = (batch, time, features), (batch, features, state)
    return [*system, (batch,), (batch, time), inputs, states]


def convolution_shapes(batch, time, features, channels, taps):
    """Inputs, response; cotangents of the outputs."""
    inputs = batch, time, features
    return [inputs], [(features, channels, taps)], [(*inputs, channels)]


def move_shapes(batch, time, features):
    """Sequences and mask of a move of steps."""
    return [(batch, time, features)], [(batch, time)]


def operand_shapes(flags, batch, time, features, units, rank):
    """The `Operands` of a nonlinear scan."""
    driven = 2 * units if flags & GATED else units
    recurrent = 2 * units if flags & LINEAR else units
    return [
        (batch, time, features),
        (features, driven),
        (driven,),
        (units, rank or recurrent),
        (rank, units),
        (batch, time) if flags & PER_STEP else (1, 1),
        (units // 2 if is_modrelu(flags) else 0,),
        resets_shape(flags, batch, time),
        (batch, units),
    ]
