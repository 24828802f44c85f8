"""Variables for the part of an LSSL's impulse response that stays the same."""

import math

import keras
from keras import ops

from keras_linrec.ops import krylov_cache
from keras_linrec.ops.discretization import discretise


def build_cache(layer, time, features):
    """The `CachedResponse` of an `LSSL`, or `None` if it would be too large.

    Args:
        layer: the layer, whose A and dt are not trained.
        time: integer, the steps of its sequences, or `None` if unknown.
        features: integer.
    """
    state_size = layer.state_size
    size = krylov_cache.cache_size(state_size, time)
    if not krylov_cache.fits_memory(size, features, state_size):
        return None
    return CachedResponse(layer, size, features)


class CachedResponse:
    """What depends on A and dt alone, kept in variables together with these.

    A and dt are compared at each call, and everything is recomputed if they
    have changed. It does not matter who changed a weight, and when.

    Args:
        layer: the `LSSL` to which the variables belong.
        size: `krylov_cache.CacheSize`.
        features: integer.

    Attributes:
        variables: the variable with A and dt, and those with what was computed
            from them.
    """

    def __init__(self, layer, size, features):
        self._size = size
        self._alpha = layer.alpha
        known = (features + 7 * layer.state_size,)
        columns, powers = krylov_cache.cached_shapes(
            size, features, layer.state_size
        )
        # No weight equals NaN, so that the first call computes.
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
        """Whether the cache is large enough for so many steps."""
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
        """The result of `compute`, recomputed if `known` has changed."""
        if not krylov_cache.can_choose():
            return compute()
        # Another thread may be assigning. `known` is read first and assigned
        # last, so that the rest is complete where `known` is the same.
        before, *parts = (ops.convert_to_tensor(v) for v in self.variables)
        was_concrete = _is_concrete(before)
        same = ops.all(ops.equal(known, before))
        if was_concrete and _is_concrete(known):
            # Variables are written only if they have to be: PyTorch may still
            # need their values for a gradient.
            if bool(same):
                return parts
            parts = compute()
        else:
            # A compiled program reads and assigns in an order of its own. What
            # was never computed is NaN.
            for part in parts:
                first = part[..., :1, :1]
                same = ops.logical_and(same, ops.all(ops.equal(first, first)))
            parts = ops.cond(same, lambda: tuple(parts), compute)
            if was_concrete:
                # In a function that the user compiles with JAX, outside of
                # Keras' trainers, traced values must not stay in a variable.
                return parts
        variable_of_known, *variables = self.variables
        for variable, value in zip(variables, parts):
            variable.assign(value)
        variable_of_known.assign(known)
        return parts


def _is_concrete(tensor):
    """Whether a tensor has values, and is not traced."""
    try:
        ops.convert_to_numpy(tensor)
    except Exception:  # Every backend has an error of its own.
        return False
    return True
