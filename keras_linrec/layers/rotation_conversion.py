"""A RotRNN as an LRU, and back (Biegun et al. 2024, section 4.1)."""

from typing import Any

import numpy as np
from keras import ops

from keras_linrec import types

# The arguments that both layers have.
_SHARED = ("dropout", "seed", "return_sequences", "return_state")
_SHARED += ("go_backwards", "stateful", "zero_output_for_mask", "trainable")


class FromRotRNN:
    """A mixin of `LRU`."""

    @classmethod
    def from_rotrnn(cls, layer: Any, **kwargs: Any) -> types.Self:
        """A layer that computes what a `RotRNN` does.

        In the coordinates P^T x, two states of a head are one complex number,
        whose eigenvalue is gamma exp(i theta). A state without a partner, in
        a head of an odd size, is a number whose imaginary part is not read.
        States differ: those of an LRU are these complex numbers.

        Args:
            layer: a built `RotRNN` of one direction. Its weights, activation,
                dtype policy, dropout, seed, `trainable` and return arguments
                are copied, its name, initializers, regularizers and
                constraints are not.
            **kwargs: arguments of the class, which override those of `layer`.

        Returns:
            An `LRU` of ceil(K / 2) states for each head of K.

        Raises:
            ValueError: if `layer` is not a `RotRNN`, not built, or reads in
                both directions.

        Example:

        >>> import keras
        >>> import numpy as np
        >>> from keras_linrec.layers import LRU, RotRNN
        >>> rotrnn = RotRNN(4, state_size=16, num_heads=8)
        >>> sequences = np.random.rand(2, 50, 3).astype("float32")
        >>> expected = rotrnn(sequences)
        >>> got = LRU.from_rotrnn(rotrnn)(sequences)
        >>> bool(keras.ops.max(keras.ops.abs(got - expected)) < 1e-4)
        True
        """
        from keras_linrec.layers.rotrnn import RotRNN

        _require_built("layer", layer, RotRNN)
        if layer.bidirectional:
            raise ValueError(
                "`layer` should read in one direction, as an LRU does. "
                f"Received: bidirectional=True in '{layer.name}'"
            )
        system = layer.diagonal_system()
        decay, entering, leaving = map(_as_complex, system[:3])
        new = _copy(cls, layer, len(decay), kwargs)
        new.nu_log.assign(np.log(-np.log(np.abs(decay))))
        # The logarithm of an angle has to be finite: 0 is a whole turn.
        angle = np.mod(np.angle(decay), 2 * np.pi)
        new.theta_log.assign(np.log(np.where(angle > 0, angle, 2 * np.pi)))
        scale = np.sqrt(1 - np.abs(decay) ** 2)
        new.gamma_log.assign(np.log(scale))
        new.input_real.assign((entering / scale).real)
        new.input_imag.assign((entering / scale).imag)
        new.output_real.assign(leaving.real)
        new.output_imag.assign(leaving.imag)
        new.feedthrough.assign(layer.feedthrough)
        return new


class FromLRU:
    """A mixin of `RotRNN`."""

    @classmethod
    def from_lru(cls, layer: Any, **kwargs: Any) -> types.Self:
        """A layer with heads of two states that computes what an `LRU` does.

        A complex state of the LRU becomes a head of two, with P = I. The
        normalisation of RotRNN sets the scale of a head's state: C is scaled
        to make up for it.

        Args:
            layer: a built `LRU`. Its weights, activation, dtype policy,
                dropout, seed, `trainable` and return arguments are copied,
                its name, initializers, regularizers and constraints are not.
            **kwargs: arguments of the class, which override those of `layer`.

        Returns:
            A `RotRNN` of twice as many states.

        Raises:
            ValueError: if `layer` is not an `LRU`, or not built.

        Example:

        >>> import keras
        >>> import numpy as np
        >>> from keras_linrec.layers import LRU, RotRNN
        >>> lru = LRU(4, state_size=8)
        >>> sequences = np.random.rand(2, 50, 3).astype("float32")
        >>> expected = lru(sequences)
        >>> got = RotRNN.from_lru(lru)(sequences)
        >>> bool(keras.ops.max(keras.ops.abs(got - expected)) < 1e-4)
        True
        """
        from keras_linrec.layers.lru import LRU

        _require_built("layer", layer, LRU)
        decay, entering, leaving = map(_as_complex, layer.diagonal_system()[:3])
        heads = len(decay)
        new = _copy(cls, layer, 2 * heads, {"num_heads": heads, **kwargs})
        new.gamma_log.assign(np.log(-np.log(np.abs(decay))))
        new.theta.assign(np.angle(decay)[:, None])
        new.rotation_kernel.assign(np.zeros((heads, 2, 2)))
        # xi B has the norm sqrt(1 - gamma^2) in every head.
        norms = np.linalg.norm(entering, axis=0)
        wanted = np.sqrt(1 - np.abs(decay) ** 2)
        scale = np.where(norms > 0, norms / wanted, 1.0)
        new.input_kernel.assign(
            np.stack([entering.real, entering.imag], axis=-1).swapaxes(0, 1)
        )
        leaving = leaving * scale[:, None]
        new.output_kernel.assign(
            np.stack([leaving.real, -leaving.imag], axis=1).reshape(
                2 * heads, -1
            )
        )
        new.feedthrough.assign(layer.feedthrough)
        return new


def _require_built(name, layer, kind):
    if not isinstance(layer, kind) or not layer.built:
        raise ValueError(
            f"`{name}` should be built, of the class {kind.__name__}. "
            f"Received: {name}={layer}"
        )


def _as_complex(pair):
    real, imag = (ops.convert_to_numpy(part).astype("float64") for part in pair)
    return real + 1j * imag


def _copy(cls, layer, state_size, kwargs):
    """A built layer of the other class, with the arguments of `layer`."""
    shared = {name: getattr(layer, name) for name in _SHARED}
    arguments = {
        "units": layer.units,
        "state_size": state_size,
        "activation": layer.activation,
        "dtype": layer.dtype_policy,
        **shared,
        **kwargs,
    }
    new = cls(**arguments)
    batch_size = layer.states[0].shape[0] if layer.stateful else None
    new.build((batch_size, None, layer.input_spec.axes[-1]))
    return new
