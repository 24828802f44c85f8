"""Mamba2: matrices of states with one decay a head that the inputs set."""

import keras
from keras import ops

from keras_linrec import types
from keras_linrec.double_precision import activate
from keras_linrec.double_precision import product
from keras_linrec.layers.base.matrix_state_layer import MatrixStateLayer
from keras_linrec.layers.base.matrix_state_layer import MatrixSteps
from keras_linrec.layers.base.matrix_state_layer import in_heads
from keras_linrec.layers.base.matrix_state_layer import joined
from keras_linrec.layers.base.matrix_state_layer import normalised
from keras_linrec.layers.base.matrix_state_layer import split_last
from keras_linrec.layers.base.precise_layer import uniform_over_fan_in
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.ops.short_convolution import require_taps
from keras_linrec.validation import require_count

# Of a head, as in the authors' code.
_CHANNELS = 64


@keras.saving.register_keras_serializable("keras_linrec")
class Mamba2(MatrixStateLayer):
    """State-space duality, the layer of Mamba-2 - Dao and Gu 2024.

    The layer is nonlinear in its inputs, by its gates, and linear in its
    states. `inner` = expand * features channels are divided among the heads;
    each head keeps a matrix S, `state_size` numbers for each of its channels:

        S_t = exp(-A dt_t) S_{t-1} + dt_t B_t x_t^T
        y_t = S_t^T C_t + D x_t
        outputs_t = W_o norm(y_t * silu(z_t))

    with x, B and C from a causal convolution of `kernel_size` taps,

        (v_t, z_t, d_t) = W u_t
        (x_t, B_t, C_t) = silu(convolution(v)_t + b)
        dt_t = softplus(d_t + b_dt)

    A, D and dt are a number a head; B and C are shared by the heads of a
    group. norm divides the channels of a group by the root of their mean
    square, and multiplies each by its scale.

    All steps are computed in one native call on a CPU, and in chunks by matrix
    products elsewhere.

    | weight | shape | meaning |
    |---|---|---|
    | `input_kernel` | (features, 2 inner + 2 groups state_size + num_heads) \
| W^T: the columns of x, B, C, z, d |
    | `convolution_kernel`, `convolution_bias` | (kernel_size, channels), \
(channels,) | the taps for x, B and C, in this order, and b |
    | `log_transition`, `timescale_bias`, `feedthrough` | (num_heads,) | log \
A, b_dt, D |
    | `norm_scale` | (inner,) | the scales |
    | `output_kernel` | (inner, units) | W_o^T |

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        state_size: integer, N, the size of B and of C. Defaults to 64.
        num_heads: integer, a divisor of `inner`. Defaults to `None`: each head
            has 64 channels, as in the authors' code, or the smallest larger
            number that divides `inner`.
        expand: integer, the channels for each input feature. Defaults to 2.
        num_groups: integer, a divisor of `num_heads`: so many B and C there
            are. Defaults to 1.
        kernel_size: integer, 2 or more, the taps of the convolution. Defaults
            to 4.
        dt_min, dt_max: floats, the range of the initial softplus(b_dt), which
            is log-uniform. Default to 0.001 and 0.1.
        use_bias: whether the convolution has a bias. Defaults to `True`.
        kernel_initializer: for the kernels and the taps. Defaults to `None`,
            uniform numbers between -+1/sqrt(inputs), as those of PyTorch's
            layers in the authors' code.
        bias_initializer: for the bias. Defaults to `None`, uniform numbers
            between -+1/sqrt(kernel_size), as there.
        kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: for the kernels and taps, and for the bias.
            Default to `None`.
        dropout: float in [0, 1), the share of input features to drop during
            training, the same ones at every time step. Defaults to 0.
        seed: integer, the seed of the dropout. Defaults to `None`.
        return_sequences: whether to return the outputs of all time steps or
            only the last. Defaults to `True`.
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
        initial_state: list of two tensors: what the convolution has read
            last, (batch, kernel_size - 1, channels), and the matrices S,
            (batch, num_heads, state_size, inner / num_heads). Defaults to
            `None`: zeros, or the states of the previous batch if `stateful`.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final states, float32
        whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction, and
            when built, for heads that do not divide the channels.

    Reference:
        [Transformers are SSMs](https://arxiv.org/abs/2405.21060), sections 6
        and 7; [the authors' code](https://github.com/state-spaces/mamba).

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.Mamba2(state_size=16, num_heads=2)
    >>> sequences = np.random.rand(2, 100, 8).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 100, 8)

    The same, one step at a time:

    >>> states = layer.get_initial_state(batch_size=2)
    >>> output, states = layer.step(sequences[:, 0], states)
    >>> tuple(output.shape), tuple(states[1].shape)
    ((2, 8), (2, 2, 16, 8))
    """

    def __init__(
        self,
        units: int | None = None,
        state_size: int = 64,
        num_heads: int | None = None,
        expand: int = 2,
        num_groups: int = 1,
        kernel_size: int = 4,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        use_bias: bool = True,
        kernel_initializer: types.Identifier = None,
        bias_initializer: types.Identifier = None,
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
        require_taps(kernel_size)
        kernel_initializer = kernel_initializer or uniform_over_fan_in()
        largest = kernel_size**-0.5
        bias_initializer = bias_initializer or keras.initializers.RandomUniform(
            -largest, largest
        )
        super().__init__(**for_bases(Mamba2, locals()))
        require_count("state_size", state_size)
        require_count("expand", expand)
        require_count("num_groups", num_groups)
        if num_heads is not None:
            _require_groups(num_groups, num_heads)
        self.state_size = state_size
        self.expand = expand
        self.num_groups = num_groups

    def _convolved_features(self, features):
        self._require_known_features(features)
        return self.expand * features + 2 * self.num_groups * self.state_size

    def _matrix_shape(self, features):
        self._require_known_features(features)
        inner = self.expand * features
        heads = self.num_heads or inner // _channels_of_a_head(inner)
        if inner % heads:
            raise ValueError(
                "`num_heads` should divide `expand` times the number of "
                f"features. Received: num_heads={heads}, "
                f"expand={self.expand}, {features} features"
            )
        _require_groups(self.num_groups, heads)
        return heads, self.state_size, inner // heads

    def build_unit(self, features):
        heads, _, channels = self._matrix_shape(features)
        inner = heads * channels
        convolved = self._convolved_features(features)
        self.input_kernel = self.add_kernel(
            "input_kernel", (features, inner + convolved + heads)
        )
        self._add_convolution(features)
        self._add_timescale(heads, smallest_rate=1.0)
        self.feedthrough = self.add_parameter("feedthrough", (heads,), "ones")
        self.norm_scale = self.add_parameter("norm_scale", (inner,), "ones")
        self.output_kernel = self.add_kernel(
            "output_kernel", (inner, self.output_units)
        )

    def _input_kernels(self):
        return ops.convert_to_tensor(self.input_kernel)

    def _widths(self):
        inner = self.norm_scale.shape[0]
        heads = self.log_transition.shape[0]
        return self.convolution_kernel.shape[-1], inner, heads

    def _entering(self, mixed, beside, decay_rate):
        inner, size = self.norm_scale.shape[0], self.state_size
        shared = self.num_groups * size
        values, keys, queries = split_last(mixed, inner, shared, shared)
        heads = self.log_transition.shape[0]
        timescale = self._timescale(beside[1])
        return MatrixSteps(
            queries=in_heads(queries, self.num_groups, size),
            keys=in_heads(keys, self.num_groups, size),
            values=in_heads(values, heads, inner // heads),
            log_decay=decay_rate * timescale,
            write=timescale,
        )

    def _read_out(self, outputs, values, beside):
        outputs = outputs + values * self.feedthrough[:, None]
        gate = activate(keras.activations.silu, beside[0])
        inner, groups = self.norm_scale.shape[0], self.num_groups
        shape = groups, inner // groups
        outputs = normalised(
            in_heads(joined(outputs) * gate, *shape),
            ops.reshape(self.norm_scale, shape),
        )
        return product(joined(outputs), self.output_kernel)

    def get_config(self):
        return {
            **super().get_config(),
            "state_size": self.state_size,
            "expand": self.expand,
            "num_groups": self.num_groups,
        }


def _require_groups(num_groups, heads):
    if heads % num_groups:
        raise ValueError(
            "`num_groups` should divide the number of heads. "
            f"Received: num_groups={num_groups}, num_heads={heads}"
        )


def _channels_of_a_head(inner):
    """64, or the smallest larger divisor of the channels; or all."""
    sizes = range(min(_CHANNELS, inner), inner + 1)
    return next(size for size in sizes if inner % size == 0)
