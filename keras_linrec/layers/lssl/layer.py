"""LSSL: a continuous-time memory for every feature, discretised."""

import keras
from keras import ops

from keras_linrec import types
from keras_linrec.initializers import FanInNormal
from keras_linrec.initializers import HiPPO
from keras_linrec.layers.base.mixed_features import MixedFeatures
from keras_linrec.layers.base.sequence_layer import SequenceLayer
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.layers.base.timescaled import Timescaled
from keras_linrec.layers.for_signals import TimescalesForSignals
from keras_linrec.layers.lssl.conversion import StateSpaceConversion
from keras_linrec.layers.lssl.response import Systems
from keras_linrec.layers.lssl.response import respond
from keras_linrec.layers.lssl.response import respond_to_step
from keras_linrec.layers.lssl.stability import SpectrumOfTransition
from keras_linrec.layers.lssl.stability import add_transition
from keras_linrec.layers.lssl.stability import require_stable
from keras_linrec.layers.lssl.stability import stable_constraints
from keras_linrec.validation import require_between
from keras_linrec.validation import require_bools
from keras_linrec.validation import require_count


@keras.saving.register_keras_serializable("keras_linrec")
class LSSL(
    StateSpaceConversion,
    TimescalesForSignals,
    SpectrumOfTransition,
    Timescaled,
    MixedFeatures,
    SequenceLayer,
):
    """Linear state-space layer - Gu et al. 2021.

    Each input feature u drives a system of its own,

        x'(s) = A x(s) + B u(s)
        y(s)  = C x(s) + D u(s),

    where all features share A = P (D' + T^-1) Q of theorem 11 (P, D', Q
    diagonal, T tridiagonal) and B, and each has a timescale dt, C and D of its
    own. The generalised bilinear transform makes it

        x_t = Abar x_{t-1} + Bbar u_t
        Abar = (I - alpha dt A)^-1 (I + (1 - alpha) dt A)
        Bbar = (I - alpha dt A)^-1 dt B

    and the layer's output is activation(C x_t + D u_t) @ kernel + bias, with
    the channels of all features side by side. Whole sequences are computed as
    a convolution with C Abar^k Bbar, steps and packed rows by the recurrence.
    Outputs before an outlier, a NaN or an infinity change by at most 1e-6 of
    their largest.

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
    | `bias` | (units,) | of the mixing |

    Differences from the paper: all features share one B, where the paper gives
    each its own (section 3). From the authors' code: here all features share
    one A, where theirs may have one each; and here the optimizer's learning
    rate applies to A and dt, where theirs have smaller rates (1e-4 and 1e-3).
    `keras_linrec.optimizers.ParameterGroups` sets such rates.

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        state_size: integer, N. Defaults to 64.
        channels: integer, the outputs of each feature's system. Defaults to 1.
        measure: which past A and B remember at first: `"legs"` (all of it),
            `"legt"` (a window of 1 / dt steps), `"lagt"` (exponentially
            decaying), or another name or `HiPPO` initializer of
            `keras_linrec.initializers` whose A has the form above. Defaults to
            `"legs"`.
        trainable_transition: whether A and B are trained. Defaults to `True`;
            the paper's LSSL-fixed takes `False` here and in
            `trainable_timescale`.
        trainable_timescale: whether dt is trained. Defaults to `True`.
        dt_min, dt_max: floats, 0 < dt_min < dt_max, the range of the initial
            timescales, log-uniform in it. For sequences of L steps choose
            dt_min < 1 / L < dt_max. Default to 1e-3 and 1e-1.
        alpha: float in [0, 1], the discretisation: 0 is Euler's method, 1
            backward Euler, 0.5 the bilinear one, which keeps a stable system
            stable. Defaults to 0.5.
        stable_transition: whether A is dissipative, and so stable, whatever
            its weights are: the layer computes with weights within the bounds
            of `keras_linrec.constraints`. Needs an `alpha` of at least 0.5.
            Defaults to `False`: training may make the system unstable, which
            `spectrum` shows.
        step_rescale: positive float, multiplies dt. A model trained at one
            sampling rate takes a signal of half the rate with 2. It may be
            set between calls, on compiled models too. Defaults to 1.
        activation: name or function, between the systems and the mixing.
            Defaults to `"gelu"`.
        use_bias: whether the mixing has a bias. Defaults to `True`.
        kernel_initializer: for `kernel`. Defaults to `"glorot_uniform"`.
        bias_initializer: for `bias`. Defaults to `"zeros"`.
        output_initializer: for C. Defaults to `None`, normal numbers of
            variance 1 / N.
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
        initial_state: list of one tensor (batch, features, N), x before the
            first step. Defaults to `None`: zeros, or the state of the previous
            batch if `stateful`.
        time_deltas: float tensor, (batch, time), the length of each step in
            multiples of dt: for irregular sampling, and for missing steps,
            whose time is added to the next one. Zero leaves the state as it
            is. Numbers that are negative or not finite are refused in an eager
            call on a CPU, unless the step is masked; a compiled program does
            not check them, and its outputs are then meaningless. The
            recurrence runs step by step, at O(N) for each step and feature.
            Defaults to `None`, all 1.
        step_rescale: positive number or scalar tensor that multiplies dt in
            this call, in addition to the layer's own; checked like
            `time_deltas`. Defaults to `None`, 1.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final state, float32
        whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction, and for
            wrong tensors in a call.
        If a system's response exceeds 1e30 or is NaN, a call raises
        TensorFlow's or PyTorch's error (on a GPU, PyTorch's leaves the device
        unusable); under JAX it warns. Programs that XLA compiles for
        TensorFlow are silent.

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
        units: int | None = None,
        state_size: int = 64,
        channels: int = 1,
        measure: types.Measure = "legs",
        trainable_transition: bool = True,
        trainable_timescale: bool = True,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        alpha: float = 0.5,
        stable_transition: bool = False,
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
        output_initializer = output_initializer or FanInNormal(axis=-1)
        super().__init__(**for_bases(LSSL, locals()))
        require_bools(
            trainable_transition=trainable_transition,
            stable_transition=stable_transition,
        )
        require_count("state_size", state_size)
        if isinstance(measure, dict) and measure:
            measure = keras.initializers.deserialize(measure)
        if not isinstance(measure, HiPPO):
            measure = HiPPO(measure)
        start = measure.structured(state_size)
        require_between("alpha", alpha, 0, 1)
        self._bounds = {}
        if stable_transition:
            require_stable(start, alpha, measure)
            self._bounds = stable_constraints(start)
        self.state_size = state_size
        self.measure = measure
        self.trainable_transition = trainable_transition
        self.alpha = alpha
        self.stable_transition = stable_transition

    def state_shapes_of(self, features):
        self._require_known_features(features)
        return [(features, self.state_size)]

    def build_unit(self, features):
        self._add_log_timescale((features,))
        add_transition(self, self._bounds)
        self.output_matrix = self.add_parameter(
            "output_matrix",
            (features, self.channels, self.state_size),
            self.output_initializer,
        )
        self._add_mixing(features)

    def _systems(self, scale=None, transition=None):
        return Systems(
            transition or self._transition(),
            self._timescale(scale),
            ops.convert_to_tensor(self.output_matrix),
            ops.convert_to_tensor(self.feedthrough),
            self.activation,
            self.alpha,
            self.name,
        )

    # Whole sequences and single steps.

    def run(self, steps, states, wanted):
        outputs, final_state = respond(
            self._systems(steps.options.get("step_rescale")),
            steps,
            None if states is None else states[0],
            wanted.states,
        )
        if not wanted.all_outputs:
            outputs = steps.last_of(outputs)
        outputs = self._mix(outputs)
        return outputs, None if final_state is None else [final_state]

    def step_constants(self):
        """A, B and the factors of steps of length 1.

        Other steps are factorised anew.
        """
        systems = self._systems()
        return systems.transition, systems.factors()

    def run_step(self, step, states, constants=None):
        transition, factors = constants or (None, None)
        step_rescale = step.options.get("step_rescale")
        systems = self._systems(step_rescale, transition)
        if step.time_deltas is not None:
            time_deltas = ops.expand_dims(step.time_deltas, -1)
            systems = systems._replace(
                timescale=time_deltas * systems.timescale
            )
        if not step.is_plain:
            factors = None
        outputs, state = respond_to_step(
            systems, step.inputs, states[0], factors
        )
        return self._mix(outputs), [state]

    def _measure_config(self):
        """The measure by its name, if it has no parameters."""
        if self.measure.parameters:
            return keras.initializers.serialize(self.measure)
        return self.measure.measure

    def get_config(self):
        return {
            **super().get_config(),
            "state_size": self.state_size,
            "measure": self._measure_config(),
            "trainable_transition": self.trainable_transition,
            "alpha": self.alpha,
            "stable_transition": self.stable_transition,
        }
