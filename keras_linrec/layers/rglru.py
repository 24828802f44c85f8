"""RGLRU: a linear recurrence whose inputs gate its decay."""

import keras
from keras import ops

from keras_linrec import types
from keras_linrec.double_precision import activate
from keras_linrec.double_precision import product
from keras_linrec.initializers import DecayLog
from keras_linrec.layers.base.gated_layer import GatedLayer
from keras_linrec.layers.base.precise_layer import one_by_one
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.ops.gated_scan import Driven
from keras_linrec.ops.gated_scan import Gates
from keras_linrec.validation import require_between
from keras_linrec.validation import require_count
from keras_linrec.validation import require_ordered

# The paper's c.
_SHARPNESS = 8.0


@keras.saving.register_keras_serializable("keras_linrec")
class RGLRU(GatedLayer):
    """Real-gated linear recurrent unit - De et al. 2024.

    The layer is nonlinear in its inputs, by its two gates, and linear in its
    states, which do not mix:

        r_t = sigmoid(W_a x_t + b_a)
        i_t = sigmoid(W_x x_t + b_x)
        a_t = exp(-c softplus(L) r_t)
        h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t)

    with c = 8. A recurrence gate r near 0 keeps the state and shuts the input
    out; white noise gives no state a larger variance than i_t x_t has. W_a and
    W_x are block-diagonal. x_t is the input u_t, or P u_t if `units` is another
    number than that of the features. All steps are computed in parallel where
    the kernel is parallel.

    L starts so that the decay at an open gate, exp(-c softplus(L)), is between
    `r_min` and `r_max`, as the paper has it. The authors' code takes
    exp(-softplus(L)) from that range, and so starts with decays from 0.43 to
    0.99 at an open gate: `r_min=0.43, r_max=0.992` here.

    The first step of a sequence follows the equation like any other, from h_0 =
    0 or the state that is given. The authors' code replaces the square root by
    1 where a sequence begins. With states in and out, and in a stream, a first
    step cannot be told from one that follows a zero state; here the two, and a
    step after a reset, are the same.

    | weight | shape | meaning |
    |---|---|---|
    | `decay_parameter` | (units,) | L |
    | `decay_kernel` | (num_heads, units / num_heads, units / num_heads) | the \
blocks of W_a^T |
    | `decay_bias` | (units,) | b_a |
    | `gate_kernel` | (num_heads, units / num_heads, units / num_heads) | the \
blocks of W_x^T |
    | `gate_bias` | (units,) | b_x |
    | `projection_kernel` | (features, units) | P^T, if `units` is another \
number than the features' |

    Args:
        units: integer, the number of output features and of states. Defaults
            to `None`, as many as the input has.
        num_heads: integer, a divisor of the number of units, that of the
            blocks of W_a and W_x. Defaults to 1: full matrices.
        r_min, r_max: floats, 0 < r_min < r_max < 1, the range of the initial
            decays at an open gate, whose squares are uniform. Default to 0.9
            and 0.999.
        use_bias: whether the gates have biases. Defaults to `True`.
        kernel_initializer: for the kernels, each block of its own. Defaults
            to `"lecun_normal"`, as in the paper.
        bias_initializer: for the biases. Defaults to `"zeros"`.
        kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: for the kernels and the biases. Default to `None`.
        dropout: float in [0, 1), the share of input features to drop during
            training, the same ones at every time step. Defaults to 0.
        seed: integer, the seed of the dropout. Defaults to `None`.
        return_sequences: whether to return the outputs of all time steps or
            only the last. Defaults to `True`.
        return_state: whether to return the final state too. Defaults to
            `False`.
        go_backwards: whether to read the sequence from its end; the outputs
            come in the order of reading. Defaults to `False`.
        stateful: whether each batch starts from the final state of the last
            one. Needs a fixed batch size. Defaults to `False`.
        zero_output_for_mask: whether masked steps give zeros instead of
            repeating the previous output. Defaults to `False`.
        **kwargs: `name`, `dtype`, `trainable`, `activity_regularizer`.

    Call arguments:
        initial_state: list of one tensor (batch, units), h before the first
            step. Defaults to `None`: zeros, or the state of the previous
            batch if `stateful`.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final state (batch,
        units), float32 whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction.

    Reference:
        [Griffin: Mixing Gated Linear Recurrences with Local Attention for
        Efficient Language Models](https://arxiv.org/abs/2402.19427), section
        2.4 and appendix A; [the authors' code](
        https://github.com/google-deepmind/recurrentgemma).

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.RGLRU(8)
    >>> sequences = np.random.rand(2, 1000, 3).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 1000, 8)

    The same, one step at a time:

    >>> states = layer.get_initial_state(batch_size=2)
    >>> output, states = layer.step(sequences[:, 0], states)
    >>> tuple(output.shape)
    (2, 8)
    """

    def __init__(
        self,
        units: int | None = None,
        num_heads: int = 1,
        r_min: float = 0.9,
        r_max: float = 0.999,
        use_bias: bool = True,
        kernel_initializer: types.Identifier = "lecun_normal",
        bias_initializer: types.Identifier = "zeros",
        kernel_regularizer: types.Identifier = None,
        bias_regularizer: types.Identifier = None,
        kernel_constraint: types.Identifier = None,
        bias_constraint: types.Identifier = None,
        dropout: float = 0.0,
        seed: types.Seed = None,
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        super().__init__(**for_bases(RGLRU, locals()))
        require_count("num_heads", num_heads)
        require_between("r_min", r_min, 0, 1, "()")
        require_between("r_max", r_max, 0, 1, "()")
        require_ordered("r_min", r_min, "r_max", r_max)
        if units is not None:
            _require_blocks(num_heads, units)
        self.num_heads = num_heads
        self.r_min = r_min
        self.r_max = r_max

    def build_unit(self, features):
        heads, units = self.num_heads, self.output_units
        _require_blocks(heads, units)
        size = units // heads
        self.projection_kernel = self._add_projection(features)
        self.decay_parameter = self.add_parameter(
            "decay_parameter", (units,), self._initial_decay_parameter
        )
        for prefix in ("decay_", "gate_"):
            kernel, bias = self._add_input_weights(
                (heads, size, size),
                prefix,
                one_by_one(self.kernel_initializer, f"{prefix}kernel"),
            )
            setattr(self, f"{prefix}kernel", kernel)
            setattr(self, f"{prefix}bias", bias)

    def _initial_decay_parameter(self, shape, dtype=None):
        decay_log = DecayLog(self.r_min, self.r_max)(shape, dtype)
        return ops.log(ops.expm1(ops.exp(decay_log) / _SHARPNESS))

    def step_constants(self):
        softplus = activate(
            keras.activations.softplus,
            ops.convert_to_tensor(self.decay_parameter),
        )
        kernel = ops.concatenate([self.decay_kernel, self.gate_kernel], axis=-1)
        constants = [-_SHARPNESS * softplus, kernel]
        if self.use_bias:
            constants.append(ops.concatenate([self.decay_bias, self.gate_bias]))
        return constants

    def gating(self):
        return Gates(rates=True)

    def driven(self, inputs, constants):
        largest_rate, kernel, *bias = constants
        if self.projection_kernel is not None:
            inputs = product(inputs, self.projection_kernel)
        drive = self._through_blocks(inputs, kernel)
        return Driven(drive, *(bias or [None]), inputs, largest_rate)

    def _through_blocks(self, inputs, kernel):
        """The inputs through the blocks of W_a and W_x, side by side."""
        heads, size, _ = self.decay_kernel.shape
        if heads == 1:
            return product(inputs, kernel[0])
        blocks = ops.reshape(inputs, (-1, heads, size))
        kernels = ops.reshape(kernel, (heads, size, 2, size))
        drive = ops.einsum("nhi,higj->nghj", blocks, kernels)
        shape = *ops.shape(inputs)[:-1], 2 * heads * size
        return ops.reshape(drive, shape)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "r_min": self.r_min,
            "r_max": self.r_max,
        }


def _require_blocks(num_heads, units):
    if units % num_heads:
        raise ValueError(
            "`num_heads` should divide the number of units. "
            f"Received: num_heads={num_heads}, units={units}"
        )
