"""LDStack: a nonlinear recurrent network in parallel time."""

from typing import Literal
from typing import NamedTuple
from typing import get_args

import keras
import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.double_precision import activate
from keras_linrec.double_precision import mean
from keras_linrec.double_precision import product
from keras_linrec.layers.base.diagonal_layer import DiagonalSystem
from keras_linrec.layers.base.given_matrices import CONDITION_MAX
from keras_linrec.layers.base.given_matrices import warn_of_condition
from keras_linrec.layers.base.precise_layer import serialized
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.layers.ldstack.conversion import NetworkConversion
from keras_linrec.layers.linear_dynamical_system.layer import (
    LinearDynamicalSystem,
)
from keras_linrec.layers.linear_dynamical_system.layer import Mimo
from keras_linrec.ops import precision
from keras_linrec.ops.algebra.inverse import inverse
from keras_linrec.ops.masks import packing
from keras_linrec.ops.masks.steps import Steps
from keras_linrec.ops.masks.steps import Wanted
from keras_linrec.validation import require_between
from keras_linrec.validation import require_bools
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count

Basis = Literal["learned", "companion"]


@keras.saving.register_keras_serializable("keras_linrec")
class LDStack(NetworkConversion, LinearDynamicalSystem):
    """A nonlinear RNN as a stack of linear dynamical systems - Kaul 2020.

    The nonlinearity `activation` is inside the recurrence, not on the outputs.
    The layer approximates the recurrent network

        h_t = activation(A h_{t-1} + B x_t)
        y_t = C h_t + D x_t + bias

    by `depth` recurrences that are linear in time, and so run in parallel
    over it. Each is corrected by the difference between a linear and a
    nonlinear step of the recurrence before:

        a^i_t = A h^{i-1}_{t-1} + B x_t
        h^i_t = slope (A h^i_{t-1} + B x_t) + activation(a^i_t) - slope a^i_t

    The first has no correction; the outputs are those of the last. With
    mimo="concatenate" or "general" the first `depth` - 1 steps are those of
    the network, whatever the slope, and `to_rnn()` returns its matrices. The
    paper's slope is 1. Where the network is strongly nonlinear, with
    derivatives of the activation far from 1, the error then grows with the
    depth before it falls, and overflows for long sequences. With a slope of
    1/2 the error of a network with ||A|| <= 1 and derivatives in [0, 1] does
    not grow (the absolute weights of all ways through the stack sum to 1;
    with larger norms it still grows), and 16 layers match a SimpleRNN of 16
    units to 1e-3 for 64 steps (see `examples/nonlinear_stack.py`).

    A = S R S^-1, where R has the eigenvalues and S is the basis in which the
    activation applies to the state:

    - `basis="learned"`: S is a weight, any invertible matrix;
    - `basis="companion"`: A is in the transpose form of equation 2 (of each
      of the coupled systems, if there are several), given by the eigenvalues
      alone. S is then a Vandermonde matrix, which float32 represents up to
      some size. The relative error of the outputs is below 1e-4 (median of
      random draws) up to so many states in a system:

      | eigenvalues | states |
      |---|---|
      | roots of random polynomials, any parameterisation | 256 |
      | "unit", evenly spaced angles ("chebyshev") | 256 and more |
      | "unit", low-discrepancy angles | 128 |
      | "unit", uniform angles | 12 (worst of 7 draws: 1e-3) |
      | "hinge", Chebyshev nodes | 10 |

      A layer whose companion form starts with a worse condition number warns.
      In a learned basis the error is 3e-6, whatever the eigenvalues.

    The weights are those of `LinearDynamicalSystem`, in modal coordinates,
    and

    | weight | shape | meaning |
    |---|---|---|
    | `state_basis` | (state_size, state_size) | S, if "learned"; not \
trained in a linear layer |
    | `state_bias` | (state_size,) | b of activation(A h + B x + b), if \
`use_state_bias` |

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        state_size: integer n; a multiple of the features for
            mimo="concatenate". Defaults to `None`, the smallest multiple of
            the features from 32 on.
        depth: integer, the number of recurrences. Defaults to 2; 1 is a
            linear system, whatever the slope.
        activation: name or function, inside the recurrence. Defaults to
            `"elu"`. `"linear"` is a linear system of any depth.
        eigenvalues, mimo, projections: see `LinearDynamicalSystem`.
            With "average" each projection runs its own nonlinear stack; their
            mean is not the system of `to_rnn()`, however many there are.
        slope: float in (0, 1], the share of the recurrence that is linear in
            time. Defaults to 1, the paper's.
        basis: `"learned"` (the default) or `"companion"`.
        basis_initializer: for S. Defaults to `"orthogonal"`.
        use_state_bias: whether the state has a bias. Defaults to `False`.
        one_state: whether the layer has a single state, that of the network,
            instead of one for each recurrence. All recurrences then start
            from it. A sequence in parts is therefore closer to the network
            than the whole sequence is, and single steps equal it if the depth
            is 2 or more. Defaults to `False`.
        initial_eigenvalues, use_bias, kernel_initializer, output_initializer,
            feedthrough_initializer, bias_initializer, kernel_regularizer,
            bias_regularizer, kernel_constraint, bias_constraint: see
            `LinearDynamicalSystem`.
        dropout: float in [0, 1), the share of input features to drop during
            training, the same ones at every time step. Defaults to 0.
        seed: integer, the seed of the dropout and of the initial eigenvalues
            and projections. Defaults to `None`.
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
        initial_state: list of `depth` tensors (batch, state_size), the states
            h^i before the first step, in the coordinates of A; with "average"
            (batch, projections, state_size). One tensor if the stack is linear
            or has `one_state`. Defaults to `None`: zeros, or the states of the
            previous batch if `stateful`.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final states, float32
        whatever the policy.

    Raises:
        ValueError: at construction, for an argument out of its range; at
            build, if `state_size` is not a multiple of the features.

    Where S becomes singular in training, outputs are NaN, or PyTorch raises:
    see `keras_linrec.ops.algebra.inverse`.

    Reference:
        [Linear Dynamical Systems as a Core Computational Primitive](
        https://proceedings.neurips.cc/paper/2020/hash/
        c3581d2150ff68f3b33b22634b8adaea-Abstract.html).

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.LDStack(4, state_size=6, depth=3)
    >>> sequences = np.random.rand(2, 1000, 3).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 1000, 4)

    Its second step is that of the network:

    >>> a, b, c, d, bias = layer.to_rnn()
    >>> elu = lambda z: np.where(z > 0, z, np.expm1(z))
    >>> x = sequences[0]
    >>> h = elu(a @ elu(b @ x[0]) + b @ x[1])
    >>> y = keras.ops.convert_to_numpy(layer(sequences))[0, 1]
    >>> bool(np.allclose(c @ h + d @ x[1] + bias, y, atol=1e-4))
    True
    """

    def __init__(
        self,
        units: int | None = None,
        state_size: int | None = None,
        depth: int = 2,
        activation: types.Identifier = "elu",
        eigenvalues: types.Parameterization = "standard",
        mimo: Mimo = "concatenate",
        projections: int = 4,
        slope: float = 1.0,
        basis: Basis = "learned",
        basis_initializer: types.Identifier = "orthogonal",
        use_state_bias: bool = False,
        one_state: bool = False,
        initial_eigenvalues: types.InitialEigenvalues | None = None,
        use_bias: bool = True,
        kernel_initializer: types.Identifier = "orthogonal",
        output_initializer: types.Identifier = "glorot_normal",
        feedthrough_initializer: types.Identifier = None,
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
        super().__init__(**for_bases(LDStack, locals()))
        require_count("depth", depth)
        require_between("slope", slope, 0, 1, "(]")
        require_choice("basis", basis, get_args(Basis))
        require_bools(use_state_bias=use_state_bias, one_state=one_state)
        self.depth = depth
        self.slope = slope
        self.basis = basis
        self.basis_initializer = keras.initializers.get(basis_initializer)
        self.use_state_bias = use_state_bias
        self.one_state = one_state

    def _accept_activation(self, name, value):
        activation = super()._accept_activation(name, value)
        # A linear stack has one recurrence, and trains no basis.
        if self.built and self.depth > 1:
            was, is_now = (
                one is keras.activations.linear
                for one in (self.activation, activation)
            )
            if was != is_now:
                raise self._cannot_change(name, value)
        return activation

    @property
    def is_linear(self):
        return self.depth == 1 or self.activation is keras.activations.linear

    @property
    def _recurrences(self):
        """Their number: a linear stack is its first recurrence."""
        return 1 if self.is_linear else self.depth

    @property
    def _is_averaged(self):
        return self.mimo == "average" and self._recurrences > 1

    def state_shapes_of(self, features):
        shape = (self._num_states_of(features),)
        if self._is_averaged:
            shape = (self.projections, *shape)
        return [shape] * (1 if self.one_state else self._recurrences)

    def build_unit(self, features):
        super().build_unit(features)
        self.state_basis = self.state_bias = None
        if self.basis == "learned":
            self.state_basis = self.add_parameter(
                "state_basis",
                (self._num_states, self._num_states),
                self.basis_initializer,
                # A linear layer needs it only to report its states.
                trainable=self._recurrences > 1,
            )
        if self.use_state_bias:
            self.state_bias = self.add_parameter(
                "state_bias", (self._num_states,), "zeros"
            )

    def _check_eigenvalues(self, eigenvalues):
        if self.basis != "companion":
            return
        condition = max(map(_condition, eigenvalues))
        if not condition < CONDITION_MAX:
            warn_of_condition(
                f"The companion form of layer '{self.name}'", condition
            )

    def _bases(self, modal):
        """S^T and S^-T."""
        if self.basis == "companion":
            basis = modal.companion_basis()
            return tuple(
                _block_diagonal(ops.swapaxes(matrix, -1, -2))
                for matrix in (basis, inverse(basis))
            )
        basis = ops.transpose(ops.convert_to_tensor(self.state_basis))
        return basis, inverse(basis)

    def step_constants(self):
        modal = self._modal_form()
        return modal, self._bases(modal)

    def run_step(self, step, states, constants=None):
        last = Wanted(all_outputs=False, states=True)
        return self.run(step.with_time(), states, last, constants)

    def run(self, steps, states, wanted, constants=None):
        if not self._is_averaged:
            rows = self._linear_input_rows()
            return self._stack(steps, rows, states, wanted, constants)
        # Each projection becomes a row of the batch. Its input enters by B r,
        # as if the sequence were (r^T x) r.
        count = self.projections
        if states is not None:
            states = [ops.reshape(s, (-1, self._num_states)) for s in states]
        outputs, states = self._stack(
            steps.with_rows(self._projected(steps.inputs), count),
            self._input_rows(),
            states,
            wanted,
            constants,
        )
        outputs = ops.reshape(outputs, (-1, count, *ops.shape(outputs)[1:]))
        shape = (-1, count, self._num_states)
        states = [ops.reshape(state, shape) for state in states]
        direct = steps.inputs
        if not wanted.all_outputs:
            direct = steps.last_of(direct)
        direct = product(direct, ops.convert_to_tensor(self.feedthrough))
        return mean(outputs, axis=1) + direct, states

    def _projected(self, sequences):
        """(r^T x) r of every projection, as rows of a larger batch."""
        rows = ops.convert_to_tensor(self.projection)
        along = product(sequences, ops.transpose(rows))
        along = ops.transpose(along, (0, 2, 1))
        return ops.reshape(
            ops.expand_dims(along, -1) * rows[:, None],
            (-1, ops.shape(sequences)[1], sequences.shape[2]),
        )

    def _stack(self, steps, rows, states, wanted, constants):
        """The recurrences one after another; `rows` is B^T."""
        needs_basis = (
            self._recurrences > 1
            or self.state_bias is not None
            or states is not None
            or wanted.states
        )
        shared = self._shared(
            steps, rows, wanted.states, needs_basis, constants
        )
        if self.one_state and states is not None:
            states = [*states] * self._recurrences
        steps, rows = shared.steps, shared.rows
        correction, final_states = None, []
        for index in range(self._recurrences - 1):
            system = DiagonalSystem(
                shared.decay,
                shared.modal.into_channels(rows),
                shared.modal.read_out(shared.basis),
            )
            state = None if states is None else states[index]
            outputs, state = _run(shared, system, steps, state, True)
            final_states.append(state)
            correction = self._correction(outputs, correction)
            if shared.runs is not None:
                correction = ops.where(shared.runs, correction, 0.0)
            inputs = [shared.steps.inputs, correction]
            steps = steps._replace(inputs=ops.concatenate(inputs, axis=-1))
            if index == 0:
                rows = ops.concatenate([rows, shared.inverse_basis], axis=0)
        system = DiagonalSystem(
            shared.decay,
            shared.modal.into_channels(rows),
            shared.modal.read_out(ops.convert_to_tensor(self.output_kernel)),
            None
            if self._is_averaged
            else ops.convert_to_tensor(self.feedthrough),
        )
        state = None if states is None else states[-1]
        outputs, state = _run(shared, system, steps, state, wanted.all_outputs)
        final_states = [state] if self.one_state else [*final_states, state]
        return self._with_bias(outputs), final_states

    def _shared(self, steps, rows, stops, needs_basis, constants):
        """The `_Shared` of a call; `stops` keeps states from a row's end on."""
        modal, bases = constants or (self._modal_form(), None)
        basis = inverse_basis = runs = None
        if needs_basis:
            basis, inverse_basis = bases or self._bases(modal)
        share = 1.0 if self._recurrences == 1 else self.slope
        decay = tuple(share * part for part in modal.decay)
        if stops and steps.lengths is not None:
            time = ops.shape(steps.inputs)[1]
            runs = packing.mask_of_lengths(steps.lengths, time)
            runs = ops.expand_dims(runs, -1)
            decay = packing.hold_after(decay, steps.lengths, time)
        if self.state_bias is not None:
            inputs = self._with_ones(steps.inputs, runs)
            steps = steps._replace(inputs=inputs)
            bias = ops.convert_to_tensor(self.state_bias)[None] @ inverse_basis
            rows = ops.concatenate([rows, bias], axis=0)
        return _Shared(
            modal, decay, steps, share * rows, basis, inverse_basis, runs
        )

    def _correction(self, states, correction):
        """activation(a) - slope a; slope a is the states uncorrected."""
        if correction is not None:
            states = states - correction
        if self.slope == 1.0:
            return activate(self.activation, states) - states
        scaled = states * (1.0 / self.slope)
        return activate(self.activation, scaled) - states

    def _with_ones(self, sequences, runs):
        ones = ops.ones_like(sequences[:, :, :1])
        if runs is not None:
            ones = ops.where(runs, ones, 0.0)
        return ops.concatenate([sequences, ones], axis=-1)

    def get_config(self):
        return {
            **super().get_config(),
            "depth": self.depth,
            "slope": self.slope,
            "basis": self.basis,
            "use_state_bias": self.use_state_bias,
            "one_state": self.one_state,
            **serialized(self, "basis_initializer"),
        }


def _block_diagonal(blocks):
    """(count, size, size) as one matrix (count * size, count * size)."""
    count, size, _ = blocks.shape
    identity = ops.eye(count, dtype=blocks.dtype)
    spread = blocks[:, :, None] * identity[:, None, :, None]
    return ops.reshape(spread, (count * size, count * size))


class _Shared(NamedTuple):
    """What the recurrences of a stack share in a call.

    Attributes:
        modal: the modal form of A.
        decay: that of every recurrence, which stops behind the end of a row.
        steps: `Steps`, whose inputs have ones for the bias.
        rows: slope B^T.
        basis, inverse_basis: S^T and S^-T, or `None` if nothing reads or gives
            a state.
        runs: boolean, (batch, time, 1), false behind the end of a row, or
            `None`.
    """

    modal: object
    decay: tuple
    steps: Steps
    rows: object
    basis: object
    inverse_basis: object
    runs: object


def _run(shared, system, steps, state, all_outputs):
    """A recurrence's outputs, and its final state in the coordinates of A."""
    if state is not None:
        state = shared.modal.into_channels(
            precision.matmul(state, shared.inverse_basis)
        )
    outputs, state = system.run(steps, state, all_outputs)
    state = shared.modal.from_channels(state)
    if shared.basis is not None:
        state = precision.matmul(state, shared.basis)
    return outputs, state


def _condition(eigenvalues):
    """The condition number of the companion form's unit eigenvectors."""
    vectors = np.vander(eigenvalues)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.linalg.cond(vectors / norms)
