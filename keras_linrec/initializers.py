"""Starting values that Keras does not have."""

import math
import numbers
from typing import Any
from typing import Literal

import keras
import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.ops.structured.hippo import hippo
from keras_linrec.ops.structured.hippo import hippo_matrices
from keras_linrec.ops.structured.hippo_measures import require_measure
from keras_linrec.validation import checked_seed
from keras_linrec.validation import require_between
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count
from keras_linrec.validation import require_ordered

__all__ = [
    "DecayLog",
    "FanInNormal",
    "HiPPO",
    "ReflectorPairs",
]


def _checked_seed(seed):
    """As in Keras, a `SeedGenerator` or its configuration is a seed too."""
    if isinstance(seed, (keras.random.SeedGenerator, dict)):
        return seed
    return checked_seed(seed)


@keras.saving.register_keras_serializable("keras_linrec")
class FanInNormal(keras.initializers.Initializer):
    """Normal numbers of variance 1 / n, where n inputs meet in a sum.

    A product with such a weight keeps the variance of its inputs.

    Args:
        axis: integer, negative, the axis that is summed over. A shape that
            has no such axis is that of an elementwise weight: n is 1.
            Defaults to -2, as in a Keras kernel (inputs, outputs).
        seed: integer or `None`, the default.

    Example:

    >>> import keras
    >>> from keras_linrec.initializers import FanInNormal
    >>> weights = FanInNormal(seed=1)((10_000, 3))
    >>> 0.0098 < float(keras.ops.std(weights)) < 0.0102
    True
    """

    def __init__(self, axis: int = -2, seed: types.Seed = None):
        if not isinstance(axis, numbers.Integral) or axis >= 0:
            raise ValueError(
                "`axis` should be a negative integer, counted from the last. "
                f"Received: axis={axis}"
            )
        self.axis = axis
        self.seed = _checked_seed(seed)

    def __call__(self, shape, dtype=None):
        fan_in = shape[self.axis] if len(shape) >= -self.axis else 1
        normal = keras.initializers.RandomNormal(
            stddev=fan_in**-0.5, seed=self.seed
        )
        return normal(shape, dtype)

    def get_config(self):
        return {"axis": self.axis, "seed": self.seed}


@keras.saving.register_keras_serializable("keras_linrec")
class DecayLog(keras.initializers.Initializer):
    """log(-log(gamma)) for decays gamma whose squares are uniform.

    The decay is read back as gamma = exp(-exp(value)), between 0 and 1
    whatever the value (RotRNN, appendices B.3 and C).

    Args:
        gamma_min: float, the smallest decay. Defaults to 0.5.
        gamma_max: float, the largest decay. Defaults to 0.999.
        seed: integer or `None`, the default.
        even_memories: whether the logarithms of the memories 1 / (1 - gamma)
            are uniform instead, so that each decade has as many. Defaults to
            `False`.

    Example:

    >>> from keras import ops
    >>> from keras_linrec.initializers import DecayLog
    >>> gamma = ops.exp(-ops.exp(DecayLog(0.9, 0.99)((100,))))
    >>> 0.8999 < float(ops.min(gamma)) < float(ops.max(gamma)) < 0.9901
    True
    """

    def __init__(
        self,
        gamma_min: float = 0.5,
        gamma_max: float = 0.999,
        seed: types.Seed = None,
        even_memories: bool = False,
    ):
        require_bool("even_memories", even_memories)
        require_between("gamma_min", gamma_min, 0, 1, "()")
        require_between("gamma_max", gamma_max, 0, 1, "()")
        require_ordered("gamma_min", gamma_min, "gamma_max", gamma_max)
        self.gamma_min = gamma_min
        self.gamma_max = gamma_max
        self.seed = _checked_seed(seed)
        self.even_memories = even_memories

    def __call__(self, shape, dtype=None):
        if self.even_memories:
            return self._of_even_memories(shape, dtype)
        uniform = keras.initializers.RandomUniform(0.0, 1.0, seed=self.seed)
        # Of 1 - gamma^2, which keeps its digits where gamma is close to 1.
        least, most = (
            (1.0 - gamma) * (1.0 + gamma)
            for gamma in (self.gamma_max, self.gamma_min)
        )
        lost = least + (1.0 - uniform(shape, dtype)) * (most - least)
        return ops.log(-0.5 * ops.log1p(-lost))

    def _of_even_memories(self, shape, dtype):
        ends = (1.0 - self.gamma_max, 1.0 - self.gamma_min)
        log_rate = keras.initializers.RandomUniform(
            *map(math.log, ends), seed=self.seed
        )
        return ops.log(-ops.log1p(-ops.exp(log_rate(shape, dtype))))

    def get_config(self):
        return {
            "gamma_min": self.gamma_min,
            "gamma_max": self.gamma_max,
            "seed": self.seed,
            "even_memories": self.even_memories,
        }


@keras.saving.register_keras_serializable("keras_linrec")
class ReflectorPairs(keras.initializers.Initializer):
    """Reflectors in nearly equal pairs, whose product is near the identity.

    Two reflections at nearly the same vector nearly undo each other, so that
    `OrthogonalRNN` begins with a transition close to I (for an odd number of
    reflectors, to one reflection) and keeps what it has seen. With reflectors
    drawn one by one the addition task stays at its baseline.

    Args:
        deviation: float, the standard deviation of the difference within a
            pair, whose vectors' entries have deviation 1. Defaults to 0.3:
            on the addition task of 400 steps three seeds of three went below
            half the baseline, of 0.6 and 1 none.
        matrices: integer, how many matrices of reflectors are stacked in the
            weight: 2 for the real and imaginary parts of complex ones.
            Defaults to 1.
        seed: integer or `None`, the default.

    Call arguments:
        shape: (rows, reflectors). Entries of column j above row j are zero.
        dtype: defaults to `keras.config.floatx()`.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> from keras_linrec.initializers import ReflectorPairs
    >>> w = ops.reflection_product(ReflectorPairs(0.01)((64, 8)))
    >>> bool(np.allclose(w, np.eye(64), atol=0.05))
    True
    """

    def __init__(
        self, deviation: float = 0.3, matrices: int = 1, seed: types.Seed = None
    ):
        require_between("deviation", deviation, 0, math.inf, "[)")
        require_count("matrices", matrices)
        self.deviation = deviation
        self.matrices = matrices
        self.seed = _checked_seed(seed)

    def __call__(self, shape, dtype=None):
        if len(shape) != 2:
            raise ValueError(
                "`shape` should be (rows, columns). "
                f"Received: shape={tuple(shape)}"
            )
        rows, columns = shape
        dtype = keras.backend.standardize_dtype(dtype)
        normal = keras.initializers.RandomNormal(stddev=1.0, seed=self.seed)
        pairs = -(-columns // 2)
        values = normal((rows, pairs + columns), "float32")
        vectors = ops.repeat(values[:, :pairs], 2, axis=1)[:, :columns]
        # The second of a pair has a zero more; so has the first, nearly.
        lower = np.tril(np.ones((rows // self.matrices, columns), "float32"))
        shared = np.repeat(lower[:, 1::2], 2, axis=1)[:, :columns]
        if columns % 2:
            shared = np.concatenate([shared, lower[:, -1:]], axis=1)
        shared, lower = (
            ops.convert_to_tensor(np.tile(kept, (self.matrices, 1)))
            for kept in (shared, lower)
        )
        noise = self.deviation * values[:, pairs:]
        return ops.cast(shared * vectors + lower * noise, dtype)

    def get_config(self):
        return {
            "deviation": self.deviation,
            "matrices": self.matrices,
            "seed": self.seed,
        }


@keras.saving.register_keras_serializable("keras_linrec")
class HiPPO(keras.initializers.Initializer):
    """A or B of a system x' = A x + B u that remembers u - Gu et al. 2021.

    For a weight of a state-space layer: A fills the last two axes, B the
    last, alike for all indices of the axes before.

    Args:
        measure: `"legs"` (the default), `"legt"`, `"lagt"`,
            `"generalized_laguerre"`, `"chebyshev"`, `"gegenbauer"` or
            `"jacobi"`; see `keras_linrec.ops.structured.hippo.hippo_matrices`.
        part: `"transition"` for A, the default, or `"input"` for B.
        **parameters: those of the measure, by name.

    Call arguments:
        shape: (..., N, N) for A, (..., N) for B.
        dtype: defaults to `keras.config.floatx()`.

    Raises:
        ValueError: at construction for an unknown measure, part or parameter,
            or a parameter out of its range; at the call for a shape that the
            part does not fit.

    Reference:
        [Combining Recurrent, Convolutional, and Continuous-time Models with
        Linear State-Space Layers](https://arxiv.org/abs/2110.13985),
        appendix D.

    Example:

    >>> from keras_linrec.initializers import HiPPO
    >>> transition = HiPPO("gegenbauer", order=1.5)((3, 8, 8))
    >>> tuple(transition.shape)
    (3, 8, 8)
    >>> HiPPO("generalized_laguerre", order=0.5).structured(8).q.shape
    (8,)
    """

    def __init__(
        self,
        measure: types.Measure = "legs",
        part: Literal["transition", "input"] = "transition",
        **parameters: Any,
    ):
        require_choice("part", part, ("transition", "input"))
        self.measure = measure
        self.part = part
        self.parameters = require_measure(measure, parameters)

    def structured(self, state_size: int) -> Any:
        """A as P (D + T^-1) Q, and B.

        Args:
            state_size: integer, N.

        Returns:
            A `StructuredTransition` of float64 NumPy arrays.

        Raises:
            ValueError: if the measure's A has no such form.
        """
        return hippo(self.measure, state_size, **self.parameters)

    def __call__(self, shape, dtype=None):
        shape = tuple(shape)
        axes = 2 if self.part == "transition" else 1
        if len(shape) < axes or len(set(shape[-axes:])) > 1:
            expected = "(..., N, N)" if axes == 2 else "(..., N)"
            raise ValueError(
                f"`shape` should be {expected} for part='{self.part}'. "
                f"Received: shape={shape}"
            )
        matrix, vector = hippo_matrices(
            self.measure, shape[-1], **self.parameters
        )
        values = matrix if axes == 2 else vector
        dtype = keras.backend.standardize_dtype(dtype)
        return ops.convert_to_tensor(
            # A copy, for PyTorch takes no array that it may not write to.
            np.array(np.broadcast_to(values, shape), "float64"),
            dtype=dtype,
        )

    def get_config(self):
        return {
            "measure": self.measure,
            "part": self.part,
            **self.parameters,
        }
