"""S4D: a complex diagonal system in continuous time for every feature."""

import math
from typing import Literal
from typing import get_args

import keras
import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import multiply_add
from keras_linrec.double_precision import activate
from keras_linrec.double_precision import cos
from keras_linrec.double_precision import sin
from keras_linrec.layers.base.mixed_features import MixedFeatures
from keras_linrec.layers.base.mixed_features import read_out
from keras_linrec.layers.base.mixed_features import with_feedthrough
from keras_linrec.layers.base.precise_layer import drawn_apart
from keras_linrec.layers.base.precise_layer import given_values
from keras_linrec.layers.base.sequence_layer import SequenceLayer
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.layers.base.timescaled import Timescaled
from keras_linrec.layers.for_signals import TimescalesForSignals
from keras_linrec.ops import precision
from keras_linrec.ops.causal_convolution import causal_convolution
from keras_linrec.ops.continuous_diagonal import diagonal_scan_irregular
from keras_linrec.ops.continuous_diagonal import discretise
from keras_linrec.ops.continuous_diagonal import exponential_sums
from keras_linrec.ops.continuous_diagonal import sums_over_time
from keras_linrec.ops.exportable import by_steps
from keras_linrec.ops.masks import packing
from keras_linrec.ops.masks.steps import Steps
from keras_linrec.ops.scan import projected_scan
from keras_linrec.ops.structured.hippo_normal import normal_part
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count

Start = Literal["lin", "inv", "legs"]

# How many features' states one scan runs over, where it has to. Forward and
# backward at (8, 1024, 64), 64 states, with resets: 218 ms with 4, 180 with 8
# and 225 with 16 (PyTorch, one core).
_GROUP = 8


@keras.saving.register_keras_serializable("keras_linrec")
class S4D(TimescalesForSignals, Timescaled, MixedFeatures, SequenceLayer):
    """Diagonal state space layer - Gu et al. 2022.

    Each input feature u drives a system of its own, of N / 2 complex states in
    continuous time, which stand for as many conjugate pairs,

        x'(s) = A x(s) + u(s)
        y(s)  = 2 Re(C x(s)) + D u(s),

    with a diagonal A = -exp(a) + i b, a C, a D and a timescale dt of its own.
    Zero-order hold, under which u is constant during a step, makes it

        x_t = exp(dt A) x_{t-1} + (exp(dt A) - 1) / A u_t

    and the layer's output is activation(2 Re(C x_t) + D u_t) @ kernel + bias,
    with the channels of all features side by side. Whole sequences are
    computed as a convolution with 2 Re(C (exp(dt A) - 1) / A exp(k dt A)),
    steps and packed rows by the recurrence. Outputs before an outlier,
    a NaN or an infinity change by at most 1e-6 of their largest.

    | weight | shape | meaning |
    |---|---|---|
    | `log_timescale` | (features,) | log dt |
    | `transition_log_real` | (features, N / 2) | a |
    | `transition_imag` | (features, N / 2) | b |
    | `output_real`, `output_imag` | (features, channels, N / 2) | C |
    | `feedthrough` | (features, channels) | D |
    | `kernel` | (features * channels, units) | mixing; features vary slowest |
    | `bias` | (units,) | of the mixing |

    Differences from the authors' code: the mixing has no gated linear unit,
    which `keras_linrec.models.ResidualBlock` adds with `gated=True`; and the
    optimizer's learning rate and weight decay apply to A and dt, where theirs
    have a rate of 1e-3 and no decay.
    `keras_linrec.optimizers.ParameterGroups` sets such rates. The paper's B,
    which only scales C, is 1, as there.

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        state_size: integer, even, N: of the states in conjugate pairs one each
            is computed, N / 2 complex numbers. Defaults to 64.
        channels: integer, the outputs of each feature's system. Defaults to 1.
        initial_eigenvalues: A at the start: `"lin"`, -1/2 + i pi n for n from
            0; `"inv"`, -1/2 + i (N / pi) (N / (2 n + 1) - 1); or `"legs"`, the
            eigenvalues of the normal part of HiPPO-LegS. Defaults to `"lin"`.
        trainable_transition: whether A is trained. Defaults to `True`.
        trainable_timescale: whether dt is trained. Defaults to `True`.
        dt_min, dt_max: floats, 0 < dt_min < dt_max, the range of the initial
            dt, log-uniform in it. A feature remembers about 2 / dt steps.
            Default to 1e-3 and 1e-1.
        step_rescale: positive float, multiplies dt. A model trained at one
            sampling rate takes a signal of half the rate with 2. It may be
            set between calls, on compiled models too. Defaults to 1.
        activation: name or function, between the systems and the mixing.
            Defaults to `"gelu"`.
        use_bias: whether the mixing has a bias. Defaults to `True`.
        kernel_initializer: for `kernel`. Defaults to `"glorot_uniform"`.
        bias_initializer: for `bias`. Defaults to `"zeros"`.
        output_initializer: for the real and the imaginary part of C. Defaults
            to `None`, normal numbers of variance 1/2.
        feedthrough_initializer: for D. Defaults to `None`, normal numbers of
            variance 1.
        kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: for `kernel` and `bias`. Default to `None`.
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
        initial_state: list of two tensors (batch, features, N / 2): the real
            and the imaginary part of x before the first step. Defaults to
            `None`: zeros, or the state of the previous batch if `stateful`.
        time_deltas: float tensor, (batch, time), the length of each step in
            multiples of dt: for irregular sampling, and for missing steps,
            whose time is added to the next one. Zero leaves the state as it
            is. Numbers that are negative or not finite are refused in an eager
            call on a CPU, unless the step is masked; a compiled program does
            not check them, and its outputs are then meaningless. Defaults to
            `None`, all 1.
        step_rescale: positive number or scalar tensor that multiplies dt in
            this call, in addition to the layer's own; checked like
            `time_deltas`. Defaults to `None`, 1.
        `time_deltas` and `reset_mask` take several times as much time as
            without; on GPUs `time_deltas` also take memory for the factors
            and states of all steps, in training some 20 N numbers a feature
            and step.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the two parts of the final
        state, float32 whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction, and for
            wrong tensors in a call.

    Reference:
        [On the Parameterization and Initialization of Diagonal State Space
        Models](https://arxiv.org/abs/2206.11893), sections 3 and 4.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.S4D(4, state_size=16)
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
        units: int | None = None,
        state_size: int = 64,
        channels: int = 1,
        initial_eigenvalues: Start = "lin",
        trainable_transition: bool = True,
        trainable_timescale: bool = True,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        step_rescale: float = 1.0,
        activation: types.Identifier = "gelu",
        use_bias: bool = True,
        kernel_initializer: types.Identifier = "glorot_uniform",
        bias_initializer: types.Identifier = "zeros",
        output_initializer: types.Identifier = None,
        feedthrough_initializer: types.Identifier = None,
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
        output_initializer = (
            output_initializer
            or keras.initializers.RandomNormal(stddev=math.sqrt(0.5))
        )
        super().__init__(**for_bases(S4D, locals()))
        require_count("state_size", state_size)
        if state_size % 2:
            raise ValueError(
                "`state_size` should be even: the states are conjugate pairs. "
                f"Received: state_size={state_size}"
            )
        require_choice(
            "initial_eigenvalues", initial_eigenvalues, get_args(Start)
        )
        require_bool("trainable_transition", trainable_transition)
        self.state_size = state_size
        self.initial_eigenvalues = initial_eigenvalues
        self.trainable_transition = trainable_transition

    def state_shapes_of(self, features):
        self._require_known_features(features)
        return [(features, self.state_size // 2)] * 2

    def build_unit(self, features):
        shape = features, self.state_size // 2
        self._add_log_timescale((features,))
        self.transition_log_real = self.add_parameter(
            "transition_log_real",
            shape,
            keras.initializers.Constant(math.log(0.5)),
            trainable=self.trainable_transition,
        )
        frequencies = _frequencies(self.initial_eigenvalues, self.state_size)
        self.transition_imag = self.add_parameter(
            "transition_imag",
            shape,
            given_values(np.tile(frequencies, (features, 1))),
            trainable=self.trainable_transition,
        )
        self.output_real, self.output_imag = (
            self.add_parameter(
                name,
                (features, self.channels, shape[1]),
                drawn_apart(self.output_initializer, name),
            )
            for name in ("output_real", "output_imag")
        )
        self._add_mixing(features)

    def _transition(self):
        """A, a pair (features, N / 2)."""
        return (
            -ops.exp(self.transition_log_real),
            ops.convert_to_tensor(self.transition_imag),
        )

    def _discretised(self, steps):
        """What steps multiply x and u by, pairs (..., features, N / 2)."""
        timescale = self._timescale_over(steps)
        return discretise(self._transition(), ops.expand_dims(timescale, -1))

    # Whole sequences.

    def run(self, steps, states, wanted):
        if self._is_convolution(steps):
            outputs = self._by_response(steps, states)
            final_states = None
            if wanted.states:
                final_states = self._after(steps, states)
        elif steps.time_deltas is None:
            outputs, final_states = self._by_groups(steps, states, wanted)
        else:
            outputs, final_states = self._by_scan(steps, states)
        if not wanted.all_outputs:
            outputs = steps.last_of(outputs)
        return self._mix(outputs), final_states

    def _is_convolution(self, steps):
        """Whether the outputs of a call are one convolution."""
        return (
            steps.reset_mask is None
            and steps.time_deltas is None
            and not by_steps(ops.shape(steps.inputs)[1])
        )

    def _angles(self, steps):
        """dt A, a pair (features, N / 2)."""
        timescale = ops.expand_dims(self._timescale_over(steps), -1)
        return tuple(part * timescale for part in self._transition())

    def _by_response(self, steps, states):
        decay, gain = self._discretised(steps)
        angles, time = self._angles(steps), ops.shape(steps.inputs)[1]
        output = (2.0 * self.output_real, 2.0 * self.output_imag)
        response = exponential_sums(
            angles,
            multiply(output, tuple(ops.expand_dims(p, 1) for p in gain)),
            time,
        )
        response = with_feedthrough(
            response, ops.convert_to_tensor(self.feedthrough)
        )
        if states is None:
            return causal_convolution(steps.inputs, response, self.activation)
        outputs = causal_convolution(steps.inputs, response)
        # What remains of the states before, (features, batch, channels, ...).
        states = multiply(decay, tuple(states))
        factors = multiply(
            tuple(ops.expand_dims(part, 1) for part in output),
            tuple(
                ops.expand_dims(ops.transpose(part, (1, 0, 2)), 2)
                for part in states
            ),
        )
        features, _, channels, size = factors[0].shape
        remains = exponential_sums(
            angles,
            tuple(ops.reshape(part, (features, -1, size)) for part in factors),
            time,
        )
        remains = ops.reshape(remains, (features, -1, channels, time))
        outputs = outputs + ops.transpose(remains, (1, 3, 0, 2))
        return activate(self.activation, outputs)

    def _after(self, steps, states):
        """The states after the last step of each row."""
        inputs, lengths = steps.inputs, steps.lengths
        time = ops.shape(inputs)[1]
        if lengths is None:
            lengths = packing.full_lengths(inputs)
        lengths = ops.cast(lengths, "int32")[:, None]
        # u_k is k steps before the last one.
        back = ops.arange(0, time, dtype="int32")[None]
        inputs = packing.take(inputs, ops.maximum(lengths - 1 - back, 0))
        inputs = packing.zero_masked(inputs, back < lengths)
        angles = self._angles(steps)
        _, gain = self._discretised(steps)
        after = multiply(gain, sums_over_time(angles, inputs))
        if states is None:
            return list(after)
        count = ops.expand_dims(ops.cast(lengths, inputs.dtype), -1)
        real, imag = (count * part for part in angles)
        size = ops.exp(real)
        left = size * cos(imag), size * sin(imag)
        return list(multiply_add(left, tuple(states), after))

    def _by_groups(self, steps, states, wanted):
        """By a projected scan for a few features at a time.

        It stores no states, unlike one scan of the states of all features,
        and multiplies by few zeros, unlike one projected scan of all.
        """
        features, size = self.transition_imag.shape
        decay, gain = self._discretised(steps)
        scans = []
        for first in range(0, features, _GROUP):
            group = slice(first, min(first + _GROUP, features))
            count = group.stop - first
            one = ops.eye(count, dtype=decay[0].dtype)
            channels = count * size
            of_group = tuple(
                ops.reshape(part[group], (channels,)) for part in decay
            )
            if wanted.states and steps.lengths is not None:
                time = ops.shape(steps.inputs)[1]
                of_group = packing.hold_after(of_group, steps.lengths, time)
            scans.append(
                projected_scan(
                    of_group,
                    steps.inputs[..., group],
                    tuple(
                        ops.reshape(
                            ops.einsum("fg,gn->fgn", one, part[group]),
                            (count, channels),
                        )
                        for part in gain
                    ),
                    tuple(
                        ops.reshape(
                            ops.einsum("fg,gcn->fngc", one, 2.0 * part[group]),
                            (channels, -1),
                        )
                        for part in (self.output_real, self.output_imag)
                    ),
                    states
                    and tuple(
                        ops.reshape(part[:, group], (-1, channels))
                        for part in states
                    ),
                    reset_mask=steps.reset_mask,
                )
            )
        outputs, final = zip(*scans)
        outputs = ops.concatenate(outputs, axis=-1)
        outputs = ops.reshape(
            outputs,
            (*ops.shape(steps.inputs)[:2], features, self.channels),
        )
        outputs = read_out(
            self.activation,
            outputs,
            steps.inputs,
            ops.convert_to_tensor(self.feedthrough),
        )
        return outputs, _side_by_side(final, features, size)

    def _by_scan(self, steps, states):
        """By a scan whose steps differ in length.

        Behind the end of a row a step lasts no time, and keeps its state.
        """
        timescale = self._timescale_of(steps)
        # The gain's factor dt multiplies the inputs.
        outputs, final = diagonal_scan_irregular(
            tuple(
                ops.transpose(part * timescale[:, None])
                for part in self._transition()
            ),
            tuple(
                ops.transpose(2.0 * part, (1, 2, 0))
                for part in (self.output_real, self.output_imag)
            ),
            steps.time_deltas,
            ops.expand_dims(timescale * steps.inputs, 2),
            states and tuple(ops.swapaxes(part, 1, 2) for part in states),
            reset_mask=steps.reset_mask,
        )
        outputs = read_out(
            self.activation,
            ops.swapaxes(outputs, 2, 3),
            steps.inputs,
            ops.convert_to_tensor(self.feedthrough),
        )
        return outputs, [ops.swapaxes(part, 1, 2) for part in final]

    def _read_out(self, states, inputs):
        """activation(2 Re(C x) + D u), (..., features, channels)."""
        real, imag = (
            precision.einsum("...fn,fcn->...fc", part, kernel)
            for part, kernel in zip(
                states, (2.0 * self.output_real, 2.0 * self.output_imag)
            )
        )
        return read_out(self.activation, real - imag, inputs, self.feedthrough)

    # Single steps.

    def step_constants(self):
        return self._discretised(Steps(None))

    def run_step(self, step, states, constants=None):
        if constants is None or not step.is_plain:
            constants = self._discretised(step)
        decay, gain = constants
        inputs = ops.expand_dims(step.inputs, -1)
        entering = tuple(part * inputs for part in gain)
        states = multiply_add(decay, tuple(states), entering)
        return self._mix(self._read_out(states, step.inputs)), list(states)

    def get_config(self):
        return {
            **super().get_config(),
            "state_size": self.state_size,
            "initial_eigenvalues": self.initial_eigenvalues,
            "trainable_transition": self.trainable_transition,
        }


def _frequencies(start, size):
    """The imaginary parts of A at the start, (N / 2,)."""
    if start == "legs":
        return normal_part(size)[0].imag
    n = np.arange(size // 2)
    if start == "lin":
        return math.pi * n
    return size / math.pi * (size / (2 * n + 1) - 1)


def _side_by_side(finals, features, size):
    """The states (batch, features, size) of groups of features, two parts."""
    return [
        ops.reshape(ops.concatenate(parts, axis=-1), (-1, features, size))
        for parts in zip(*finals)
    ]
