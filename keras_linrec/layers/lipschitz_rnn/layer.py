"""LipschitzRNN: a stable differential equation, driven by the inputs."""

import math
from collections.abc import Sequence

import keras
from keras import ops

from keras_linrec import activations
from keras_linrec import types
from keras_linrec.layers.base.nonlinear_layer import NonlinearCell
from keras_linrec.layers.base.nonlinear_layer import NonlinearLayer
from keras_linrec.layers.base.nonlinear_layer import NonlinearUnit
from keras_linrec.layers.base.precise_layer import drawn_apart
from keras_linrec.layers.base.precise_layer import given_values
from keras_linrec.layers.base.precise_layer import serialized
from keras_linrec.layers.base.precise_layer import uniform_over_fan_in
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.layers.lipschitz_rnn.stability import require_slopes
from keras_linrec.layers.lipschitz_rnn.stability import require_stable
from keras_linrec.layers.lipschitz_rnn.stability import warn_if_diverging
from keras_linrec.ops.algebra.contractive_pair import contractive_pair
from keras_linrec.ops.check_bounded import require_bounded_rows
from keras_linrec.ops.scan_checks import SOLVERS
from keras_linrec.ops.symmetric_skew import symmetric_skew
from keras_linrec.validation import pair_of_numbers
from keras_linrec.validation import require_between
from keras_linrec.validation import require_bools
from keras_linrec.validation import require_choice


class LipschitzUnit(NonlinearUnit):
    """`LipschitzRNN`, `AntisymmetricRNN` and their cells."""

    def __init__(
        self,
        units: int,
        beta: float | Sequence[float] = 0.75,
        gamma: float | Sequence[float] = 0.001,
        step_size: float = 0.03,
        solver: types.Solver = "euler",
        alpha: float = 1.0,
        activation: types.Identifier = "tanh",
        gated: bool = False,
        trainable_step_size: bool = False,
        stable_transition: bool = False,
        use_bias: bool = True,
        kernel_initializer: types.Identifier = None,
        linear_initializer: types.Identifier = None,
        recurrent_initializer: types.Identifier = None,
        bias_initializer: types.Identifier = "zeros",
        kernel_regularizer: types.Identifier = None,
        recurrent_regularizer: types.Identifier = None,
        bias_regularizer: types.Identifier = None,
        kernel_constraint: types.Identifier = None,
        bias_constraint: types.Identifier = None,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        kernel_initializer = kernel_initializer or _torch_linear()
        super().__init__(**for_bases(LipschitzUnit, locals()))
        self.beta = pair_of_numbers("beta", beta, 0, 1)
        self.gamma = pair_of_numbers("gamma", gamma, 0, math.inf, "[)")
        require_between("step_size", step_size, 0, math.inf, "()")
        require_between("alpha", alpha, -math.inf, math.inf, "()")
        require_choice("solver", solver, SOLVERS)
        require_bools(
            gated=gated,
            trainable_step_size=trainable_step_size,
            stable_transition=stable_transition,
        )
        self.step_size = float(step_size)
        self.solver = solver
        self.alpha = float(alpha)
        self.gated = gated
        self.trainable_step_size = trainable_step_size
        self.stable_transition = stable_transition
        if stable_transition:
            require_stable(self)
        # The paper draws M from a narrow normal distribution; the authors'
        # code divides the deviation by the number of units.
        self.linear_initializer, self.recurrent_initializer = (
            keras.initializers.get(
                initializer or keras.initializers.RandomNormal(stddev=1 / units)
            )
            for initializer in (linear_initializer, recurrent_initializer)
        )
        self.recurrent_regularizer = keras.regularizers.get(
            recurrent_regularizer
        )

    def _accept_activation(self, name, value):
        activation = activations.get_unary(
            super()._accept_activation(name, value)
        )
        if getattr(self, "stable_transition", False):
            require_slopes(activation)
        return activation

    def build_recurrence(self, features):
        def add_square(name, initializer):
            return self.add_parameter(
                name,
                (self.units, self.units),
                drawn_apart(initializer, name),
                regularizer=self.recurrent_regularizer,
            )

        self.linear_kernel = self.log_step_size = None
        self.gate_kernel = self.gate_bias = None
        if self.alpha:
            self.linear_kernel = add_square(
                "linear_kernel", self.linear_initializer
            )
        self.recurrent_kernel = add_square(
            "recurrent_kernel", self.recurrent_initializer
        )
        if self.gated:
            self.gate_kernel, self.gate_bias = self._add_input_weights(
                (features, self.units), "gate_"
            )
        if self.trainable_step_size:
            self.log_step_size = self.add_parameter(
                "log_step_size", (), given_values(math.log(self.step_size))
            )

    def linear_matrix(self) -> types.Tensor:
        """A, a tensor (units, units), or `None` where alpha is 0."""
        linear, _ = self._matrices()
        return None if linear is None else linear / self.alpha

    def recurrent_matrix(self) -> types.Tensor:
        """W, a tensor (units, units)."""
        return self._matrices()[1]

    def _matrices(self):
        """alpha A, or `None` where alpha is 0, and W."""
        if self.stable_transition:
            return contractive_pair(
                self.linear_kernel,
                self.recurrent_kernel,
                self.beta,
                self.gamma,
                self._step_size(),
                self.solver,
                self.alpha,
            )
        recurrent = symmetric_skew(
            self.recurrent_kernel, self.beta[1], self.gamma[1]
        )
        if self.linear_kernel is None:
            return None, recurrent
        linear = symmetric_skew(self.linear_kernel, self.beta[0], self.gamma[0])
        return self.alpha * linear, recurrent

    def _step_size(self):
        if self.log_step_size is None:
            return self.step_size
        return ops.exp(self.log_step_size)

    def recurrence(self):
        linear, recurrent = self._matrices()
        arguments = {
            "recurrent_kernel": ops.transpose(recurrent),
            "solver": self.solver,
            "step_size": self._step_size(),
            "gated": self.gated,
        }
        if linear is not None:
            arguments["linear_kernel"] = ops.transpose(linear)
        if self.gated:
            arguments["input_kernel"] = ops.concatenate(
                [self.kernel, self.gate_kernel], axis=1
            )
            if self.use_bias:
                arguments["bias"] = ops.concatenate([self.bias, self.gate_bias])
        return arguments

    def get_config(self):
        return {
            **super().get_config(),
            "beta": self.beta,
            "gamma": self.gamma,
            "step_size": self.step_size,
            "solver": self.solver,
            "alpha": self.alpha,
            "gated": self.gated,
            "trainable_step_size": self.trainable_step_size,
            "stable_transition": self.stable_transition,
            **serialized(
                self,
                "linear_initializer",
                "recurrent_initializer",
                "recurrent_regularizer",
            ),
        }


class LipschitzLayer(LipschitzUnit, NonlinearLayer):
    call_arguments = ("time_deltas",)

    def build(self, sequences_shape, initial_state_shape=None):
        super().build(sequences_shape, initial_state_shape)
        has_linear_part = self.linear_kernel is not None
        if has_linear_part and not (self.stable_transition or self.gated):
            warn_if_diverging(self, self._matrices()[0], sequences_shape[1])

    def _checked_state(self, final_state, steps, states):
        """The final state; complain where it overflowed by itself.

        Where neither it nor the last output is wanted, JAX drops the check.
        """
        if self.stable_transition or not self.alpha:
            return final_state
        return require_bounded_rows(
            final_state,
            f"Layer '{self.name}' has states beyond 1e30 or NaN, though its "
            "inputs are finite: its A is unstable, or a weight is NaN. "
            "`stable_transition=True` keeps A stable; "
            "`keras_linrec.analysis.stability_certificate` measures it.",
            [steps.inputs, *(states or ())],
        )

    def _scan_arguments_for(self, steps, constants=None):
        arguments = super()._scan_arguments_for(steps, constants)
        if steps.time_deltas is not None:
            arguments["step_size"] = self._step_size() * steps.time_deltas
        return arguments


@keras.saving.register_keras_serializable("keras_linrec")
class LipschitzRNN(LipschitzLayer):
    """Recurrent layer that is a stable ODE - Erichson et al. 2021.

        h' = f(h) = alpha A h + activation(W h + U x + b)

    with A = S(M_A) and W = S(M_W) for trained M_A and M_W,

        S(M) = (1 - beta) (M + M^T) + beta (M - M^T) - gamma I.

    One time step of the input is one step of an explicit solver, during which
    x is constant:

    - `"euler"`: h_t = h + dt f(h);
    - `"rk2"`, the midpoint method: h_t = h + dt f(h + dt/2 f(h));
    - `"rk4"`: the classical method of four stages.

    `beta` sets how far the eigenvalues of A and W reach to either side of
    -gamma, and thereby whether the unit is stable (theorem 1, proposition 1);
    see `keras_linrec.analysis`. With the defaults, A is not stable even at the
    start: states overflow after 30,000 to 100,000 steps of a layer of 16 units,
    and after 110,000 to 125,000 steps of one of 128 (three seeds each).

    With `stable_transition=True`, every step contracts, whatever M_A, M_W, dt,
    the biases and the inputs are. A and W are then computed as

        X = alpha (beta (M_A - M_A^T) - (1 - beta) (M_A + M_A^T)^2)
            - 1/4 S(M_W)^T (N^-1 + dt/2 I) S(M_W)
        Z = s dt X,  K = I + Z/2 + Z^2/6,  rho = 1 / (1 + alpha gamma dt)
        W = rho sqrt(s) S(M_W) K
        alpha A = (rho (I + dt/2 N)^-1/2 (I + Z K) - I) / dt - W/2

    where N is diagonal, of the norms of S(M_W)'s rows, and s is a number near 1
    that keeps |Z| below 1 (`"rk2"` needs three times the room for W). As dt
    approaches 0, alpha A approaches X - gamma alpha I - N/4 - W/2.

    Why that is stable: let d be the difference of two states under the same
    inputs, B = I + dt (alpha A + W/2) and H = dt/2 W. The activation's slopes
    lie in [0, 1], so that an Euler step turns d into (B + E H) d with a
    diagonal E of entries in [-1, 1]. In each coordinate, (B d + E H d)_i^2 is
    at most (B d)_i^2 / (1 - c_i) + (H d)_i^2 / c_i for 0 < c_i < 1. X has been
    chosen so that with c_i = dt N_i / (2 + dt N_i) these numbers sum up to at
    most rho^2 |d|^2: since Z's symmetric part is negative semidefinite and |Z|
    < 1, |d + Z K d|^2 <= |d|^2 + 2 <K d, Z K d>, and the last term of Z takes
    away what H adds. Each step hence multiplies the distance of two states by
    at most rho ((1 + rho) / 2 with `"rk2"`), states stay bounded, gradients do
    not explode, and h' = f(h) contracts too, at the rate (1 - rho) / dt.
    Theorem 1 of the paper gives this for the differential equation only, and
    needs sigma_min(A_sym) > sigma_max(W) (a); its case (b) fails as printed,
    see `keras_linrec.analysis.stability_certificate`, whose case (c) is the
    condition used here. The proof is in
    `keras_linrec.ops.algebra.contractive_pair`.

    The guarantee is for time_deltas up to 1. It needs the solver `"euler"` or
    `"rk2"`, positive `alpha` and `gamma` of A, no gate, and an activation with
    slopes between 0 and 1. `step_size` has no upper limit. A unit that cannot
    amplify learns less, and more slowly; see the guide on stability.

    | weight | shape | meaning |
    |---|---|---|
    | `kernel`, `bias` | (features, units), (units,) | U^T, b |
    | `linear_kernel` | (units, units) | M_A, unless alpha is 0 |
    | `recurrent_kernel` | (units, units) | M_W |
    | `gate_kernel`, `gate_bias` | (features, units), (units,) | U'^T, b', \
if `gated` |
    | `log_step_size` | () | log dt, if `trainable_step_size` |

    Args:
        units: integer, the number of output features.
        beta: float in [0, 1], or a pair of them, for A and for W. Defaults to
            0.75.
        gamma: non-negative float, or a pair. Defaults to 0.001.
        step_size: positive float, dt. Defaults to 0.03.
        solver: `"euler"` (the default), `"rk2"` or `"rk4"`.
        alpha: float, the weight of the linear part. 0 leaves it out, and with
            beta=0.5 and gamma=0, where W = M_W, gives the neural-ODE RNN
            (equation 11). Defaults to 1.
        activation: Defaults to `"tanh"`. The guarantees hold for Lipschitz
            functions.
        gated: whether f is multiplied by sigmoid(W h + U' x + b'), as in the
            authors' code. Defaults to `False`.
        trainable_step_size: whether dt is trained, as its logarithm. Defaults
            to `False`.
        stable_transition: whether A and W are computed so that every step
            contracts, for any weights. Defaults to `False`: training may make
            the unit unstable, which `stability_certificate` shows.
        use_bias: whether there are b and b'. Defaults to `True`.
        kernel_initializer: for U and U'. Defaults to `None`: uniform in
            +-1 / sqrt(features), as in the authors' code.
        linear_initializer, recurrent_initializer: for M_A and M_W. Default to
            normal numbers of standard deviation 1 / units.
        bias_initializer: for b and b'. Defaults to `"zeros"`. The authors'
            code draws b as it draws U. Over hundreds of steps, such a constant
            input drives the states so far that training may diverge.
        kernel_regularizer, recurrent_regularizer (M_A and M_W),
            bias_regularizer, kernel_constraint, bias_constraint: Default to
            `None`.
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

    Call arguments:
        initial_state: list of one tensor (batch, units), h before the first
            step. Defaults to `None`: zeros, or the state of the previous batch
            if `stateful`.
        time_deltas: float tensor, (batch, time), the length of each step in
            multiples of dt, for irregular sampling. Zero leaves the state as
            it is. Numbers that are negative or not finite are refused in an
            eager call on a CPU, unless the step is masked; a compiled program
            does not check them. Defaults to `None`, all 1.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, units), or (batch, time, units) with `return_sequences=True`;
        with `return_state`, a tuple of that and the final state, float32
        whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction, and for
            wrong tensors in a call; for `stable_transition` with
            arguments for which there is no guarantee.
        If states exceed 1e30 or are NaN after a sequence of finite inputs, a
        call raises TensorFlow's or PyTorch's error, and under JAX it warns;
        see `LSSL`. A unit with `stable_transition` or without A, and single
        steps, are not checked. When it is built, the layer warns if its
        starting weights multiply states by more than 1,000 over a sequence.

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), sections 3 to 5 and 7.1.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.LipschitzRNN(8, solver="rk2")
    >>> sequences = np.random.rand(2, 1000, 3).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 8)

    Samples at irregular times:

    >>> gaps = np.random.rand(2, 1000).astype("float32")
    >>> tuple(layer(sequences, time_deltas=gaps).shape)
    (2, 8)
    """

    def __init__(
        self,
        units: int,
        beta: float | Sequence[float] = 0.75,
        gamma: float | Sequence[float] = 0.001,
        step_size: float = 0.03,
        solver: types.Solver = "euler",
        alpha: float = 1.0,
        activation: types.Identifier = "tanh",
        gated: bool = False,
        trainable_step_size: bool = False,
        stable_transition: bool = False,
        use_bias: bool = True,
        kernel_initializer: types.Identifier = None,
        linear_initializer: types.Identifier = None,
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
        super().__init__(**for_bases(LipschitzRNN, locals()))


@keras.saving.register_keras_serializable("keras_linrec")
class LipschitzRNNCell(LipschitzUnit, NonlinearCell):
    """One step of `LipschitzRNN`, for `layers.RNN`.

    The layer computes A and W once for a sequence and has a native kernel;
    the cell computes them at every step. Under a 16-bit policy Keras' loop
    carries the state in 16 bits, in which small steps are lost, while the
    layer keeps it in float32.

    Args:
        units, beta, gamma, step_size, solver, alpha, activation, gated,
            trainable_step_size, stable_transition, use_bias and the
            initializers, regularizers and constraints: as in `LipschitzRNN`.
        **kwargs: `name`, `dtype`, `trainable`.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> cell = keras_linrec.layers.LipschitzRNNCell(8)
    >>> layer = keras_linrec.layers.RNN(cell)
    >>> tuple(layer(np.random.rand(2, 5, 3)).shape)
    (2, 8)
    """


def _torch_linear():
    """The initializer of U: uniform in +-1 / sqrt(features).

    The authors' code takes PyTorch's linear layer for U x + b. With one
    feature and 128 units U then has deviation 0.58, where Glorot's has 0.12.
    Test accuracies of `examples/stable_digits.py`, with seeds 0, 1 and 2 where
    there are three:

    | | Glorot's U, b = 0 | this U, b = 0 | this U, b alike |
    |---|---|---|---|
    | 8x8 digits, 64 steps, 30 epochs | 84.2, 86.0, 85.6% \
| 87.6, 88.9, 87.8% | 87.8, 89.3, 90.0% |
    | MNIST, 98 steps of 8 pixels, 2 epochs | 92.3% | 93.7% | 93.5% |
    | MNIST, 784 steps, 2 epochs | 85.1% | 87.4, 86.8, 88.1% | 9.8%, diverged |
    """
    return uniform_over_fan_in()
