"""S5: one complex diagonal system in continuous time for all features."""

import math
from typing import Literal
from typing import get_args

import keras
from keras import ops

from keras_linrec import types
from keras_linrec.complex_pairs import multiply
from keras_linrec.layers.base.both_ways import BothWays
from keras_linrec.layers.base.diagonal_layer import DiagonalLayer
from keras_linrec.layers.base.diagonal_layer import DiagonalSystem
from keras_linrec.layers.base.diagonal_layer import IrregularSteps
from keras_linrec.layers.base.precise_layer import drawn_apart
from keras_linrec.layers.base.precise_layer import given_values
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.layers.base.timescaled import Timescaled
from keras_linrec.layers.for_signals import TimescalesForSignals
from keras_linrec.ops.continuous_diagonal import discretise
from keras_linrec.ops.masks.steps import Steps
from keras_linrec.ops.structured.hippo_normal import normal_part
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count

Discretization = Literal["zoh", "bilinear"]
Eigenvalues = Literal["stable", "clipped", "free"]
# The largest real part of "clipped" eigenvalues, as in the authors' code.
_LARGEST = -1e-4


@keras.saving.register_keras_serializable("keras_linrec")
class S5(TimescalesForSignals, BothWays, Timescaled, DiagonalLayer):
    """Simplified state space layer - Smith et al. 2022.

    The layer is linear in its inputs and states, unless `activation` applies a
    nonlinearity to its outputs: put one between stacked layers. Its states are
    complex numbers in continuous time, which do not mix,

        x'(s) = lambda x(s) + B u(s)
        y(s)  = 2 Re(C x(s)) + D u(s).

    Each state has a step length dt of its own. Zero-order hold, under which u
    is constant during a step, makes it

        x_t = exp(lambda dt) x_{t-1} + (exp(lambda dt) - 1) / lambda (B u_t)
        y_t = activation(2 Re(C x_t) + D u_t)

    The paper has twice as many states, in conjugate pairs, of which one each
    is computed. All steps are computed in parallel where the kernel is
    parallel.

    | weight | shape | meaning |
    |---|---|---|
    | `log_timescale` | (state_size,) | log dt |
    | `transition_log_real` | (state_size,) | log -Re(lambda); with other \
`eigenvalues` than `"stable"` it is `transition_real`, Re(lambda) |
    | `transition_imag` | (state_size,) | Im(lambda) |
    | `input_real`, `input_imag` | (features, state_size) | B^T |
    | `output_real`, `output_imag` | (state_size, units) | C^T |
    | `backward_output_real`, `backward_output_imag` | (state_size, units) | \
C^T of the second direction, if `bidirectional` |
    | `feedthrough` | (features,), or (features, units) if `units` is another \
number | D |

    It starts with `num_blocks` copies of the normal part of HiPPO-LegS of size
    n = 2 state_size / num_blocks, whose eigenvalues have the real part -1/2.
    With its eigenvectors V, B = V^* B0 and C = C0 V, where B0 and C0 are real:
    the layer starts as a real system of 2 state_size states.

    Differences from the authors' code: by default Re(lambda) = -exp(.), which
    cannot become positive; C0 is real, as in the paper, and not complex; and
    the variance of B0 is 1 / features, where theirs is 1 / (2 state_size).

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        state_size: integer, the number of complex states, half the paper's.
            Defaults to 64.
        num_blocks: integer, which divides `state_size`: the number of equal
            HiPPO matrices at the start. Defaults to 1.
        discretization: `"zoh"`, or `"bilinear"`: x_t = (1 + lambda dt / 2) /
            (1 - lambda dt / 2) x_{t-1} + dt / (1 - lambda dt / 2) B u_t.
            Defaults to `"zoh"`.
        eigenvalues: what keeps lambda stable: `"stable"` computes its real
            part as -exp(.), `"clipped"` as min(., -1e-4), as the authors' code
            does for sequences without an end (a real part beyond has no
            gradient), and `"free"` takes any, with which the states may grow.
            Defaults to `"stable"`.
        bidirectional: whether a second recurrence, with the same lambda, dt
            and B and a C of its own, reads the sequence from its end, and the
            two outputs are added. Such a layer can neither stream nor be
            stateful, has the states of both directions, and returns
            sequences. Defaults to `False`.
        trainable_timescale: whether dt is trained. Defaults to `True`.
        dt_min, dt_max: floats, 0 < dt_min < dt_max, the range of the initial
            dt, log-uniform in it. A state remembers about 2 / dt steps.
            Default to 1e-3 and 1e-1.
        step_rescale: positive float, multiplies dt. A model trained at one
            sampling rate takes a signal of half the rate with 2. It may be
            set between calls, on compiled models too. Defaults to 1.
        activation: name or function, applied to the outputs. Defaults to
            `None`, no activation.
        kernel_initializer: for B0 and C0. Defaults to `"lecun_normal"`.
        feedthrough_initializer: for D. Defaults to `None`, normal numbers that
            keep the variance.
        kernel_regularizer, kernel_constraint: for the real and the imaginary
            parts of B and C. Default to `None`.
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
        initial_state: list of two tensors (batch, state_size): the real and
            the imaginary part of x before the first step; if `bidirectional`,
            also those of the second direction, after the last step. Defaults
            to `None`: zeros, or the state of the previous batch if `stateful`.
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
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the parts of the final
        states, float32 whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction, and for
            wrong tensors in a call.

    Reference:
        [Simplified State Space Layers for Sequence Modeling](
        https://arxiv.org/abs/2208.04933), sections 3 and 6.3, appendix B.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.S5(4, state_size=16)
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
        num_blocks: int = 1,
        discretization: Discretization = "zoh",
        eigenvalues: Eigenvalues = "stable",
        bidirectional: bool = False,
        trainable_timescale: bool = True,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        step_rescale: float = 1.0,
        activation: types.Identifier = None,
        kernel_initializer: types.Identifier = "lecun_normal",
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
        super().__init__(**for_bases(S5, locals()))
        require_count("state_size", state_size)
        require_count("num_blocks", num_blocks)
        if state_size % num_blocks:
            raise ValueError(
                "`num_blocks` should divide `state_size`. Received: "
                f"num_blocks={num_blocks}, state_size={state_size}"
            )
        require_choice(
            "discretization", discretization, get_args(Discretization)
        )
        require_choice("eigenvalues", eigenvalues, get_args(Eigenvalues))
        self.state_size = state_size
        self.num_blocks = num_blocks
        self.discretization = discretization
        self.eigenvalues = eigenvalues

    def state_shapes_of(self, features):
        return [(self.state_size,)] * (4 if self.bidirectional else 2)

    # Weights.

    def build_unit(self, features):
        size, units = self.state_size, self.output_units
        eigenvalues, vectors = normal_part(2 * size // self.num_blocks)
        self._add_log_timescale((size,))
        if self.eigenvalues == "stable":
            self.transition_log_real = self.add_parameter(
                "transition_log_real",
                (size,),
                keras.initializers.Constant(math.log(0.5)),
            )
        else:
            self.transition_real = self.add_parameter(
                "transition_real", (size,), keras.initializers.Constant(-0.5)
            )
        self.transition_imag = self.add_parameter(
            "transition_imag",
            (size,),
            given_values(list(eigenvalues.imag) * self.num_blocks),
        )
        self.input_real, self.input_imag = self._add_pair(
            "input", (features, size), vectors.conj(), "fjn,np->fjp"
        )
        read_out = (size, units), vectors, "jnu,np->jpu"
        self.output_real, self.output_imag = self._add_pair("output", *read_out)
        if self.bidirectional:
            self.backward_output_real, self.backward_output_imag = (
                self._add_pair("backward_output", *read_out)
            )
        self.feedthrough = self._add_feedthrough(features)

    def _add_pair(self, name, shape, vectors, equation):
        """The two parts of a kernel: of real numbers, times eigenvectors.

        Args:
            name: string.
            shape: (features, state_size), or (state_size, units).
            vectors: complex array (n, n / 2).
            equation: of `einsum`, for the real numbers of each block.
        """
        axis = 1 if name == "input" else 0
        # Called twice, it draws the same numbers. They are not kept: Keras may
        # call it first where only shapes are known.
        draw = drawn_apart(self.kernel_initializer, name)

        def part(vectors):
            def initialize(shape, dtype=None):
                sizes, blocks = list(shape), list(shape)
                sizes[axis] = 2 * self.state_size
                blocks[axis : axis + 1] = [self.num_blocks, len(vectors)]
                numbers = ops.reshape(draw(sizes, dtype), blocks)
                factor = ops.convert_to_tensor(vectors.copy(), dtype=dtype)
                turned = ops.einsum(equation, numbers, factor)
                return ops.reshape(turned, shape)

            return initialize

        return tuple(
            self.add_kernel(f"{name}_{ending}", shape, part(numbers))
            for ending, numbers in (
                ("real", vectors.real),
                ("imag", vectors.imag),
            )
        )

    # Running.

    def diagonal_system(self):
        return self._system_over(Steps(None))

    def _system_over(self, steps):
        kernel = (
            ops.convert_to_tensor(self.input_real),
            ops.convert_to_tensor(self.input_imag),
        )
        eigenvalues = self._real(), ops.convert_to_tensor(self.transition_imag)
        timescale = self._timescale_of(steps)
        decay = irregular = None
        if steps.time_deltas is None:
            decay, gain = discretise(
                eigenvalues, timescale, self.discretization
            )
            kernel = multiply(gain, kernel)
        else:
            irregular = IrregularSteps(
                tuple(timescale * part for part in eigenvalues),
                steps.time_deltas,
                self.discretization,
            )
            kernel = tuple(timescale * part for part in kernel)
        return DiagonalSystem(
            decay=decay,
            input_kernel=kernel,
            output_kernel=(2.0 * self.output_real, 2.0 * self.output_imag),
            feedthrough=ops.convert_to_tensor(self.feedthrough),
            irregular=irregular,
        )

    def _real(self):
        """Re(lambda)."""
        if self.eigenvalues == "stable":
            return -ops.exp(self.transition_log_real)
        real = ops.convert_to_tensor(self.transition_real)
        if self.eigenvalues == "free":
            return real
        return ops.where(real < _LARGEST, real, _LARGEST)

    def _backward_system(self, forward):
        return forward._replace(
            output_kernel=(
                2.0 * self.backward_output_real,
                2.0 * self.backward_output_imag,
            ),
            feedthrough=None,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "state_size": self.state_size,
            "num_blocks": self.num_blocks,
            "discretization": self.discretization,
            "eigenvalues": self.eigenvalues,
        }
