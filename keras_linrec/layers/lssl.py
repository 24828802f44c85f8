"""LSSL: a continuous-time memory for every feature, discretised."""

import math

import keras
from keras import ops

from keras_linrec import activations
from keras_linrec.initializers import FanInNormal
from keras_linrec.initializers import HiPPO
from keras_linrec.layers.cached_response import build_cache
from keras_linrec.layers.lssl_stability import TRANSITION
from keras_linrec.layers.lssl_stability import require_stable
from keras_linrec.layers.lssl_stability import spectrum_of
from keras_linrec.layers.lssl_stability import stable_constraints
from keras_linrec.layers.precise_layer import serialized
from keras_linrec.layers.sequence_layer import SequenceLayer
from keras_linrec.ops import structured_step
from keras_linrec.ops import transition_powers
from keras_linrec.ops.causal_convolution import causal_convolution
from keras_linrec.ops.check_bounded import require_bounded
from keras_linrec.ops.discretization import discretise
from keras_linrec.ops.hippo import StructuredTransition
from keras_linrec.ops.impulse_response import impulse_response
from keras_linrec.ops.packed_response import packed_powers
from keras_linrec.ops.packed_response import packed_response
from keras_linrec.ops.stepwise_response import stepwise_response
from keras_linrec.validation import require_between
from keras_linrec.validation import require_count


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
            `"legt"` (a window of 1 / dt steps), `"lagt"` (exponentially
            decaying) or another name or `HiPPO` initializer of
            `keras_linrec.initializers`, if its A has the form above.
            Defaults to `"legs"`.
        trainable_transition: whether A and B are trained. Defaults to `True`;
            the paper's LSSL-fixed takes `False` here and in
            `trainable_timescale`.
        trainable_timescale: whether dt is trained. Defaults to `True`.
        dt_min, dt_max: floats, 0 < dt_min < dt_max, the range of the initial
            time_deltas, log-uniform in it. A sequence of L steps wants 1 / L
            in the range. Default to 1e-3 and 1e-1.
        alpha: float in [0, 1], the discretisation: 0 is Euler's method, 1
            backward Euler, 0.5 the bilinear one, which keeps a stable system
            stable. Defaults to 0.5.
        stable_transition: whether constraints keep A dissipative, and so
            stable, where Keras' optimizers train it: see
            `keras_linrec.constraints`. Needs an `alpha` of at least 0.5.
            Defaults to `False`: training may make the system unstable, which
            `spectrum` shows.
        step_rescale: positive float, multiplies dt. A model trained at one
            sampling rate takes a signal of half the rate with 2. It may be
            set between calls, on compiled models too. Defaults to 1.
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
        time_deltas: float tensor, (batch, time), how long each step lasts, in
            multiples of dt: for irregular sampling, and for steps that are
            missing, whose time the next one takes. Zero leaves the state as
            it is; negative numbers have no meaning. The recurrence then runs
            step by step, at O(N) a step and feature. Defaults to `None`, all
            1.
        step_rescale: positive number or scalar tensor that multiplies dt
            in this call, beside the layer's own. Defaults to `None`, 1.
        reset_mask: boolean tensor, (batch, time), true where a sequence
            begins: the states are zero before that step, so that several
            sequences share a row. Defaults to `None`.

    A layer whose A and dt are not trained keeps what follows from these, up
    to 256 MB, as long as they stay as they are. `variables` (and PyTorch's
    `state_dict`) hold it, `weights` and files do not.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final state, float32
        whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction, and for
            time_deltas of a wrong shape.
        Where the response of a system grows beyond 1e30, or is NaN, a call
        raises TensorFlow's or PyTorch's error (on a GPU, PyTorch's ends the
        use of the device); under JAX it warns. Programs that XLA compiles for
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
        units=None,
        state_size=64,
        channels=1,
        measure="legs",
        trainable_transition=True,
        trainable_timescale=True,
        dt_min=1e-3,
        dt_max=1e-1,
        alpha=0.5,
        stable_transition=False,
        step_rescale=1.0,
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
        if isinstance(measure, dict):
            measure = keras.initializers.deserialize(measure)
        if not isinstance(measure, HiPPO):
            measure = HiPPO(measure)
        start = measure.structured(state_size)
        require_between("dt_min", dt_min, 0, math.inf, "()")
        require_between("dt_max", dt_max, dt_min, math.inf, "()")
        require_between("alpha", alpha, 0, 1)
        require_between("step_rescale", step_rescale, 0, math.inf, "()")
        if stable_transition:
            require_stable(start, alpha, measure)
        self.state_size = state_size
        self.channels = channels
        self.measure = measure
        self.trainable_transition = trainable_transition
        self.trainable_timescale = trainable_timescale
        self.dt_min = dt_min
        self.dt_max = dt_max
        self.alpha = alpha
        self.stable_transition = stable_transition
        self._timescale_scale = float(step_rescale)
        self._step_rescale_variable = None
        self._cache = None
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

    def build(
        self,
        sequences_shape,
        initial_state_shape=None,
        time_deltas_shape=None,
        step_rescale_shape=None,
    ):
        super().build(sequences_shape, initial_state_shape)
        self._step_rescale_variable = self.add_parameter(
            "step_rescale",
            (),
            keras.initializers.Constant(self._timescale_scale),
            trainable=False,
        )
        learns = self.trainable_transition or self.trainable_timescale
        if not (learns or self.wants_states):
            self._cache = build_cache(self, *sequences_shape[1:])

    def run_time_variables(self):
        scale = self._step_rescale_variable
        return [
            *super().run_time_variables(),
            *([] if scale is None else [scale]),
            *(self._cache.variables if self._cache else []),
        ]

    def build_unit(self, features):
        self.log_timescale = self.add_parameter(
            "log_timescale",
            (features,),
            keras.initializers.RandomUniform(
                math.log(self.dt_min), math.log(self.dt_max)
            ),
            trainable=self.trainable_timescale,
        )
        start = self.measure.structured(self.state_size)
        constraints = (
            stable_constraints(start) if self.stable_transition else {}
        )
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
                constraint=constraints.get(name),
            )
            for name, value in zip(TRANSITION, start)
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

    # The timescale, and calls that say more about it.

    @property
    def step_rescale(self):
        """What multiplies dt: a float, which may be set at any time."""
        return self._timescale_scale

    @step_rescale.setter
    def step_rescale(self, value):
        require_between("step_rescale", value, 0, math.inf, "()")
        self._timescale_scale = float(value)
        if self._step_rescale_variable is not None:
            self._step_rescale_variable.assign(self._timescale_scale)

    def call(
        self,
        sequences,
        initial_state=None,
        mask=None,
        training=False,
        time_deltas=None,
        step_rescale=None,
        reset_mask=None,
        sequences_mask=None,
    ):
        return self.call_unit(
            sequences,
            initial_state,
            mask,
            training,
            reset_mask,
            sequences_mask,
            time_deltas,
            step_rescale=step_rescale,
        )

    def _transition(self):
        return StructuredTransition(
            *(ops.convert_to_tensor(getattr(self, name)) for name in TRANSITION)
        )

    def _timescale(self, scale):
        """dt of every feature."""
        timescale = ops.exp(self.log_timescale) * self._step_rescale_variable
        if scale is None:
            return timescale
        if isinstance(scale, (int, float)):
            require_between("step_rescale", scale, 0, math.inf, "()")
        scale = ops.cast(scale, self.recurrence_dtype)
        if len(scale.shape):
            raise ValueError(
                "`step_rescale` should be a number or a scalar tensor. "
                f"Received: step_rescale.shape={tuple(scale.shape)}"
            )
        return timescale * scale

    # Whole sequences.

    def run(
        self,
        sequences,
        states,
        lengths,
        wants_states,
        resets=None,
        time_deltas=None,
        step_rescale=None,
    ):
        timescale = self._timescale(step_rescale)
        if time_deltas is not None:
            outputs, states = self._run_varying(
                sequences,
                states,
                # An index of `None` costs TensorFlow a copy for the gradient.
                ops.expand_dims(time_deltas, -1) * timescale,
                resets,
            )
        elif _is_symbol(ops.shape(sequences)[1]):
            outputs, states = self._run_steps(
                sequences, states, lengths, timescale, resets
            )
        elif resets is not None:
            outputs, states = self._run_packed(
                sequences, states, lengths, timescale, resets
            )
        else:
            # One that comes with the call may want a gradient.
            constant = step_rescale is None
            outputs, states = self._run_even(
                sequences, states, lengths, wants_states, timescale, constant
            )
        outputs = outputs + ops.expand_dims(sequences, -1) * self.feedthrough
        return self._mix(outputs), states

    def _run_even(
        self, inputs, states, lengths, wants_states, timescale, constant
    ):
        """C x_t by convolution with the systems' impulse response."""
        transition = self._transition()
        output_matrix = ops.convert_to_tensor(self.output_matrix)
        time = ops.shape(inputs)[1]
        powers = None
        if states is None and not wants_states:
            response = self._response(transition, timescale, time, constant)
        else:
            delta, input_vector = discretise(transition, timescale, self.alpha)
            powers = transition_powers.TransitionPowers(delta, time)
            response = transition_powers.chunked_response(
                powers, input_vector, output_matrix
            )
        response = self._require_bounded(response)
        outputs = causal_convolution(inputs, response)
        if states is not None:
            free = transition_powers.free_response(
                powers, states[0], output_matrix
            )
            outputs = outputs + ops.transpose(free, (0, 3, 1, 2))
        if not wants_states:
            return outputs, None
        batch = ops.shape(inputs)[0]
        if states is None:
            states = self.get_initial_state(batch)
        if lengths is None:
            lengths = ops.full((batch,), time, dtype="int32")
        final_states = transition_powers.final_states(
            powers, input_vector, inputs, states[0], lengths
        )
        return outputs, [final_states]

    def _run_steps(self, inputs, states, lengths, timescale, resets):
        """C x_t one step after another, for a length that is a symbol."""
        if keras.backend.backend() == "torch":
            raise ValueError(
                f"PyTorch exports the layer '{self.name}' (LSSL) for one "
                "number of steps only. Give `model.export` an "
                "`input_signature` with a fixed time, export what "
                "`keras_linrec.export_step(model)` returns, or export a "
                "SavedModel under TensorFlow or JAX. Received: "
                f"{ops.shape(inputs)[1]} steps"
            )
        delta, input_vector = discretise(
            self._transition(), timescale, self.alpha
        )
        if states is None:
            states = self.get_initial_state(ops.shape(inputs)[0])
        outputs, final_states = stepwise_response(
            delta,
            input_vector,
            ops.convert_to_tensor(self.output_matrix),
            inputs,
            states[0],
            lengths,
            resets,
        )
        return outputs, [final_states]

    def _run_packed(self, inputs, states, lengths, timescale, resets):
        """C x_t of sequences that share their rows."""
        batch, time, _ = ops.shape(inputs)
        delta, input_vector = discretise(
            self._transition(), timescale, self.alpha
        )
        powers = packed_powers(self._require_bounded(delta), time)
        powers.inter_chunk[-1] = self._require_bounded(powers.inter_chunk[-1])
        if states is None:
            states = self.get_initial_state(batch)
        if lengths is None:
            lengths = ops.full((batch,), time, dtype="int32")
        outputs, final_states = packed_response(
            powers,
            input_vector,
            ops.convert_to_tensor(self.output_matrix),
            inputs,
            states[0],
            resets,
            lengths,
        )
        return outputs, [final_states]

    def _response(self, transition, timescale, time, constant):
        output_matrix = ops.convert_to_tensor(self.output_matrix)
        if self._cache and constant and self._cache.reaches(time):
            return self._cache.response(
                transition, timescale, output_matrix, time
            )
        return impulse_response(
            transition, timescale, output_matrix, time, self.alpha
        )

    def _run_varying(self, inputs, states, time_deltas, resets):
        """C x_t step by step, for steps that differ in length."""
        if states is None:
            states = self.get_initial_state(ops.shape(inputs)[0])
        outputs, state = structured_step.varying_response(
            self._transition(),
            time_deltas,
            inputs,
            states[0],
            ops.convert_to_tensor(self.output_matrix),
            self.alpha,
            resets,
        )
        return outputs, [self._require_bounded(state)]

    def _require_bounded(self, tensor):
        return require_bounded(
            tensor,
            f"Layer '{self.name}' grows beyond all bounds, or is NaN: its "
            "inputs or weights may be, or its systems are unstable. "
            "`spectrum()` shows the latter, and `stable_transition=True` "
            "keeps them from becoming so.",
        )

    # Single steps.

    def step_constants(self):
        """The factors of steps as long as the layer's own time_deltas.

        Steps of another length factorise anew.
        """
        return self._factors(self._transition(), self._timescale(None))

    def _factors(self, transition, timescale):
        return structured_step.factorise(transition, timescale, self.alpha)

    def run_step(
        self,
        inputs,
        states,
        constants=None,
        time_deltas=None,
        step_rescale=None,
    ):
        timescale = self._timescale(step_rescale)
        if time_deltas is not None:
            timescale = ops.expand_dims(time_deltas, -1) * timescale
        transition = self._transition()
        is_own = time_deltas is None and step_rescale is None
        factors = constants if is_own else None
        state = structured_step.step(
            transition,
            factors or self._factors(transition, timescale),
            timescale,
            inputs,
            ops.transpose(states[0], (0, 2, 1)),
        )
        state = ops.transpose(state, (0, 2, 1))
        outputs = ops.einsum("fcn,bfn->bfc", self.output_matrix, state)
        outputs = outputs + inputs[:, :, None] * self.feedthrough
        return self._mix(outputs), [state]

    # Stability.

    def spectrum(self):
        """The eigenvalues of A and of Abar, computed in float64.

        Returns:
            A named tuple of `continuous`, complex (N,), those of A, which are
            stable if no real part is positive; `discrete`, complex (features,
            N), those of each feature's Abar, stable if no modulus is above 1;
            and `dissipative`, whether A is stable by the criterion of
            `keras_linrec.constraints`, up to the rounding of float32 weights.
            The eigenvalues of matrices such as LegS, far from normal, move
            much with the last digits of their entries: trust `dissipative`
            where it is true, and small positive real parts little.

        Raises:
            ValueError: if the layer is not built, or T is singular, so that
                there is no A.

        Example:

        >>> import keras_linrec
        >>> layer = keras_linrec.layers.LSSL(state_size=4)
        >>> layer.build((None, None, 1))
        >>> sorted(layer.spectrum().continuous.real.round(3).tolist())
        [-4.0, -3.0, -2.0, -1.0]
        """
        if not self.built:
            raise ValueError(
                f"Layer '{self.name}' has a spectrum once it is built. "
                "Received: built=False"
            )
        return spectrum_of(self)

    def _mix(self, outputs):
        """Activation and mixing of (..., features, channels)."""
        outputs = self.activation(outputs)
        shape = ops.shape(outputs)[:-2]
        outputs = ops.reshape(outputs, (*shape, self.kernel.shape[0]))
        outputs = outputs @ ops.convert_to_tensor(self.kernel)
        return outputs if self.bias is None else outputs + self.bias

    def _measure_config(self):
        """The measure by its name, if it has no parameters."""
        if self.measure.parameters:
            return keras.initializers.serialize(self.measure)
        return self.measure.measure

    def get_config(self):
        return {
            **super().get_config(),
            "state_size": self.state_size,
            "channels": self.channels,
            "measure": self._measure_config(),
            "trainable_transition": self.trainable_transition,
            "trainable_timescale": self.trainable_timescale,
            "dt_min": self.dt_min,
            "dt_max": self.dt_max,
            "alpha": self.alpha,
            "stable_transition": self.stable_transition,
            "step_rescale": self.step_rescale,
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            **serialized(
                self,
                "kernel_initializer",
                "bias_initializer",
                "output_initializer",
                "feedthrough_initializer",
                "kernel_regularizer",
                "bias_regularizer",
                "kernel_constraint",
                "bias_constraint",
            ),
        }


def _is_symbol(time):
    """Whether a length has no value: what JAX exports may be of any length."""
    return not (isinstance(time, int) or ops.is_tensor(time))


def _constant(value):
    def initializer(shape, dtype=None):
        return ops.cast(ops.convert_to_tensor(value), dtype)

    return initializer
