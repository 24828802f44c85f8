"""AntisymmetricRNN: a differential equation with a skew-symmetric matrix."""

import math

import keras

from keras_linrec import types
from keras_linrec.layers.base.nonlinear_layer import NonlinearCell
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.layers.lipschitz_rnn.layer import LipschitzLayer
from keras_linrec.layers.lipschitz_rnn.layer import LipschitzUnit
from keras_linrec.validation import require_between

# The arguments of `LipschitzRNN` that are fixed here.
_FIXED = {"alpha", "beta", "linear_initializer", "stable_transition"}


class AntisymmetricUnit(LipschitzUnit):
    """`LipschitzUnit` without its linear part and its symmetric part."""

    def __init__(
        self,
        units: int,
        gamma: float = 0.001,
        step_size: float = 0.03,
        solver: types.Solver = "euler",
        activation: types.Identifier = "tanh",
        gated: bool = False,
        trainable_step_size: bool = False,
        use_bias: bool = True,
        kernel_initializer: types.Identifier = None,
        recurrent_initializer: types.Identifier = None,
        bias_initializer: types.Identifier = "zeros",
        kernel_regularizer: types.Identifier = None,
        recurrent_regularizer: types.Identifier = None,
        bias_regularizer: types.Identifier = None,
        kernel_constraint: types.Identifier = None,
        bias_constraint: types.Identifier = None,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        for name in _FIXED & set(kwargs):
            raise ValueError(
                f"An antisymmetric unit has no `{name}`: `LipschitzRNN` has. "
                f"Received: {name}={kwargs[name]}"
            )
        require_between("gamma", gamma, 0, math.inf, "[)")
        super().__init__(
            beta=1.0, alpha=0.0, **for_bases(AntisymmetricUnit, locals())
        )

    def get_config(self):
        config = super().get_config()
        kept = {k: v for k, v in config.items() if k not in _FIXED}
        return {**kept, "gamma": self.gamma[1]}


@keras.saving.register_keras_serializable("keras_linrec")
class AntisymmetricRNN(AntisymmetricUnit, LipschitzLayer):
    """Recurrent layer with a skew-symmetric transition - Chang et al. 2019.

        h' = activation((M - M^T - gamma I) h + U x + b)

    as Erichson et al. 2021 define it (section 7): `LipschitzRNN` with alpha=0
    and beta=1. With `gated=True` h' is multiplied by
    sigmoid((M - M^T - gamma I) h + U' x + b'), as in Chang et al.

    There is no `stable_transition`: without A, no state is forgotten where the
    activation saturates, and theorem 1 does not apply; and Euler's method moves
    the states of a skew-symmetric matrix outwards at every step. With tanh, a
    step changes a state by at most dt all the same.

    | weight | shape | meaning |
    |---|---|---|
    | `kernel`, `bias` | (features, units), (units,) | U^T, b |
    | `recurrent_kernel` | (units, units) | M |
    | `gate_kernel`, `gate_bias` | (features, units), (units,) | U'^T, b', \
if `gated` |
    | `log_step_size` | () | log dt, if `trainable_step_size` |

    Args:
        units: integer, the number of output features.
        gamma: non-negative float, the diffusion. Defaults to 0.001.
        step_size: positive float, dt. Defaults to 0.03.
        solver: `"euler"` (the default), `"rk2"` or `"rk4"`, as in
            `LipschitzRNN`.
        activation: Defaults to `"tanh"`.
        gated: whether h' is multiplied by a gate. Defaults to `False`.
        trainable_step_size: whether dt is trained, as its logarithm. Defaults
            to `False`.
        use_bias: whether there are b and b'. Defaults to `True`.
        kernel_initializer: for U and U'. Defaults to `None`, uniform in
            +-1 / sqrt(features).
        recurrent_initializer: for M. Defaults to `None`, normal numbers of
            standard deviation 1 / units.
        bias_initializer: for b and b'. Defaults to `"zeros"`.
        kernel_regularizer, recurrent_regularizer, bias_regularizer,
            kernel_constraint, bias_constraint: Default to `None`.
        dropout: float in [0, 1), the share of input features to drop during
            training, the same ones at every time step. Defaults to 0.
        seed: integer, the seed of the dropout. Defaults to `None`.
        return_sequences: whether to return the outputs of all time steps or
            only the last. Defaults to `False`.
        return_state: whether to return the final states too. Defaults to
            `False`.
        go_backwards: whether to read the sequence from its end; the outputs
            come in the order of reading. Defaults to `False`.
        stateful: whether each batch starts from the final states of the last
            one. Needs a fixed batch size. Defaults to `False`.
        zero_output_for_mask: whether masked steps give zeros instead of
            repeating the previous output. Defaults to `False`.
        **kwargs: `name`, `dtype`, `trainable`, `activity_regularizer`.

    Call arguments, output shape and errors are those of `LipschitzRNN`.

    Reference:
        [AntisymmetricRNN: A Dynamical System View on Recurrent Neural
        Networks](https://arxiv.org/abs/1902.09689), and [Lipschitz Recurrent
        Neural Networks](https://arxiv.org/abs/2006.12070), section 7.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.AntisymmetricRNN(8)
    >>> tuple(layer(np.random.rand(2, 100, 3)).shape)
    (2, 8)
    """

    def __init__(
        self,
        units: int,
        gamma: float = 0.001,
        step_size: float = 0.03,
        solver: types.Solver = "euler",
        activation: types.Identifier = "tanh",
        gated: bool = False,
        trainable_step_size: bool = False,
        use_bias: bool = True,
        kernel_initializer: types.Identifier = None,
        recurrent_initializer: types.Identifier = None,
        bias_initializer: types.Identifier = "zeros",
        kernel_regularizer: types.Identifier = None,
        recurrent_regularizer: types.Identifier = None,
        bias_regularizer: types.Identifier = None,
        kernel_constraint: types.Identifier = None,
        bias_constraint: types.Identifier = None,
        dropout: float = 0.0,
        seed: types.Seed = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        super().__init__(**for_bases(AntisymmetricRNN, locals()))


@keras.saving.register_keras_serializable("keras_linrec")
class AntisymmetricRNNCell(AntisymmetricUnit, NonlinearCell):
    """One step of `AntisymmetricRNN`, for `layers.RNN`.

    Args:
        units, gamma, step_size, solver, activation, gated,
            trainable_step_size, use_bias and the initializers, regularizers
            and constraints: as in `AntisymmetricRNN`.
        **kwargs: `name`, `dtype`, `trainable`.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> cell = keras_linrec.layers.AntisymmetricRNNCell(8)
    >>> tuple(keras_linrec.layers.RNN(cell)(np.random.rand(2, 5, 3)).shape)
    (2, 8)
    """
