"""Variables for what stays the same of an LSSL's impulse response."""

import math

import keras
from keras import ops

from keras_linrec.ops import krylov_cache
from keras_linrec.ops.discretization import discretise


def build_cache(layer, time, features):
    """The `CachedResponse` of an `LSSL`, or `None` if it would be too large.

    Args:
        layer: the layer, of which A and dt are not trained.
        time: integer, the steps of its sequences, or `None` if unknown.
        features: integer.
    """
    state_size = layer.state_size
    size = krylov_cache.cache_size(state_size, time)
    if not krylov_cache.fits_memory(size, features, state_size):
        return None
    return CachedResponse(layer, size, features)


class CachedResponse:
    """What follows from A and dt alone, kept in variables with these.

    They are compared, and all is computed anew where one is different, so that
    it does not matter who changed a weight, and when.

    Args:
        layer: the `LSSL` that the variables belong to.
        size: `krylov_cache.CacheSize`.
        features: integer.

    Attributes:
        variables: the variable that holds what the rest was computed from, and
            those that hold the rest.
    """

    def __init__(self, layer, size, features):
        self._size = size
        self._alpha = layer.alpha
        known = (features + 7 * layer.state_size,)
        columns, powers = krylov_cache.cached_shapes(
            size, features, layer.state_size
        )
        # No weight equals NaN: nothing is known yet.
        nothing = keras.initializers.Constant(math.nan)
        self.variables = [
            layer.add_parameter(
                f"cached_{name}", shape, nothing, trainable=False
            )
            for name, shape in (
                ("known", known),
                ("columns", columns),
                ("powers", powers),
            )
        ]

    def reaches(self, time):
        """Whether it is ready for sequences of so many steps."""
        return isinstance(time, int) and time <= self._size.longest

    def response(self, transition, timescale, output_matrix, time):
        """`ops.impulse_response.impulse_response`, without gradients to A."""
        known = ops.concatenate(
            [timescale, *(ops.reshape(part, (-1,)) for part in transition)]
        )

        def compute():
            delta, input_vector = discretise(transition, timescale, self._alpha)
            return krylov_cache.cached_parts(self._size, delta, input_vector)

        parts = self._kept(ops.stop_gradient(known), compute)
        columns, powers = (ops.stop_gradient(part) for part in parts)
        return krylov_cache.cached_response(
            columns, powers, output_matrix, time
        )

    def _kept(self, known, compute):
        """What `compute` gives, computed anew where `known` is."""
        if not krylov_cache.can_choose():
            return compute()
        before, *parts = (ops.convert_to_tensor(v) for v in self.variables)
        was_concrete = _is_concrete(before)
        same = ops.all(ops.equal(known, before))
        if was_concrete and _is_concrete(known):
            # No variable is written to unless it has to be: PyTorch may still
            # need what it holds for a gradient.
            if bool(same):
                return parts
            parts = compute()
        else:
            parts = ops.cond(same, lambda: tuple(parts), compute)
            if was_concrete:
                # A function that the user compiles with JAX, outside of Keras'
                # trainers: what it traces must not stay in a variable.
                return parts
        for variable, value in zip(self.variables, (known, *parts)):
            variable.assign(value)
        return parts


def _is_concrete(tensor):
    """Whether the values are there, and not those of a traced function."""
    try:
        ops.convert_to_numpy(tensor)
    except Exception:  # Every backend has an error of its own.
        return False
    return True
