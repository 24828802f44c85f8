"""LinOSS: forced harmonic oscillators, damped or not."""

import math
from typing import Literal
from typing import get_args

import keras
from keras import ops

from keras_linrec import types
from keras_linrec.double_precision import product
from keras_linrec.double_precision import sin
from keras_linrec.layers.base.diagonal_layer import DiagonalLayer
from keras_linrec.layers.base.diagonal_layer import fed_through
from keras_linrec.layers.base.precise_layer import uniform_over_fan_in
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.layers.base.timescaled import Timescaled
from keras_linrec.ops.check_bounded import require_bounded_rows
from keras_linrec.ops.masks.steps import Steps
from keras_linrec.ops.oscillators import oscillate
from keras_linrec.ops.oscillators import oscillator_scan
from keras_linrec.ops.oscillators import oscillator_scan_of_steps
from keras_linrec.ops.oscillators import oscillators
from keras_linrec.ops.oscillators import speeds_of
from keras_linrec.validation import require_between
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count
from keras_linrec.validation import require_ordered

Discretization = Literal["imex", "im"]


@keras.saving.register_keras_serializable("keras_linrec")
class LinOSS(Timescaled, DiagonalLayer):
    """Linear oscillatory state space layer - Rusch and Rus 2024.

    The layer is linear in its inputs and states, unless `activation` applies a
    nonlinearity to its outputs: put one between stacked layers. Its states are
    forced harmonic oscillators, which do not mix, with complex positions x and
    velocities z = x',

        z'(s) = -A x(s) - G z(s) + B u(s)
        y(s)  = Re(C x(s)) + D u(s).

    A step of length dt is implicit in z and explicit in x (IMEX),

        z_t = (z_{t-1} + dt (B u_t - A x_{t-1})) / (1 + dt G)
        x_t = x_{t-1} + dt z_t
        y_t = activation(Re(C x_t) + D u_t)

    and without damping, G = 0, conserves the oscillators' energy: nothing is
    forgotten. With `discretization="im"` it is implicit in both, which divides
    by 1 + dt^2 A instead, and an oscillator forgets the faster, the faster it
    is. All steps are computed in parallel where the kernel is parallel.

    | weight | shape | meaning |
    |---|---|---|
    | `log_timescale` | (state_size,) | log dt |
    | `stiffness` | (state_size,) | a, A = relu(a) within the bounds below |
    | `friction` | (state_size,) | g, G = relu(g), if `damping` |
    | `input_real`, `input_imag` | (features, state_size) | B^T |
    | `output_real`, `output_imag` | (state_size, units) | C^T |
    | `feedthrough` | (features,), or (features, units) if `units` is another \
number | D |

    An IMEX step oscillates while A is within (sqrt(1 + dt G) -+ 1)^2 / dt^2;
    outside, the layer computes with the nearer of the two, and the weight has
    no gradient. So no state grows by itself, whatever the weights: the
    eigenvalues of a step have the modulus 1 / sqrt(1 + dt G). That is D-LinOSS,
    and for G = 0 the condition of LinOSS, which its authors' code leaves to
    training.

    Differences from the authors' code: dt = exp(.), as in the other units of
    continuous systems, where theirs is a sigmoid, and starts log-uniform in
    the range of theirs, from sigmoid(0) to sigmoid(1). B u_t is the force of
    the step from t - 1 to t in the code and here.

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        state_size: integer, the number of oscillators. Defaults to 64.
        discretization: `"imex"` or `"im"`, see above. Defaults to `"imex"`.
        damping: whether there is a G, which is trained (D-LinOSS). Needs
            `"imex"`. Defaults to `False`.
        r_min, r_max: floats, 0 < r_min < r_max <= 1, with `damping` the range
            of the initial moduli of a step's eigenvalues, whose squares are
            uniform. Default to 0.9 and 1.
        theta_max: float in (0, pi], with `damping` the largest initial angle
            of the eigenvalues; they are uniform from 0. Defaults to pi.
            Without `damping`, A starts uniform in [0, 1].
        trainable_timescale: whether dt is trained. Defaults to `True`.
        dt_min, dt_max: floats, 0 < dt_min < dt_max, the range of the initial
            dt, log-uniform in it. Default to 0.5 and 0.73.
        step_rescale: positive float, multiplies dt. A model trained at one
            sampling rate takes a signal of half the rate with 2, as far as
            oscillations are slow compared with dt. It may be set between
            calls, on compiled models too. Defaults to 1.
        activation: name or function, applied to the outputs. Defaults to
            `None`, no activation.
        kernel_initializer: for the real and the imaginary parts of B and C.
            Defaults to `None`, uniform numbers up to 1 / sqrt(fan_in).
        feedthrough_initializer: for D. Defaults to `None`, normal numbers that
            keep the variance.
        kernel_regularizer, kernel_constraint: for the real and the imaginary
            parts of B and C. Default to `None`.
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
        initial_state: list of four tensors (batch, state_size): the real and
            the imaginary part of x, and those of z, before the first step.
            Defaults to `None`: zeros, or the state of the previous batch if
            `stateful`.
        time_deltas: float tensor, (batch, time), the length of each step in
            multiples of dt: for irregular sampling, and for missing steps,
            whose time is added to the next one. Zero leaves the state as it
            is. Numbers that are negative or not finite are refused in an eager
            call on a CPU, unless the step is masked; a compiled program does
            not check them, and its outputs are then meaningless. Each step is
            stable by itself; IMEX steps of changing length need not be
            together, and states that grow beyond 1e30 are an error, or a
            warning of a compiled JAX program. IM steps do not grow. Defaults to
            `None`, all 1.
        step_rescale: positive number or scalar tensor that multiplies dt in
            this call, in addition to the layer's own; checked like
            `time_deltas`. Defaults to `None`, 1.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the four parts of the final
        state, float32 whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction, and for
            wrong tensors in a call.

    Reference:
        [Oscillatory State-Space Models](https://arxiv.org/abs/2410.03943),
        section 2, and [Learning to Dissipate Energy in Oscillatory State-Space
        Models](https://arxiv.org/abs/2505.12171) for `damping`.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.LinOSS(4, state_size=16)
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
        discretization: Discretization = "imex",
        damping: bool = False,
        r_min: float = 0.9,
        r_max: float = 1.0,
        theta_max: float = math.pi,
        trainable_timescale: bool = True,
        dt_min: float = 0.5,
        dt_max: float = 0.73,
        step_rescale: float = 1.0,
        activation: types.Identifier = None,
        kernel_initializer: types.Identifier = None,
        feedthrough_initializer: types.Identifier = None,
        kernel_regularizer: types.Identifier = None,
        kernel_constraint: types.Identifier = None,
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
        super().__init__(**for_bases(LinOSS, locals()))
        require_count("state_size", state_size)
        require_choice(
            "discretization", discretization, get_args(Discretization)
        )
        require_bool("damping", damping)
        if damping and discretization != "imex":
            raise ValueError(
                "`damping` should be False with another discretization than "
                "'imex'. Received: damping=True, "
                f"discretization={discretization}"
            )
        require_between("r_min", r_min, 0, 1, "()")
        require_between("r_max", r_max, 0, 1, "(]")
        require_ordered("r_min", r_min, "r_max", r_max)
        require_between("theta_max", theta_max, 0, math.pi, "(]")
        self.state_size = state_size
        self.discretization = discretization
        self.damping = damping
        self.r_min = r_min
        self.r_max = r_max
        self.theta_max = theta_max

    def state_shapes_of(self, features):
        return [(self.state_size,)] * 4

    # Weights.

    def build_unit(self, features):
        size, units = self.state_size, self.output_units
        self._add_log_timescale((size,))
        self.friction = None
        stiffness = keras.initializers.RandomUniform(0.0, 1.0)
        if self.damping:
            self.friction = self.add_parameter(
                "friction", (size,), self._initial_friction
            )
            stiffness = self._initial_stiffness
        self.stiffness = self.add_parameter("stiffness", (size,), stiffness)
        self.input_real = self.add_kernel("input_real", (features, size))
        self.input_imag = self.add_kernel("input_imag", (features, size))
        self.output_real = self.add_kernel("output_real", (size, units))
        self.output_imag = self.add_kernel("output_imag", (size, units))
        self.feedthrough = self._add_feedthrough(features)

    def _initial_friction(self, shape, dtype=None):
        """G, where 1 / (1 + dt G) is uniform in [r_min^2, r_max^2]."""
        square = keras.initializers.RandomUniform(self.r_min**2, self.r_max**2)(
            shape, dtype
        )
        return (1.0 / square - 1.0) * ops.exp(-self.log_timescale)

    def _initial_stiffness(self, shape, dtype=None):
        """A, of uniform angles, for the G and dt that have been drawn."""
        angle = keras.initializers.RandomUniform(0.0, self.theta_max)
        sine = sin(0.5 * angle(shape, dtype))
        timescale = ops.exp(self.log_timescale)
        root = ops.sqrt(1.0 + timescale * self.friction)
        lowest = (root - 1.0) / timescale
        return lowest * lowest + 4.0 * root * (sine / timescale) ** 2

    # Whole sequences.

    def _system(self, steps):
        friction = self.friction
        if self.damping:
            friction = ops.convert_to_tensor(friction)
        return oscillators(
            ops.convert_to_tensor(self.stiffness),
            friction,
            self._timescale_over(steps),
            self.discretization,
        )

    def run(self, steps, states, wanted):
        system = self._system(steps)
        positions = speeds = None
        if states is not None:
            positions, speeds = tuple(states[:2]), tuple(states[2:])
        forces = self._forces(steps.inputs)
        if steps.time_deltas is not None:
            every, after = oscillator_scan_of_steps(
                system, forces, positions, speeds, steps.reset_mask
            )
            every = self._checked(every, steps, states)
        else:
            scale = system.factor * system.timescale * system.timescale
            every, after = oscillator_scan(
                system,
                tuple(scale * part for part in forces),
                positions,
                speeds,
                steps.reset_mask,
            )
        final_states = None
        if wanted.states:
            final = [steps.last_of(part) for part in (*every, *after)]
            if steps.time_deltas is None:
                final[2:] = speeds_of(system, final[:2], final[2:])
            before = states or [None] * len(final)
            final_states = [
                steps.unless_empty(*pair) for pair in zip(final, before)
            ]
        inputs = steps.inputs
        if not wanted.all_outputs:
            every = tuple(steps.last_of(part) for part in every)
            inputs = steps.last_of(inputs)
        return self._read_out(every, inputs), final_states

    def _checked(self, positions, steps, states):
        """The positions; complain where they grew without bound."""
        if self.discretization == "im":
            return positions
        message = (
            f"Layer '{self.name}' has states beyond 1e30 or NaN, though its "
            "inputs are finite: IMEX steps whose lengths differ excite its "
            'oscillators. With `discretization="im"` they do not grow; with '
            "a smaller `dt_max` or `step_rescale` they grow more slowly."
        )
        given = [steps.inputs, *(states or ())]
        return tuple(
            require_bounded_rows(part, message, given) for part in positions
        )

    def _forces(self, inputs):
        """B u, a pair."""
        return tuple(
            product(inputs, ops.convert_to_tensor(kernel))
            for kernel in (self.input_real, self.input_imag)
        )

    def _read_out(self, positions, inputs):
        real, imag = (
            product(part, ops.convert_to_tensor(kernel))
            for part, kernel in zip(
                positions, (self.output_real, self.output_imag)
            )
        )
        feedthrough = ops.convert_to_tensor(self.feedthrough)
        return self.finished(real - imag + fed_through(inputs, feedthrough))

    # Single steps.

    def step_constants(self):
        return self._system(Steps(None))

    def run_step(self, step, states, constants=None):
        system = constants
        if system is None or not step.is_plain:
            system = self._system(step)
        positions, speeds = oscillate(
            system, self._forces(step.inputs), states[:2], states[2:]
        )
        return self._read_out(positions, step.inputs), [*positions, *speeds]

    def get_config(self):
        return {
            **super().get_config(),
            "state_size": self.state_size,
            "discretization": self.discretization,
            "damping": self.damping,
            "r_min": self.r_min,
            "r_max": self.r_max,
            "theta_max": self.theta_max,
        }
