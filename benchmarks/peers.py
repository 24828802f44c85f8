"""Linear scans of other libraries.

They take a flat list of the decay's parts and the inputs' parts and return a
list of the outputs' parts: one real part, or a real and an imaginary one.
"""

import keras
from keras import ops

# A loop in Python over more steps would take minutes.
LONGEST_LOOP = 20_000


def require_short(inputs):
    """Raise `NotImplementedError` for Python loops over too many steps."""
    compiled_loop = keras.backend.backend() == "jax"
    if inputs[0].shape[1] > LONGEST_LOOP and not compiled_loop:
        raise NotImplementedError


def keras_associative_scan(arguments):
    def along_time(combine, elements):
        return ops.associative_scan(combine, elements, axis=1)

    return _by_combining(along_time, arguments)


def lax_associative_scan(arguments):
    from jax import lax

    def along_time(combine, elements):
        return lax.associative_scan(combine, elements, axis=1)

    return _by_combining(along_time, arguments)


def lax_scan(arguments):
    from jax import lax

    decay, inputs = _halves(arguments)

    def step(state, now):
        state = tuple(m + x for m, x in zip(_multiply(decay, state), now))
        return state, state

    start = tuple(0.0 * part[:, 0] for part in inputs)
    _, outputs = lax.scan(
        step, start, tuple(part.swapaxes(0, 1) for part in inputs)
    )
    return [part.swapaxes(0, 1) for part in outputs]


def python_loop(arguments):
    import torch

    decay, inputs = _halves(arguments)
    require_short(inputs)
    state, outputs = tuple(0.0 * part[:, 0] for part in inputs), []
    for now in zip(*(part.unbind(1) for part in inputs)):
        state = tuple(m + x for m, x in zip(_multiply(decay, state), now))
        outputs.append(state)
    return [torch.stack(part, dim=1) for part in zip(*outputs)]


def _by_combining(associative_scan, arguments):
    """A linear scan by a framework's associative scan."""

    def combine(earlier, later):
        first_decay, first = _halves(earlier)
        decay, second = _halves(later)
        moved = _multiply(decay, first)
        return (
            *_multiply(decay, first_decay),
            *(m + x for m, x in zip(moved, second)),
        )

    decay, inputs = _halves(arguments)
    decay = [ops.broadcast_to(d, ops.shape(x)) for d, x in zip(decay, inputs)]
    return list(associative_scan(combine, (*decay, *inputs))[len(inputs) :])


def _halves(parts):
    middle = len(parts) // 2
    return parts[:middle], parts[middle:]


def _multiply(a, b):
    if len(a) == 1:
        return (a[0] * b[0],)
    return (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0])
