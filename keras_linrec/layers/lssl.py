"""LSSL: a continuous-time memory for every feature, discretised."""

import math

import keras
from keras import ops

from keras_linrec.initializers import FanInNormal
from keras_linrec.layers.sequence_layer import SequenceLayer
from keras_linrec.layers.sequence_layer import require_between
from keras_linrec.layers.sequence_layer import require_count
from keras_linrec.ops import structured_state
from keras_linrec.ops.fft_convolution import fft_convolution
from keras_linrec.ops.hippo import MEASURES
from keras_linrec.ops.hippo import StructuredTransition
from keras_linrec.ops.hippo import hippo


@keras.saving.register_keras_serializable("keras_linrec")
class LSSL(SequenceLayer):
    """Linear state-space layer - Gu et al. 2021.

    Each input feature u drives a system of its own,

        x'(s) = A x(s) + B u(s)
        y(s)  = C x(s) + D u(s),

    with A = P (D' + T^-1) Q of theorem 11 (P, D', Q diagonal, T tridiagonal)
    and B shared by all features, and a timescale dt, C and D for each. The
    generalised bilinear transform makes it

        x_t = Abar x_{t-1} + Bbar u_t
        Abar = (I - alpha dt A)^-1 (I + (1 - alpha) dt A)
        Bbar = (I - alpha dt A)^-1 dt B

    and the layer's output is activation(C x_t + D u_t) @ kernel + bias, with
    the channels of all features side by side. Whole sequences are computed as
    a convolution with C Abar^k Bbar, steps by the recurrence.

    | weight | shape | meaning |
    |---|---|---|
    | `log_timescale` | (features,) | log dt |
    | `transition_p`, `transition_d`, `transition_q` | (N,) | P, D', Q |
    | `transition_t` | (3, N) | T: superdiagonal (last entry 0), diagonal, \
subdiagonal (last entry 0) |
    | `input_vector` | (N,) | B |
    | `output_matrix` | (features, channels, N) | C |
    | `feedthrough` | (features, channels) | D |
    | `kernel` | (features * channels, units) | mixing; features vary slowest |
    | `bias` | (units,) | |

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        state_size: integer, N. Defaults to 64.
        channels: integer, the outputs of each feature's system. Defaults to 1.
        measure: which past A and B remember at first: `"legs"` (all of it),
            `"legt"` (a window of 1 / dt steps) or `"lagt"` (exponentially
            decaying). Defaults to `"legs"`.
        trainable_transition: whether A and B are trained. Defaults to `True`;
            the paper's LSSL-fixed takes `False` here and in
            `trainable_timescale`.
        trainable_timescale: whether dt is trained. Defaults to `True`.
        dt_min, dt_max: floats, 0 < dt_min < dt_max, the range of the initial
            timescales, log-uniform in it. A sequence of L steps wants 1 / L
            in the range. Default to 1e-3 and 1e-1.
        alpha: float in [0, 1], the discretisation: 0 is Euler's method, 1
            backward Euler, 0.5 the bilinear one, which keeps a stable system
            stable. Defaults to 0.5.
        activation: between the systems and the mixing. Defaults to `"gelu"`.
        use_bias: whether the mixing has a bias. Defaults to `True`.
        kernel_initializer: for `kernel`. Defaults to `"glorot_uniform"`.
        bias_initializer: for `bias`. Defaults to `"zeros"`.
        output_initializer: for C. Defaults to normal numbers of variance
            1 / N.
        feedthrough_initializer: for D. Defaults to normal numbers of variance
            1.
        kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: for `kernel` and `bias`. Default to `None`.
        **kwargs: those of every unit: `dropout`, `seed`, `return_sequences`
            (`True`), `return_state`, `go_backwards`, `stateful`,
            `zero_output_for_mask`, `name`, `dtype`, `trainable`,
            `activity_regularizer`.

    Call arguments:
        sequences: float tensor, (batch, time, features).
        initial_state: list of one tensor (batch, features, N), x before the
            first step.
        mask: boolean tensor, (batch, time). A step where it is false carries
            the state and repeats the previous output.
        training: whether dropout applies.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final state, float32
        whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction.

    Reference:
        [Combining Recurrent, Convolutional, and Continuous-time Models with
        Linear State-Space Layers](https://arxiv.org/abs/2110.13985), section
        3, appendices B, C.1.3 and E.2.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.LSSL(4, state_size=16)
    >>> sequences = np.random.rand(2, 1000, 3).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 1000, 4)

    The same, one step at a time:

    >>> states = layer.get_initial_state(batch_size=2)
    >>> output, states = layer.step(sequences[:, 0], states)
    >>> tuple(output.shape)
    (2, 4)
    """

    def __init__(
        self,
        units=None,
        state_size=64,
        channels=1,
        measure="legs",
        trainable_transition=True,
        trainable_timescale=True,
        dt_min=1e-3,
        dt_max=1e-1,
        alpha=0.5,
        activation="gelu",
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        output_initializer=None,
        feedthrough_initializer=None,
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(units, **kwargs)
        require_count("state_size", state_size)
        require_count("channels", channels)
        if measure not in MEASURES:
            raise ValueError(
                f"`measure` should be one of {MEASURES}. "
                f"Received: measure={measure}"
            )
        require_between("dt_min", dt_min, 0, math.inf, "()")
        require_between("dt_max", dt_max, dt_min, math.inf, "()")
        require_between("alpha", alpha, 0, 1)
        self.state_size = state_size
        self.channels = channels
        self.measure = measure
        self.trainable_transition = trainable_transition
        self.trainable_timescale = trainable_timescale
        self.dt_min = dt_min
        self.dt_max = dt_max
        self.alpha = alpha
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.output_initializer = keras.initializers.get(
            output_initializer or FanInNormal(axis=-1)
        )
        self.feedthrough_initializer = keras.initializers.get(
            feedthrough_initializer
            or keras.initializers.RandomNormal(stddev=1.0)
        )
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def state_shapes_of(self, features):
        if features is None:
            raise ValueError(
                f"Layer '{self.name}' has one state for each input feature: "
                "build or call it before asking for its states. Received: "
                "built=False"
            )
        return [(features, self.state_size)]

    def build_unit(self, features):
        self.log_timescale = self.add_parameter(
            "log_timescale",
            (features,),
            keras.initializers.RandomUniform(
                math.log(self.dt_min), math.log(self.dt_max)
            ),
            trainable=self.trainable_timescale,
        )
        start = hippo(self.measure, self.state_size)
        (
            self.transition_p,
            self.transition_d,
            self.transition_q,
            self.transition_t,
            self.input_vector,
        ) = (
            self.add_parameter(
                name,
                value.shape,
                _constant(value),
                trainable=self.trainable_transition,
            )
            for name, value in zip(
                (
                    "transition_p",
                    "transition_d",
                    "transition_q",
                    "transition_t",
                    "input_vector",
                ),
                start,
            )
        )
        self.output_matrix = self.add_parameter(
            "output_matrix",
            (features, self.channels, self.state_size),
            self.output_initializer,
        )
        self.feedthrough = self.add_parameter(
            "feedthrough",
            (features, self.channels),
            self.feedthrough_initializer,
        )
        self.kernel = self.add_parameter(
            "kernel",
            (features * self.channels, self.output_units),
            self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_parameter(
                "bias",
                (self.output_units,),
                self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def _discretise(self):
        """Abar - I and Bbar of every feature."""
        transition = StructuredTransition(
            *(
                ops.convert_to_tensor(weight)
                for weight in (
                    self.transition_p,
                    self.transition_d,
                    self.transition_q,
                    self.transition_t,
                    self.input_vector,
                )
            )
        )
        return structured_state.discretise(
            *transition, ops.exp(self.log_timescale), self.alpha
        )

    def run(self, sequences, states, lengths):
        delta, input_vector = self._discretise()
        output_matrix = ops.convert_to_tensor(self.output_matrix)
        time = ops.shape(sequences)[1]
        blocks = structured_state.Blocks(delta, time)
        response = structured_state.impulse_response(
            blocks, input_vector, output_matrix
        )
        inputs = ops.transpose(sequences, (0, 2, 1))[:, :, None]
        outputs = fft_convolution(inputs, response)
        if states is not None:
            outputs = outputs + structured_state.free_response(
                blocks, states[0], output_matrix
            )
        outputs = outputs + inputs * self.feedthrough[..., None]
        outputs = self._mix(ops.transpose(outputs, (0, 3, 1, 2)))

        if not (self.return_state or self.stateful):
            return outputs, None
        batch = ops.shape(sequences)[0]
        if states is None:
            states = self.get_initial_state(batch)
        if lengths is None:
            lengths = ops.full((batch,), time, dtype="int32")
        final_states = structured_state.final_states(
            blocks, input_vector, sequences, states[0], lengths
        )
        return outputs, [final_states]

    def run_step(self, inputs, states):
        delta, input_vector = self._discretise()
        state = states[0]
        # The change is added to the state, and not the state transformed, so
        # that rounding does not grow with the number of steps.
        state = state + (
            ops.einsum("fnm,bfm->bfn", delta, state)
            + input_vector * inputs[:, :, None]
        )
        outputs = ops.einsum("fcn,bfn->bfc", self.output_matrix, state)
        outputs = outputs + inputs[:, :, None] * self.feedthrough
        return self._mix(outputs), [state]

    def _mix(self, outputs):
        """Activation and mixing of (..., features, channels)."""
        outputs = self.activation(outputs)
        shape = ops.shape(outputs)[:-2]
        outputs = ops.reshape(outputs, (*shape, self.kernel.shape[0]))
        outputs = outputs @ ops.convert_to_tensor(self.kernel)
        return outputs if self.bias is None else outputs + self.bias

    def get_config(self):
        return {
            **super().get_config(),
            "state_size": self.state_size,
            "channels": self.channels,
            "measure": self.measure,
            "trainable_transition": self.trainable_transition,
            "trainable_timescale": self.trainable_timescale,
            "dt_min": self.dt_min,
            "dt_max": self.dt_max,
            "alpha": self.alpha,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "bias_initializer": keras.initializers.serialize(
                self.bias_initializer
            ),
            "output_initializer": keras.initializers.serialize(
                self.output_initializer
            ),
            "feedthrough_initializer": keras.initializers.serialize(
                self.feedthrough_initializer
            ),
            "kernel_regularizer": keras.regularizers.serialize(
                self.kernel_regularizer
            ),
            "bias_regularizer": keras.regularizers.serialize(
                self.bias_regularizer
            ),
            "kernel_constraint": keras.constraints.serialize(
                self.kernel_constraint
            ),
            "bias_constraint": keras.constraints.serialize(
                self.bias_constraint
            ),
        }


def _constant(value):
    def initializer(shape, dtype=None):
        return ops.cast(ops.convert_to_tensor(value), dtype)

    return initializer
