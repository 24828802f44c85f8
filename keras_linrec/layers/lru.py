"""LRU: a linear recurrence with free complex eigenvalues in the unit circle."""

import math

import keras
from keras import ops

from keras_linrec import types
from keras_linrec.double_precision import cos
from keras_linrec.double_precision import sin
from keras_linrec.layers.base.diagonal_layer import DiagonalLayer
from keras_linrec.layers.base.diagonal_layer import DiagonalSystem
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.layers.for_signals import DecaysForSignals
from keras_linrec.layers.rotation_conversion import FromRotRNN
from keras_linrec.validation import require_between
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_count
from keras_linrec.validation import require_ordered


@keras.saving.register_keras_serializable("keras_linrec")
class LRU(FromRotRNN, DecaysForSignals, DiagonalLayer):
    """Linear recurrent unit - Orvieto et al. 2023.

    The layer is linear in its inputs and states, unless `activation` applies a
    nonlinearity to its outputs: put one between stacked layers. Its states are
    complex numbers, which do not mix:

        x_t = lambda * x_{t-1} + gamma * (B u_t)
        y_t = activation(Re(C x_t) + D u_t)

    with the eigenvalues lambda = exp(-exp(nu_log) + i exp(theta_log)), whose
    moduli stay below 1, and the scale gamma = exp(gamma_log). It starts at
    sqrt(1 - |lambda|^2), with which white noise gives no state a larger
    variance than B u_t has, however slowly the state decays; training changes
    it freely. All steps are computed in parallel where the kernel is parallel.

    | weight | shape | meaning |
    |---|---|---|
    | `nu_log`, `theta_log` | (state_size,) | lambda |
    | `gamma_log` | (state_size,) | gamma |
    | `input_real`, `input_imag` | (features, state_size) | B^T |
    | `output_real`, `output_imag` | (state_size, units) | C^T |
    | `feedthrough` | (features,), or (features, units) if `units` is another \
number | D |

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        state_size: integer, the number of complex states. Defaults to 64.
        r_min, r_max: floats, 0 < r_min < r_max < 1, the range of the initial
            moduli of lambda, whose squares are uniform. Default to 0.9 and
            0.999.
        theta_max: float, the largest initial angle of lambda; they are uniform
            from 0. Defaults to 2 pi. Choose less for slow signals, as the
            paper does for its longest task.
        activation: name or function, applied to the outputs. Defaults to
            `None`, no activation.
        kernel_initializer: for the real and the imaginary parts of B and C.
            Defaults to `None`, normal numbers of variance 1 / (2 fan_in).
        feedthrough_initializer: for D. Defaults to `None`, normal numbers that
            keep the variance.
        kernel_regularizer, kernel_constraint: for the real and the imaginary
            parts of B and C. Default to `None`.
        even_memories: whether the memories 1 / (1 - |lambda|) of the states
            start evenly spread over their decades, see
            `keras_linrec.initializers.DecayLog`. Defaults to `False`: the
            squares of |lambda| are uniform, as in the paper.
        dropout: float in [0, 1), the share of input features to drop during
            training, the same ones at every time step. Defaults to 0.
        seed: integer, the seed of the dropout. Defaults to `None`.
        return_sequences: whether to return the outputs of all time steps or
            only the last, for which a sequence without a mask takes less
            memory. Defaults to `True`.
        return_state: whether to return the final states too. Defaults to
            `False`.
        go_backwards: whether to read the sequence from its end; the outputs
            come in the order of reading. Defaults to `False`.
        stateful: whether each batch starts from the final states of the last
            one. Needs a fixed batch size. Defaults to `False`.
        zero_output_for_mask: whether masked steps give zeros instead of
            repeating the previous output. Defaults to `False`.
        **kwargs: `name`, `dtype`, `trainable`, `activity_regularizer`.

    Call arguments:
        initial_state: list of two tensors (batch, state_size): the real and
            the imaginary part of x before the first step. Defaults to `None`:
            zeros, or the state of the previous batch if `stateful`.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the two parts of the final
        state, float32 whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction.

    Reference:
        [Resurrecting Recurrent Neural Networks for Long Sequences](
        https://arxiv.org/abs/2303.06349), section 3.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.LRU(4, state_size=16)
    >>> sequences = np.random.rand(2, 1000, 3).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 1000, 4)

    The same, one step at a time:

    >>> states = layer.get_initial_state(batch_size=2)
    >>> output, states = layer.step(sequences[:, 0], states)
    >>> tuple(output.shape)
    (2, 4)
    """

    _DECAYS = ("r_min", "r_max")

    def __init__(
        self,
        units: int | None = None,
        state_size: int = 64,
        r_min: float = 0.9,
        r_max: float = 0.999,
        theta_max: float = 2 * math.pi,
        activation: types.Identifier = None,
        kernel_initializer: types.Identifier = None,
        feedthrough_initializer: types.Identifier = None,
        kernel_regularizer: types.Identifier = None,
        kernel_constraint: types.Identifier = None,
        even_memories: bool = False,
        dropout: float = 0.0,
        seed: types.Seed = None,
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        kernel_initializer = (
            kernel_initializer
            or keras.initializers.VarianceScaling(
                0.5, "fan_in", "untruncated_normal"
            )
        )
        super().__init__(**for_bases(LRU, locals()))
        require_count("state_size", state_size)
        require_bool("even_memories", even_memories)
        require_between("r_min", r_min, 0, 1, "()")
        require_between("r_max", r_max, 0, 1, "()")
        require_ordered("r_min", r_min, "r_max", r_max)
        require_between("theta_max", theta_max, 0, math.inf, "()")
        self.state_size = state_size
        self.r_min = r_min
        self.r_max = r_max
        self.theta_max = theta_max
        self.even_memories = even_memories

    def state_shapes_of(self, features):
        return [(self.state_size,)] * 2

    def build_unit(self, features):
        size, units = self.state_size, self.output_units
        self.nu_log = self.add_parameter(
            "nu_log", (size,), self._initial_decays()
        )
        self.theta_log = self.add_parameter(
            "theta_log", (size,), self._initial_theta_log
        )
        self.gamma_log = self.add_parameter(
            "gamma_log", (size,), self._initial_gamma_log
        )
        self.input_real = self.add_kernel("input_real", (features, size))
        self.input_imag = self.add_kernel("input_imag", (features, size))
        self.output_real = self.add_kernel("output_real", (size, units))
        self.output_imag = self.add_kernel("output_imag", (size, units))
        self.feedthrough = self._add_feedthrough(features)

    def _initial_theta_log(self, shape, dtype=None):
        uniform = keras.initializers.RandomUniform(0.0, 1.0)(shape, dtype)
        # Of numbers in [0, 1): an angle of zero has no logarithm.
        return ops.log(self.theta_max * (1.0 - uniform))

    def _initial_gamma_log(self, shape, dtype=None):
        """log sqrt(1 - |lambda|^2), of the moduli that have been drawn."""
        return 0.5 * ops.log(-ops.expm1(-2.0 * ops.exp(self.nu_log)))

    def diagonal_system(self):
        modulus = ops.exp(-ops.exp(self.nu_log))
        angle = ops.exp(self.theta_log)
        gamma = ops.exp(self.gamma_log)
        return DiagonalSystem(
            decay=(modulus * cos(angle), modulus * sin(angle)),
            input_kernel=(gamma * self.input_real, gamma * self.input_imag),
            output_kernel=(
                ops.convert_to_tensor(self.output_real),
                ops.convert_to_tensor(self.output_imag),
            ),
            feedthrough=ops.convert_to_tensor(self.feedthrough),
        )

    def get_config(self):
        return {
            **super().get_config(),
            "state_size": self.state_size,
            "r_min": self.r_min,
            "r_max": self.r_max,
            "theta_max": self.theta_max,
            "even_memories": self.even_memories,
        }
