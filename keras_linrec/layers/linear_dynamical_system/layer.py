"""LinearDynamicalSystem: a linear system, run on its eigenvalues."""

import random
from typing import Literal
from typing import get_args

import keras
import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.layers.base.diagonal_layer import DiagonalLayer
from keras_linrec.layers.base.diagonal_layer import DiagonalSystem
from keras_linrec.layers.base.precise_layer import given_values
from keras_linrec.layers.base.precise_layer import serialized
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.layers.linear_dynamical_system.conversion import (
    CanonicalConversion,
)
from keras_linrec.ops.algebra import eigenvalues as eigenvalues_ops
from keras_linrec.ops.algebra.modal_form import ModalForm
from keras_linrec.validation import property_if_known
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count

Mimo = Literal["concatenate", "average", "general"]
# The states of a system up to which angles drawn one by one stay apart.
_UNIFORM_MAX = 64
# A default `state_size` is the smallest multiple of the features from this on.
_STATES_MIN = 32


@keras.saving.register_keras_serializable("keras_linrec")
class LinearDynamicalSystem(CanonicalConversion, DiagonalLayer):
    """Linear dynamical system, given by its eigenvalues - Kaul 2020.

        s_t = A s_{t-1} + B x_t
        y_t = activation(C s_t + D x_t + bias)

    The layer is linear in its inputs and states, unless `activation` applies a
    nonlinearity to its outputs: put one between stacked layers. The outputs
    read the state after the step, where the paper's equation 1 reads the state
    before it.

    A single-input system that can reach all of its states is determined, up
    to a change of coordinates, by its n eigenvalues and its output matrix
    (proposition 1). Its modal coordinates follow s'_t = lambda * s'_{t-1} +
    x_t, in parallel over time where the kernel is parallel. For inputs of
    several features, `mimo` combines such systems:

    - `"concatenate"`: one system a feature, of n / features states each, and
      a square matrix E that mixes the features first (section 2.3, the
      Luenberger form with equal sizes and uncoupled blocks);
    - `"average"`: the mean of `projections` single-input systems, whose
      inputs are random projections r^T x, each with the input vector B r. The
      mean approaches the system without projections, and equals it where
      `projections` is a multiple of the features (the projections are
      orthogonal as far as there is room);
    - `"general"`: one system with any B, of any size.

    With n = `state_size`, F features, S systems (F for "concatenate", else 1)
    of k = n / S states:

    | weight | shape | meaning |
    |---|---|---|
    | `eigenvalue_real`, `eigenvalue_imag` | (S, ceil(k/2)), (S, k//2) | \
"standard": a, b of a pair a + ib, a - ib |
    | `angle` | (S, k//2) | "unit": b of exp(ib), exp(-ib) |
    | `eigenvalue_mean`, `eigenvalue_split` | (S, ceil(k/2)), (S, k//2) | \
"hinge": a + b, a - b, or a + ib, a - ib where b < 0 |
    | `log_magnitude`, `angle` | (S, ceil(k/2)), (S, k//2) | "log_polar": \
exp(a + ib), exp(a - ib) |
    | `log_magnitude`, `log_split` | (S, ceil(k/2)), (S, k//2) | \
"log_polar_hinge" |
    | `input_kernel` | (F, F), or (F, n) unless "concatenate" | E^T, or B^T \
in modal coordinates |
    | `projection` | (projections, F) | "average": the r^T, not trained |
    | `output_kernel` | (n, units) | C^T in modal coordinates |
    | `feedthrough` | (F, units) | D^T |
    | `bias` | (units,) | if `use_bias` |

    A pair of eigenvalues has two modal coordinates, neighbours: the real and
    the imaginary part of a complex number, or half the sum and half the
    difference of two real ones. For odd k the last eigenvalue is real; in
    "unit" it is 1.

    Eigenvalues start on the unit circle or inside it, and only "unit" keeps
    them there: where training moves one outside, states grow exponentially
    with time.

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        state_size: integer n; a multiple of the features for "concatenate".
            Defaults to `None`, the smallest multiple of the features from 32
            on.
        eigenvalues: how the eigenvalues are parameterised, `"standard"` (the
            default), `"unit"`, `"hinge"`, `"log_polar"` or
            `"log_polar_hinge"`; see
            `keras_linrec.ops.algebra.eigenvalues.spectrum`.
        mimo: `"concatenate"` (the default), `"average"` or `"general"`.
        projections: integer, of "average". Defaults to 4.
        initial_eigenvalues: `"polynomial"`, `"uniform"`,
            `"low_discrepancy"` or `"chebyshev"`, see
            `keras_linrec.ops.algebra.eigenvalues.initial_eigenvalues`; or a
            complex array (S, k), or (k,) for all systems. Defaults to `None`:
            the roots of random polynomials, and for "unit" uniform angles up to
            64 states a system and a low-discrepancy sequence beyond.
        activation: name or function, applied to the outputs. Defaults to
            `None`, no activation.
        use_bias: whether the outputs have a bias. Defaults to `True`.
        kernel_initializer: for `input_kernel`. Defaults to `"orthogonal"`.
        output_initializer: for `output_kernel`. Defaults to
            `"glorot_normal"`.
        feedthrough_initializer: for D. Defaults to `None`, normal numbers that
            keep the variance.
        bias_initializer: for `bias`. Defaults to `"zeros"`.
        kernel_regularizer, kernel_constraint: for `input_kernel` and
            `output_kernel`. Default to `None`.
        bias_regularizer, bias_constraint: for `bias`. Default to `None`.
        dropout: float in [0, 1), the share of input features to drop during
            training, the same ones at every time step. Defaults to 0.
        seed: integer, the seed of the dropout and of the initial eigenvalues
            and projections. Defaults to `None`.
        return_sequences: whether to return the outputs of all time steps or
            only the last, for which a sequence without a mask takes less
            memory. Defaults to `True`.
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
        initial_state: list of one tensor (batch, state_size), the modal
            coordinates before the first step. Defaults to `None`: zeros, or
            the state of the previous batch if `stateful`.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final state, float32
        whatever the policy.

    Raises:
        ValueError: at construction, for an argument out of its range; at
            build, if `state_size` is not a multiple of the features.

    Reference:
        [Linear Dynamical Systems as a Core Computational Primitive](
        https://proceedings.neurips.cc/paper/2020/hash/
        c3581d2150ff68f3b33b22634b8adaea-Abstract.html), sections 2 and 3.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.LinearDynamicalSystem(
    ...     4, state_size=12, eigenvalues="unit"
    ... )
    >>> sequences = np.random.rand(2, 1000, 3).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 1000, 4)
    >>> transition, *_ = layer.to_canonical()
    >>> bool(np.allclose(np.abs(np.linalg.eigvals(transition)), 1))
    True
    """

    def __init__(
        self,
        units: int | None = None,
        state_size: int | None = None,
        eigenvalues: types.Parameterization = "standard",
        mimo: Mimo = "concatenate",
        projections: int = 4,
        initial_eigenvalues: types.InitialEigenvalues | None = None,
        activation: types.Identifier = None,
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
        super().__init__(**for_bases(LinearDynamicalSystem, locals()))
        require_count("state_size", state_size, optional=True)
        eigenvalues_ops.require_parameterization(eigenvalues)
        require_choice("mimo", mimo, get_args(Mimo))
        require_bool("use_bias", use_bias)
        require_count("projections", projections)
        self.state_size = state_size
        self.eigenvalues = eigenvalues
        self.mimo = mimo
        self.projections = projections
        self.initial_eigenvalues = _checked_eigenvalues(
            initial_eigenvalues, eigenvalues
        )
        self.use_bias = use_bias
        self.output_initializer = keras.initializers.get(output_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    @property_if_known
    def _num_states(self):
        """The number of states; known once the number of features is."""
        return self._num_states_of(self.input_spec.axes.get(-1))

    def _num_states_of(self, features):
        """The number of states for a number of features."""
        if self.state_size is not None:
            return self.state_size
        if features is None:
            raise ValueError(
                f"Layer '{self.name}' has a multiple of the features as its "
                "number of states: give it a `state_size`, or build or call "
                "it before asking for its states. Received: state_size=None, "
                "built=False"
            )
        return features * -(-_STATES_MIN // features)

    def state_shapes_of(self, features):
        return [(self._num_states_of(features),)]

    @property_if_known
    def _systems(self):
        """The number of systems; known once the number of features is."""
        return self.input_spec.axes[-1] if self.mimo == "concatenate" else 1

    @property_if_known
    def _size(self):
        """The states of one system."""
        return self._num_states // self._systems

    def build_unit(self, features):
        if self._num_states % self._systems:
            raise ValueError(
                "`state_size` should be a multiple of the number of features "
                "where mimo='concatenate' gives each its own system; "
                "mimo='general' takes any. Received: "
                f"state_size={self.state_size}, {features} features"
            )
        self._build_eigenvalues()
        concatenated = self.mimo == "concatenate"
        self.input_kernel = self.add_kernel(
            "input_kernel",
            (features, features if concatenated else self._num_states),
        )
        self.projection = None
        if self.mimo == "average":
            self.projection = self.add_parameter(
                "projection",
                (self.projections, features),
                self._initial_projections,
                trainable=False,
            )
        self.output_kernel = self.add_kernel(
            "output_kernel",
            (self._num_states, self.output_units),
            self.output_initializer,
        )
        # A matrix even where a vector would do, as in the paper.
        self.feedthrough = self.add_parameter(
            "feedthrough",
            (features, self.output_units),
            self.feedthrough_initializer,
        )
        self.bias = self._add_bias()

    def _build_eigenvalues(self):
        eigenvalues = self._starting_eigenvalues()
        self._check_eigenvalues(eigenvalues)
        parameters = eigenvalues_ops.parameters_of(
            self.eigenvalues, eigenvalues
        )
        for name, values in parameters.items():
            weight = self.add_parameter(
                name, values.shape, given_values(values)
            )
            setattr(self, name, weight)

    def _starting_eigenvalues(self):
        """A complex array (systems, states of one)."""
        initial = self.initial_eigenvalues
        if initial is None:
            initial = "polynomial"
            if self.eigenvalues == "unit":
                few = self._size <= _UNIFORM_MAX
                initial = "uniform" if few else "low_discrepancy"
        shape = self._systems, self._size
        if isinstance(initial, str):
            return eigenvalues_ops.initial_eigenvalues(
                initial, self.eigenvalues, *shape, self.seed
            )
        if initial.shape not in (shape, shape[1:]):
            raise ValueError(
                "`initial_eigenvalues` should have the shape (systems, states "
                f"of a system), here {shape}. Received: an array of the shape "
                f"{initial.shape}"
            )
        return np.broadcast_to(initial, shape)

    def _check_eigenvalues(self, eigenvalues):
        """Warn where a layer cannot carry the eigenvalues it starts with."""

    def _initial_projections(self, shape, dtype=None):
        """Rows of random orthogonal matrices, of variance 1 an entry.

        The mean of their r r^T has the expectation I, as it has with
        independent rows, and is I where whole matrices fit.
        """
        count, features = shape
        seed = random.randrange(2**32) if self.seed is None else self.seed
        generator = np.random.default_rng([seed, 1])
        rows = [
            np.linalg.qr(generator.standard_normal((features, features)))[0]
            for _ in range(-(-count // features))
        ]
        rows = np.sqrt(features) * np.concatenate(rows)[:count]
        return given_values(rows)(shape, dtype)

    # The recurrence, in modal coordinates.

    def _modal_form(self):
        """The eigenvalues in the form that runs, a `ModalForm`."""
        parameters = {
            name: getattr(self, name)
            for name in eigenvalues_ops.parameter_names(self.eigenvalues)
        }
        return ModalForm(
            eigenvalues_ops.spectrum(self.eigenvalues, parameters, self._size),
            self._size,
        )

    def _input_rows(self):
        """B^T in modal coordinates, (features, state_size)."""
        kernel = ops.convert_to_tensor(self.input_kernel)
        if self.mimo != "concatenate":
            return kernel
        rows = kernel[:, :, None] * self._entering()
        return ops.reshape(rows, (-1, self._num_states))

    def _entering(self):
        """The input vector of a system in its modal coordinates."""
        return ops.cast(
            ops.arange(0, self._size) % 2 == 0, self.recurrence_dtype
        )

    def _mean_projection(self):
        """The mean of all r r^T, or `None` without projections."""
        if self.projection is None:
            return None
        rows = ops.convert_to_tensor(self.projection)
        return ops.transpose(rows) @ rows * (1.0 / self.projections)

    def _linear_input_rows(self):
        """B^T of the linear system, after the mean of the projections."""
        mean = self._mean_projection()
        rows = self._input_rows()
        return rows if mean is None else mean @ rows

    def diagonal_system(self):
        modal = self._modal_form()
        return DiagonalSystem(
            decay=modal.decay,
            input_kernel=modal.into_channels(self._linear_input_rows()),
            output_kernel=modal.read_out(
                ops.convert_to_tensor(self.output_kernel)
            ),
            feedthrough=ops.convert_to_tensor(self.feedthrough),
            basis=modal,
        )

    def to_channels(self, states, modal):
        return modal.into_channels(states[0])

    def from_channels(self, channels, modal):
        return [modal.from_channels(channels)]

    def finished(self, outputs):
        return super().finished(self._with_bias(outputs))

    def _with_bias(self, outputs):
        return outputs if self.bias is None else outputs + self.bias

    def get_config(self):
        return {
            **super().get_config(),
            "state_size": self.state_size,
            "eigenvalues": self.eigenvalues,
            "mimo": self.mimo,
            "projections": self.projections,
            "initial_eigenvalues": _as_config(self.initial_eigenvalues),
            "use_bias": self.use_bias,
            **serialized(
                self,
                "output_initializer",
                "bias_initializer",
                "bias_regularizer",
                "bias_constraint",
            ),
        }


def _checked_eigenvalues(initial, parameterization):
    """A name, a complex array or `None`; a configuration has real parts."""
    if initial is None:
        return None
    if isinstance(initial, str):
        eigenvalues_ops.require_initial(initial, parameterization)
        return initial
    try:
        if isinstance(initial, dict):
            initial = np.array(initial["real"]) + 1j * np.array(initial["imag"])
        array = np.asarray(initial, "complex128")
    except (TypeError, ValueError, LookupError):
        array = np.zeros(())
    if array.ndim not in (1, 2):
        raise ValueError(
            "`initial_eigenvalues` should be None, one of "
            f"{eigenvalues_ops.INITIAL} or an array (systems, states of one). "
            f"Received: initial_eigenvalues={initial}"
        )
    if not array.size or not np.isfinite(array).all():
        raise ValueError(
            "`initial_eigenvalues` should be finite numbers, at least one. "
            f"Received: initial_eigenvalues={initial}"
        )
    try:
        eigenvalues_ops.parameters_of(parameterization, array)
    except ValueError as failure:
        raise ValueError(
            "`initial_eigenvalues` should be such as the parameterisation can "
            f"hold: {failure}"
        ) from failure
    return array


def _as_config(initial):
    if not isinstance(initial, np.ndarray):
        return initial
    return {"real": initial.real.tolist(), "imag": initial.imag.tolist()}
