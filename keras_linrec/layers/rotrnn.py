"""RotRNN: a linear recurrence whose transition is a decaying rotation."""

import math
from typing import NamedTuple

import keras
from keras import ops

from keras_linrec import types
from keras_linrec.complex_pairs import multiply
from keras_linrec.double_precision import cos
from keras_linrec.double_precision import sin
from keras_linrec.double_precision import tanh
from keras_linrec.layers.base.both_ways import BothWays
from keras_linrec.layers.base.diagonal_layer import DiagonalLayer
from keras_linrec.layers.base.diagonal_layer import DiagonalSystem
from keras_linrec.layers.base.diagonal_layer import fed_through
from keras_linrec.layers.base.precise_layer import one_by_one
from keras_linrec.layers.base.precise_layer import serialized
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.layers.for_signals import DecaysForSignals
from keras_linrec.layers.rotation_conversion import FromLRU
from keras_linrec.ops import precision
from keras_linrec.ops.rotation import complex_from_pairs
from keras_linrec.ops.rotation import pairs_from_complex
from keras_linrec.ops.rotation import rotation_matrix
from keras_linrec.validation import require_between
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_count
from keras_linrec.validation import require_ordered

# The paper's number of heads, in all of its experiments.
_HEADS_MAX = 32


class StepConstants(NamedTuple):
    """What `RotRNN` computes from its weights alone, once for all steps.

    Attributes:
        transition: (heads, K, K), (gamma P Theta P^T)^T.
        input_matrix: (features, state_size), (xi B)^T.
    """

    transition: object
    input_matrix: object


@keras.saving.register_keras_serializable("keras_linrec")
class RotRNN(FromLRU, DecaysForSignals, BothWays, DiagonalLayer):
    """Rotational recurrent layer - Biegun et al. 2024.

    The layer is linear in its inputs and states, unless `activation` applies a
    nonlinearity to its outputs: put one between stacked layers. Each of
    `num_heads` heads, of K = state_size / num_heads states, follows

        x_t = gamma P Theta P^T x_{t-1} + xi B u_t
        y_t = activation(C concat_heads(x_t) + D u_t)

    with the rotation P = expm(M - M^T), the block-diagonal rotation Theta of
    the pairs (2i, 2i+1) by angles theta_i, the decay gamma = exp(-exp(g)),
    and xi = sqrt((1 - gamma^2) / Tr(B^T B)). For white noise, the expected
    squared norm of a head's state is then 1 in the long run, whatever the
    weights: 1 - gamma^(2t) after t steps from a state of zeros. (The paper's
    lemma 3 assumes that it is 1 at the first step.) All steps are computed in
    parallel where the kernel is parallel.

    | weight | shape | meaning |
    |---|---|---|
    | `theta` | (heads, K // 2) | angles |
    | `gamma_log` | (heads,) | g |
    | `rotation_kernel` | (heads, K, K) | M |
    | `input_kernel` | (heads, features, K) | B^T |
    | `output_kernel` | (state_size, units) | C^T |
    | `backward_output_kernel` | (state_size, units) | C^T of the second \
direction, if `bidirectional` |
    | `feedthrough` | (features,), or (features, units) if `units` is another \
number | D |

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        state_size: integer, the states of all heads together. Defaults to 128.
        num_heads: integer, which divides `state_size` into heads of 2 states
            or more. Defaults to `None`, the largest such number up to the
            paper's 32.
        gamma_min, gamma_max: floats, 0 < gamma_min < gamma_max < 1, the range
            of the initial decays, whose squares are uniform. Default to 0.5
            and 0.999.
        theta_max: float, the largest initial angle; they are uniform from 0.
            Defaults to 2 pi. Choose less for slow signals: the paper takes
            pi / 10 and pi / 100 for some tasks.
        bidirectional: whether a second recurrence, with the same P, Theta and
            B and a C of its own, reads the sequence from its end, and the two
            outputs are added (appendix B.2). Such a layer can neither stream
            nor be stateful, has the states of both directions, and returns
            sequences. Defaults to `False`.
        activation: name or function, applied to the outputs. Defaults to
            `None`, no activation.
        kernel_initializer: for `input_kernel`, one head at a time, and for
            `output_kernel`. The scale of `input_kernel` does not change the
            outputs, but smaller weights learn faster. Defaults to
            `"glorot_normal"`.
        rotation_initializer: for M. Defaults to `None`, normal numbers of
            variance 1.
        feedthrough_initializer: for D. Defaults to `None`, normal numbers that
            keep the variance.
        kernel_regularizer, kernel_constraint: for `input_kernel` and
            `output_kernel`. Default to `None`.
        even_memories: whether the memories 1 / (1 - gamma) of the states start
            evenly spread over their decades, see
            `keras_linrec.initializers.DecayLog`. Defaults to `False`: the
            squares of gamma are uniform, as in the paper.
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
        initial_state: list of tensors (batch, state_size): x before the first
            step, in the paper's coordinates; if `bidirectional`, also that of
            the second direction, after the last step. Defaults to `None`:
            zeros, or the state of the previous batch if `stateful`.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final states, float32
        whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction.

    The starting values are those of the paper's text. The code in its appendix
    C draws B and C from N(0, 1 / fan_in): with 128 features and 32 heads of 4
    states the entries of B then have the deviation 0.088 instead of 0.123, and
    ten steps of Adam at 1e-3 move the normalised B by 11% instead of 8%.

    Reference:
        [RotRNN: Modelling Long Sequences with Rotations](
        https://arxiv.org/abs/2407.07239), section 3, appendices B and C.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.RotRNN(4, state_size=16)
    >>> sequences = np.random.rand(2, 1000, 3).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 1000, 4)

    The same, one step at a time:

    >>> states = layer.get_initial_state(batch_size=2)
    >>> output, states = layer.step(sequences[:, 0], states)
    >>> tuple(output.shape)
    (2, 4)
    """

    _DECAYS = ("gamma_min", "gamma_max")

    def __init__(
        self,
        units: int | None = None,
        state_size: int = 128,
        num_heads: int | None = None,
        gamma_min: float = 0.5,
        gamma_max: float = 0.999,
        theta_max: float = 2 * math.pi,
        bidirectional: bool = False,
        activation: types.Identifier = None,
        kernel_initializer: types.Identifier = "glorot_normal",
        rotation_initializer: types.Identifier = None,
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
        super().__init__(**for_bases(RotRNN, locals()))
        require_count("state_size", state_size)
        require_count("num_heads", num_heads, optional=True)
        if num_heads is None:
            num_heads = _most_heads(state_size)
        if state_size % num_heads or state_size < 2 * num_heads:
            raise ValueError(
                "`num_heads` should divide `state_size` into heads of at "
                f"least 2 states. Received: num_heads={num_heads}, "
                f"state_size={state_size}"
            )
        require_bool("even_memories", even_memories)
        require_between("gamma_min", gamma_min, 0, 1, "()")
        require_between("gamma_max", gamma_max, 0, 1, "()")
        require_ordered("gamma_min", gamma_min, "gamma_max", gamma_max)
        require_between("theta_max", theta_max, 0, math.inf, "[)")
        self.state_size = state_size
        self.num_heads = num_heads
        self.gamma_min = gamma_min
        self.gamma_max = gamma_max
        self.theta_max = theta_max
        self.even_memories = even_memories
        self.rotation_initializer = keras.initializers.get(
            rotation_initializer or keras.initializers.RandomNormal(stddev=1.0)
        )

    @property
    def _head_size(self):
        """The states of one head, K."""
        return self.state_size // self.num_heads

    def state_shapes_of(self, features):
        return [(self.state_size,)] * (2 if self.bidirectional else 1)

    def build_unit(self, features):
        heads, size = self.num_heads, self._head_size
        self.theta = self.add_parameter(
            "theta",
            (heads, size // 2),
            keras.initializers.RandomUniform(0.0, self.theta_max),
        )
        self.gamma_log = self.add_parameter(
            "gamma_log", (heads,), self._initial_decays()
        )
        self.rotation_kernel = self.add_parameter(
            "rotation_kernel", (heads, size, size), self.rotation_initializer
        )
        self.input_kernel = self.add_kernel(
            "input_kernel",
            (heads, features, size),
            one_by_one(self.kernel_initializer, "input_kernel"),
        )
        read_out = self.state_size, self.output_units
        self.output_kernel = self.add_kernel("output_kernel", read_out)
        if self.bidirectional:
            self.backward_output_kernel = self.add_kernel(
                "backward_output_kernel", read_out
            )
        self.feedthrough = self._add_feedthrough(features)

    # The recurrence runs in the coordinates z = P^T x, where a pair of states
    # is one complex number and a step multiplies it by gamma exp(i theta).

    def diagonal_system(self):
        rotation = self._rotation()
        return DiagonalSystem(
            decay=tuple(ops.reshape(part, (-1,)) for part in self._decay()),
            input_kernel=self._input_projection(rotation),
            output_kernel=self._output_projection(rotation, self.output_kernel),
            feedthrough=ops.convert_to_tensor(self.feedthrough),
            basis=rotation,
        )

    def _rotation(self):
        return rotation_matrix(self.rotation_kernel)

    def _decay(self):
        """gamma exp(i theta) of every complex number, (heads, channels)."""
        theta = ops.convert_to_tensor(self.theta)
        if self._head_size % 2:
            # The entry without a partner only decays.
            theta = ops.pad(theta, [[0, 0], [0, 1]])
        gamma = ops.exp(-ops.exp(self.gamma_log))[:, None]
        return gamma * cos(theta), gamma * sin(theta)

    def _scaled_input_kernel(self):
        """(xi B)^T of every head, (heads, features, head_size)."""
        kernel = ops.convert_to_tensor(self.input_kernel)
        # 1 - gamma^2, without cancellation where gamma is close to 1. ONNX
        # has no expm1; of gamma = exp(-rate) this is 1 - exp(-2 rate).
        tangent = tanh(ops.exp(self.gamma_log))
        variance = 2.0 * tangent / (1.0 + tangent)
        # xi cancels any factor of B, so that no square need over- or underflow.
        largest = ops.amax(ops.abs(kernel), axis=(1, 2), keepdims=True)
        is_zero = largest == 0
        kernel = kernel / ops.stop_gradient(ops.where(is_zero, 1.0, largest))
        trace = ops.sum(ops.square(kernel), axis=(1, 2), keepdims=True)
        trace = ops.where(is_zero, 1.0, trace)
        return kernel * ops.sqrt(variance[:, None, None] / trace)

    def _input_projection(self, rotation):
        """(xi P^T B)^T as complex numbers, (features, channels)."""
        kernel = precision.matmul(self._scaled_input_kernel(), rotation)
        return complex_from_pairs(_side_by_side(self._with_partners(kernel)))

    def _output_projection(self, rotation, output_kernel):
        """(C P)^T for the real part of complex numbers, (channels, units)."""
        shape = (self.num_heads, self._head_size, self.output_units)
        kernel = precision.matmul(
            ops.swapaxes(rotation, 1, 2), ops.reshape(output_kernel, shape)
        )
        kernel = self._with_partners(kernel, axis=1)
        kernel = ops.reshape(kernel, (-1, 2, self.output_units))
        return kernel[:, 0], -kernel[:, 1]

    def _with_partners(self, kernel, axis=2):
        """Zeros beside the last states of heads of an odd size."""
        if self._head_size % 2 == 0:
            return kernel
        padding = [[0, 0]] * 3
        padding[axis] = [0, 1]
        return ops.pad(kernel, padding)

    def to_channels(self, states, rotation):
        shape = (-1, self.num_heads, self._head_size)
        rotated = precision.einsum(
            "bhk,hkj->bhj", ops.reshape(states[0], shape), rotation
        )
        channels = self.num_heads * -(-self._head_size // 2)
        return tuple(
            ops.reshape(part, (-1, channels))
            for part in complex_from_pairs(rotated)
        )

    def from_channels(self, channels, rotation):
        shape = (-1, self.num_heads, -(-self._head_size // 2))
        rotated = pairs_from_complex(
            tuple(ops.reshape(part, shape) for part in channels),
            self._head_size,
        )
        heads = precision.einsum("bhj,hkj->bhk", rotated, rotation)
        return [ops.reshape(heads, (-1, self.state_size))]

    def _backward_system(self, forward):
        return forward._replace(
            output_kernel=self._output_projection(
                forward.basis, self.backward_output_kernel
            ),
            feedthrough=None,
        )

    # A single step runs in the states' own coordinates: rotating into complex
    # numbers and back would cost more. In float32, 100,000 steps are off by
    # the same either way: 7e-7 with the default decays, 3e-4 where gamma is
    # 1 - 1e-7 (JAX, measured against float64).

    def step_constants(self):
        self._require_streaming()
        rotation = self._rotation()
        turned = multiply(
            tuple(ops.expand_dims(part, 1) for part in self._decay()),
            complex_from_pairs(rotation),
        )
        turned = pairs_from_complex(turned, self._head_size)
        return StepConstants(
            precision.matmul(turned, ops.swapaxes(rotation, -1, -2)),
            _side_by_side(self._scaled_input_kernel()),
        )

    def run_step(self, step, states, constants=None):
        transition, input_matrix = constants or self.step_constants()
        shape = (-1, self.num_heads, self._head_size)
        heads = ops.reshape(states[0], shape)
        heads = precision.einsum("bhk,hkj->bhj", heads, transition)
        state = ops.reshape(heads, (-1, self.state_size))
        state = state + step.inputs @ input_matrix
        outputs = state @ ops.convert_to_tensor(self.output_kernel)
        outputs = outputs + fed_through(
            step.inputs, ops.convert_to_tensor(self.feedthrough)
        )
        return self.finished(outputs), [state]

    def get_config(self):
        return {
            **super().get_config(),
            "state_size": self.state_size,
            "num_heads": self.num_heads,
            "gamma_min": self.gamma_min,
            "gamma_max": self.gamma_max,
            "theta_max": self.theta_max,
            "even_memories": self.even_memories,
            **serialized(self, "rotation_initializer"),
        }


def _most_heads(state_size):
    """The largest number of heads, at most 32, of 2 or more states each."""
    divisors = (
        heads
        for heads in range(1, _HEADS_MAX + 1)
        if state_size % heads == 0 and state_size >= 2 * heads
    )
    return max(divisors, default=1)


def _side_by_side(heads):
    """(heads, rows, columns) as (rows, heads * columns)."""
    columns = ops.transpose(heads, (1, 0, 2))
    return ops.reshape(columns, (heads.shape[1], -1))
