"""DeltaNet: matrices of states that the inputs write to, and erase from."""

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
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_count

# Beside the square of a key's norm, as in the authors' code.
_EPSILON = 1e-6


@keras.saving.register_keras_serializable("keras_linrec")
class DeltaNet(MatrixStateLayer):
    """Gated delta rule, or product of reflections - Yang et al. 2024, 2025.

    The layer is nonlinear in its inputs and linear in its states. Each head
    keeps a matrix S, an associative memory: a step lets it decay, erases what
    it has stored under the key k, and writes the value v there.

        S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T
        o_t = S_t^T q_t / sqrt(key_dim)
        y_t = W_o (scale * o_t / rms(o_t) * silu(W_g u_t))

    with queries, keys and values from a causal convolution of `kernel_size`
    taps,

        q_t, k_t, v_t = silu(convolution(W u)_t),  q and k of norm 1
        b_t = sigmoid(W_b u_t),  a_t = exp(-A softplus(W_a u_t + b_a))

    rms is the root of the mean square of a head's outputs. It is DeltaNet
    without `gated` (a_t = 1), gated DeltaNet with it. With `reflections` m of
    2 or more it is (gated) DeltaProduct: a step makes m keys, values and
    strengths, and takes the second line m times, with a_t once. With
    `negative_eigenvalues`, b_t is twice as large, between 0 and 2: then a
    factor I - b k k^T can be a reflection, and a head can swap what it stores.
    It keeps track of states that no diagonal recurrence can follow, such as a
    product of permutations.

    All steps are computed in one native call on a CPU, and in chunks by matrix
    products elsewhere.

    | weight | shape | meaning |
    |---|---|---|
    | `query_kernel`, `key_kernel`, `value_kernel` | (features, key_heads \
key_dim), (features, m key_heads key_dim), (features, m num_heads value_dim) \
| W^T |
    | `convolution_kernel`, `convolution_bias` | (kernel_size, channels), \
(channels,) | the taps for queries, keys and values, in this order; the bias \
only with `use_bias` |
    | `write_kernel` | (features, m num_heads) | W_b^T |
    | `timescale_kernel`, `timescale_bias`, `log_transition` | (features, \
num_heads), (num_heads,), (num_heads,) | W_a^T, b_a, log A, if `gated` |
    | `gate_kernel` | (features, num_heads value_dim) | W_g^T, if \
`output_gate` |
    | `norm_scale` | (value_dim,) | scale |
    | `output_kernel` | (num_heads value_dim, units) | W_o^T |

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        num_heads: integer, the number of matrices. Defaults to 4.
        key_dim: integer, the size of a query and of a key. Defaults to 32.
        value_dim: integer, the size of a value. Defaults to `None`, twice
            `key_dim`.
        key_heads: integer, a divisor of `num_heads`: so many heads have keys
            and queries of their own, which the heads of a group share.
            Defaults to `None`, `num_heads`.
        gated: whether the matrices decay. Defaults to `True`.
        reflections: integer, m, the products a step. Defaults to 1.
        negative_eigenvalues: whether b_t reaches 2 instead of 1. Defaults to
            `False`.
        output_gate: whether the outputs have the factor silu(W_g u_t).
            Defaults to `True`.
        kernel_size: integer, 2 or more, the taps of the convolution. Defaults
            to 4.
        dt_min, dt_max: floats, the range of the initial softplus(b_a), which
            is log-uniform. Default to 0.001 and 0.1.
        use_bias: whether the convolution has a bias. Defaults to `False`.
        kernel_initializer: for the kernels and the taps. Defaults to `None`,
            uniform numbers between -+1/sqrt(inputs), as those of PyTorch's
            layers in the authors' code.
        bias_initializer: for the bias. Defaults to `"zeros"`.
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
            (batch, num_heads, key_dim, value_dim). Defaults to `None`: zeros,
            or the states of the previous batch if `stateful`.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final states, float32
        whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction.

    Reference:
        [Gated Delta Networks: Improving Mamba2 with Delta
        Rule](https://arxiv.org/abs/2412.06464), section 3;
        [DeltaNet](https://arxiv.org/abs/2406.06484), section 2;
        [DeltaProduct](https://arxiv.org/abs/2502.10297), section 3; [the
        authors' code](https://github.com/fla-org/flash-linear-attention).

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.DeltaNet(8, num_heads=2, key_dim=4)
    >>> sequences = np.random.rand(2, 100, 3).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 100, 8)

    The same, one step at a time:

    >>> states = layer.get_initial_state(batch_size=2)
    >>> output, states = layer.step(sequences[:, 0], states)
    >>> tuple(output.shape), tuple(states[1].shape)
    ((2, 8), (2, 2, 4, 8))
    """

    def __init__(
        self,
        units: int | None = None,
        num_heads: int = 4,
        key_dim: int = 32,
        value_dim: int | None = None,
        key_heads: int | None = None,
        gated: bool = True,
        reflections: int = 1,
        negative_eigenvalues: bool = False,
        output_gate: bool = True,
        kernel_size: int = 4,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        use_bias: bool = False,
        kernel_initializer: types.Identifier = None,
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
        kernel_initializer = kernel_initializer or uniform_over_fan_in()
        super().__init__(**for_bases(DeltaNet, locals()))
        require_count("num_heads", num_heads)
        require_count("key_dim", key_dim)
        require_count("value_dim", value_dim, optional=True)
        require_count("key_heads", key_heads, optional=True)
        require_count("reflections", reflections)
        require_bool("gated", gated)
        require_bool("negative_eigenvalues", negative_eigenvalues)
        require_bool("output_gate", output_gate)
        if num_heads % (key_heads or num_heads):
            raise ValueError(
                "`key_heads` should divide the number of heads. "
                f"Received: key_heads={key_heads}, num_heads={num_heads}"
            )
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.key_heads = key_heads
        self.gated = gated
        self.reflections = reflections
        self.negative_eigenvalues = negative_eigenvalues
        self.output_gate = output_gate

    def _parts(self):
        """The numbers of queries, keys and values of a step."""
        keys = (self.key_heads or self.num_heads) * self.key_dim
        _, _, value_dim = self._matrix_shape()
        values = self.num_heads * value_dim
        return keys, self.reflections * keys, self.reflections * values

    def _convolved_features(self, features):
        return sum(self._parts())

    def _matrix_shape(self, features=None):
        value_dim = self.value_dim or 2 * self.key_dim
        return self.num_heads, self.key_dim, value_dim

    def build_unit(self, features):
        heads, _, value_dim = self._matrix_shape()
        widths = dict(zip(("query", "key", "value"), self._parts()))
        widths["write"] = self.reflections * heads
        if self.gated:
            widths["timescale"] = heads
        if self.output_gate:
            widths["gate"] = heads * value_dim
        # All of the inputs, in the order of `_widths`.
        projections = []
        for name, width in widths.items():
            kernel = self.add_kernel(f"{name}_kernel", (features, width))
            setattr(self, f"{name}_kernel", kernel)
            projections.append(kernel)
        self._projections = tuple(projections)
        self._add_convolution(features)
        if self.gated:
            # The authors' range begins at 0, whose logarithm is not finite.
            self._add_timescale(heads, smallest_rate=1e-3)
        self.norm_scale = self.add_parameter("norm_scale", (value_dim,), "ones")
        self.output_kernel = self.add_kernel(
            "output_kernel", (heads * value_dim, self.output_units)
        )

    def _input_kernels(self):
        # A list: TensorFlow wraps tuples that a layer keeps.
        return ops.concatenate([*self._projections], axis=-1)

    def _widths(self):
        widths = [kernel.shape[-1] for kernel in self._projections]
        return sum(widths[:3]), *widths[3:]

    def _entering(self, mixed, beside, decay_rate):
        heads, key_dim, value_dim = self._matrix_shape()
        key_heads, count = self.key_heads or heads, self.reflections
        queries, keys, values = split_last(mixed, *self._parts())
        queries = _of_norm_one(in_heads(queries, key_heads, key_dim))
        keys = _of_norm_one(in_heads(keys, count, key_heads, key_dim))
        write = ops.sigmoid(in_heads(beside[0], count, heads))
        if self.negative_eigenvalues:
            write = 2.0 * write
        log_decay = None
        if self.gated:
            log_decay = decay_rate * self._timescale(beside[1])
        return MatrixSteps(
            queries=queries * key_dim**-0.5,
            keys=keys,
            values=in_heads(values, count, heads, value_dim),
            log_decay=log_decay,
            erase=write,
            write=write,
        )

    def _read_out(self, outputs, values, beside):
        heads, _, value_dim = self._matrix_shape()
        outputs = normalised(outputs, self.norm_scale)
        if self.output_gate:
            gate = in_heads(beside[-1], heads, value_dim)
            outputs = outputs * activate(keras.activations.silu, gate)
        return product(joined(outputs), self.output_kernel)

    def get_config(self):
        return {
            **super().get_config(),
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "key_heads": self.key_heads,
            "gated": self.gated,
            "reflections": self.reflections,
            "negative_eigenvalues": self.negative_eigenvalues,
            "output_gate": self.output_gate,
        }


def _of_norm_one(numbers):
    square = ops.sum(ops.square(numbers), axis=-1, keepdims=True)
    return numbers / ops.sqrt(square + _EPSILON)
