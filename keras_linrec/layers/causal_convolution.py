"""CausalConvolution: a short window of every feature, with its states."""

import keras
from keras import ops

from keras_linrec import activations
from keras_linrec import types
from keras_linrec.double_precision import product
from keras_linrec.initializers import FanInNormal
from keras_linrec.layers.base.input_weights import InputWeights
from keras_linrec.layers.base.sequence_layer import SequenceLayer
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.ops.short_convolution import require_taps
from keras_linrec.ops.short_convolution import short_convolution
from keras_linrec.ops.short_convolution import short_convolution_step


@keras.saving.register_keras_serializable("keras_linrec")
class CausalConvolution(InputWeights, SequenceLayer):
    """Causal convolution over time, with taps of its own for every feature.

    The layer is linear in its inputs, up to the bias, unless `activation`
    applies a nonlinearity to its outputs. It is what
    `keras.layers.DepthwiseConv1D` computes after K - 1 zeros, with the same
    order of the taps, and streams:

        y_t = activation(sum_k kernel[k] x_{t-K+1+k} + b)

    over k from 0 to K - 1, with K = `kernel_size`; `kernel[K-1]` multiplies
    the input of the step itself. x_t is the input u_t, or P u_t if `units` is
    another number than that of the features. Its state is the last K - 1
    inputs, zeros at the start. Masked steps do not happen: the window reaches
    back over steps that count. At a reset it starts from zeros again.

    | weight | shape | meaning |
    |---|---|---|
    | `kernel`, `bias` | (kernel_size, units), (units,) | the taps, b |
    | `projection_kernel` | (features, units) | P^T, if `units` is another \
number than the features' |

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        kernel_size: integer, 2 or more, K. Defaults to 4.
        activation: name or function, applied to the outputs. Defaults to
            `None`, no activation.
        use_bias: whether there is b. Defaults to `True`.
        kernel_initializer: for the taps and P. Defaults to `None`, normal
            numbers that keep the variance of white noise: 1 / K for the taps.
        bias_initializer: for b. Defaults to `"zeros"`.
        kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: for the taps and P, and for b. Default to `None`.
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
        initial_state: list of one tensor (batch, kernel_size - 1, units), the
            x of the steps before the first, the latest last. Defaults to
            `None`: zeros, or the state of the previous batch if `stateful`.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final state, float32
        whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction.

    Reference:
        [Griffin: Mixing Gated Linear Recurrences with Local Attention for
        Efficient Language Models](https://arxiv.org/abs/2402.19427), section
        2.3, where it precedes an `RGLRU`.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.CausalConvolution(kernel_size=4)
    >>> sequences = np.random.rand(2, 1000, 3).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 1000, 3)

    The same, one step at a time:

    >>> states = layer.get_initial_state(batch_size=2)
    >>> output, states = layer.step(sequences[:, 0], states)
    >>> tuple(output.shape), tuple(states[0].shape)
    ((2, 3), (2, 3, 3))
    """

    def __init__(
        self,
        units: int | None = None,
        kernel_size: int = 4,
        activation: types.Identifier = None,
        use_bias: bool = True,
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
        kernel_initializer = kernel_initializer or FanInNormal()
        super().__init__(**for_bases(CausalConvolution, locals()))
        require_taps(kernel_size)
        self.kernel_size = kernel_size
        self.activation = activation

    def _accept_activation(self, name, value):
        return activations.get_unary(value)

    @property
    def is_linear(self):
        return self.activation is keras.activations.linear

    def state_shapes_of(self, features):
        return [(self.kernel_size - 1, self._units_for(features))]

    def build_unit(self, features):
        self.projection_kernel = self._add_projection(features)
        self.kernel, self.bias = self._add_input_weights(
            (self.kernel_size, self.output_units)
        )

    def run(self, steps, states, wanted):
        before = None if states is None else states[0]
        outputs, last = short_convolution(
            steps, self._entering(steps.inputs), before, *self._taps()
        )
        if not wanted.all_outputs:
            outputs = steps.last_of(outputs)
        return outputs, [last()] if wanted.states else None

    def step_constants(self):
        return [ops.convert_to_tensor(self.kernel)]

    def run_step(self, step, states, constants=None):
        outputs, after = short_convolution_step(
            self._entering(step.inputs), states[0], *self._taps()
        )
        return outputs, [after]

    def _entering(self, inputs):
        """What the window holds of the inputs."""
        if self.projection_kernel is None:
            return inputs
        return product(inputs, self.projection_kernel)

    def _taps(self):
        return self.kernel, self.bias, self.activation

    def get_config(self):
        return {
            **super().get_config(),
            "kernel_size": self.kernel_size,
            "activation": activations.serialize(self.activation),
        }
