"""LinearDynamicalSystem: a linear system, run on its eigenvalues."""

import random

import keras
import numpy as np
from keras import ops

from keras_linrec.initializers import FanInNormal
from keras_linrec.layers.canonical_conversion import CanonicalConversion
from keras_linrec.layers.precise_layer import serialized
from keras_linrec.layers.sequence_layer import SequenceLayer
from keras_linrec.ops import eigenvalues as eigenvalues_ops
from keras_linrec.ops import packing
from keras_linrec.ops.modal_form import ModalForm
from keras_linrec.ops.scan import projected_scan
from keras_linrec.validation import require_count

MIMO = ("concatenate", "average", "general")
# The states of a system up to which angles drawn one by one stay apart.
_UNIFORM_MAX = 64


@keras.saving.register_keras_serializable("keras_linrec")
class LinearDynamicalSystem(CanonicalConversion, SequenceLayer):
    """Linear dynamical system, given by its eigenvalues - Kaul 2020.

        s_t = A s_{t-1} + B x_t
        y_t = C s_t + D x_t + bias

    A single-input system that can reach all of its states is, but for a
    change of coordinates, its n eigenvalues and what is read out of it
    (proposition 1): its modal coordinates follow s'_t = lambda * s'_{t-1} +
    x_t, all in parallel over time where the kernel is. For inputs of several
    features, `mimo` puts such systems together:

    - `"concatenate"`: as many systems as features, of n / features states
      each, and a square matrix E mixes the features before (section 2.3, the
      Luenberger form with equal sizes and blocks that are not coupled);
    - `"average"`: the mean of `projections` single-input systems, whose
      inputs are random projections r^T x, each with the input vector B r. The
      mean approaches that of the unprojected system, and is equal to it where
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
    difference of two real ones. An odd one out is real; in "unit" it is 1.

    Nothing keeps eigenvalues inside the unit circle but "unit". They start on
    it or inside; where training moves one outside, states grow exponentially
    with time.

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        state_size: integer n; a multiple of the features for "concatenate".
            Defaults to 32.
        eigenvalues: how the eigenvalues are parameterised, `"standard"` (the
            default), `"unit"`, `"hinge"`, `"log_polar"` or
            `"log_polar_hinge"`; see `keras_linrec.ops.eigenvalues.spectrum`.
        mimo: `"concatenate"` (the default), `"average"` or `"general"`.
        projections: integer, of "average". Defaults to 4.
        initial_eigenvalues: `"polynomial"`, `"uniform"`,
            `"low_discrepancy"` or `"chebyshev"`, see
            `keras_linrec.ops.eigenvalues.initial_eigenvalues`; or a complex
            array (S, k). Defaults to `None`: the roots of random polynomials,
            and for "unit" uniform angles up to 64 states a system and a
            low-discrepancy sequence beyond.
        use_bias: whether the outputs have a bias. Defaults to `True`.
        kernel_initializer: for `input_kernel`. Defaults to `"orthogonal"`.
        output_initializer: for `output_kernel`. Defaults to
            `"glorot_normal"`.
        feedthrough_initializer: for D. Defaults to normal numbers that keep
            the variance.
        bias_initializer: defaults to `"zeros"`.
        kernel_regularizer, kernel_constraint: for `input_kernel` and
            `output_kernel`. Default to `None`.
        **kwargs: those of every unit: `dropout`, `seed` (also that of the
            initial eigenvalues), `return_sequences` (`True`; where it is
            `False` and there is no mask, the states of single steps are never
            stored),
            `return_state`, `go_backwards`, `stateful`,
            `zero_output_for_mask`, `name`, `dtype`, `trainable`,
            `activity_regularizer`.

    Call arguments:
        sequences: float tensor, (batch, time, features).
        initial_state: list of one tensor (batch, state_size), the modal
            coordinates before the first step.
        mask: boolean tensor, (batch, time). A step where it is false carries
            the state and repeats the previous output.
        training: whether dropout applies.
        reset_mask: boolean tensor, (batch, time), true where a sequence
            begins: the states are zero before that step, so that several
            sequences share a row. Defaults to `None`.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final state, float32
        whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction; at
            build, where `state_size` is no multiple of the features.

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
        units=None,
        state_size=32,
        eigenvalues="standard",
        mimo="concatenate",
        projections=4,
        initial_eigenvalues=None,
        use_bias=True,
        kernel_initializer="orthogonal",
        output_initializer="glorot_normal",
        feedthrough_initializer=None,
        bias_initializer="zeros",
        kernel_regularizer=None,
        kernel_constraint=None,
        **kwargs,
    ):
        super().__init__(units, **kwargs)
        require_count("state_size", state_size)
        eigenvalues_ops.require_parameterization(eigenvalues)
        if mimo not in MIMO:
            raise ValueError(
                f"`mimo` should be one of {MIMO}. Received: mimo={mimo}"
            )
        require_count("projections", projections)
        self.state_size = state_size
        self.eigenvalues = eigenvalues
        self.mimo = mimo
        self.projections = projections
        self.initial_eigenvalues = _checked_eigenvalues(
            initial_eigenvalues, eigenvalues
        )
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.output_initializer = keras.initializers.get(output_initializer)
        self.feedthrough_initializer = keras.initializers.get(
            feedthrough_initializer or FanInNormal()
        )
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)

    @property
    def is_linear(self):
        return True

    def state_shapes_of(self, features):
        return [(self.state_size,)]

    @property
    def _systems(self):
        """The number of systems; known once the number of features is."""
        return self.input_spec.axes[-1] if self.mimo == "concatenate" else 1

    @property
    def _size(self):
        """The states of one system."""
        return self.state_size // self._systems

    def build_unit(self, features):
        if self.state_size % self._systems:
            raise ValueError(
                "`state_size` should be a multiple of the number of features "
                "where mimo='concatenate' gives each its own system; "
                "mimo='general' takes any. Received: "
                f"state_size={self.state_size}, {features} features"
            )
        kernel_arguments = {
            "regularizer": self.kernel_regularizer,
            "constraint": self.kernel_constraint,
        }
        self._build_eigenvalues()
        concatenated = self.mimo == "concatenate"
        self.input_kernel = self.add_parameter(
            "input_kernel",
            (features, features if concatenated else self.state_size),
            self.kernel_initializer,
            **kernel_arguments,
        )
        self.projection = None
        if self.mimo == "average":
            self.projection = self.add_parameter(
                "projection",
                (self.projections, features),
                self._initial_projections,
                trainable=False,
            )
        self.output_kernel = self.add_parameter(
            "output_kernel",
            (self.state_size, self.output_units),
            self.output_initializer,
            **kernel_arguments,
        )
        self.feedthrough = self.add_parameter(
            "feedthrough",
            (features, self.output_units),
            self.feedthrough_initializer,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_parameter(
                "bias", (self.output_units,), self.bias_initializer
            )

    def _build_eigenvalues(self):
        eigenvalues = self._starting_eigenvalues()
        self._check_eigenvalues(eigenvalues)
        parameters = eigenvalues_ops.parameters_of(
            self.eigenvalues, eigenvalues
        )
        for name, values in parameters.items():
            weight = self.add_parameter(name, values.shape, _given(values))
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
        """What a layer may have to say of those it starts with."""

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
        return _given(rows)(shape, dtype)

    # The recurrence, in modal coordinates.

    def modal_form(self):
        """The eigenvalues as they run, a `ModalForm`."""
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
        rows = kernel[:, :, None] * ops.convert_to_tensor(self._entering())
        return ops.reshape(rows, (-1, self.state_size))

    def _entering(self):
        """Where a system's input enters its modal coordinates."""
        entering = np.zeros(self._size, self.recurrence_dtype)
        entering[::2] = 1
        return entering

    def _mean_projection(self):
        """The mean of all r r^T, or `None` if there are none."""
        if self.projection is None:
            return None
        rows = ops.convert_to_tensor(self.projection)
        return ops.transpose(rows) @ rows * (1.0 / self.projections)

    def _linear_input_rows(self):
        """B^T of what runs as long as all is linear."""
        mean = self._mean_projection()
        rows = self._input_rows()
        return rows if mean is None else mean @ rows

    def _scan(self, modal, decay, inputs, rows, kernel, state, **options):
        """Inputs that enter by `rows`, read by `kernel`; modal coordinates."""
        outputs, final = projected_scan(
            decay,
            inputs,
            modal.into_channels(rows),
            modal.read_out(kernel),
            None if state is None else modal.into_channels(state),
            **options,
        )
        return outputs, modal.from_channels(final)

    def _read(self, modal, decay, inputs, rows, state, keep_all, direct=True):
        """As `_scan`, with the layer's outputs, the last unless `keep_all`.

        What the layer is given are the first of the inputs, and `direct` says
        whether D is to see them.
        """
        kernel = ops.convert_to_tensor(self.output_kernel)
        feedthrough = ops.convert_to_tensor(self.feedthrough)
        outputs, final = self._scan(
            modal,
            decay,
            inputs,
            rows,
            kernel,
            state,
            keep_all=keep_all,
            feedthrough=feedthrough if direct else None,
        )
        if not keep_all:
            outputs = final @ kernel
            if direct:
                last = inputs[:, -1, : feedthrough.shape[0]]
                outputs = outputs + last @ feedthrough
        return outputs if self.bias is None else outputs + self.bias, final

    def _respond(
        self,
        sequences,
        states,
        keep_all=True,
        lengths=None,
        wants_states=True,
        resets=None,
        constants=None,
    ):
        """The outputs, all or the last, and the final states."""
        modal = constants or self.modal_form()
        decay = modal.decay
        if lengths is not None and wants_states:
            decay = packing.stop(decay, lengths, ops.shape(sequences)[1])
        if resets is not None:
            decay = packing.restart(decay, resets)
        outputs, state = self._read(
            modal,
            decay,
            sequences,
            self._linear_input_rows(),
            states and states[0],
            keep_all,
        )
        return outputs, [state]

    def run(self, sequences, states, lengths, wants_states, resets=None):
        return self._respond(
            sequences,
            states,
            lengths=lengths,
            wants_states=wants_states,
            resets=resets,
        )

    def run_last(self, sequences, states, wants_states, resets=None):
        return self._respond(
            sequences,
            states,
            keep_all=False,
            wants_states=wants_states,
            resets=resets,
        )

    def step_constants(self):
        return self.modal_form()

    def run_step(self, inputs, states, constants=None):
        outputs, states = self._respond(
            ops.expand_dims(inputs, 1), states, constants=constants
        )
        return outputs[:, 0], states

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
                "kernel_initializer",
                "output_initializer",
                "feedthrough_initializer",
                "bias_initializer",
                "kernel_regularizer",
                "kernel_constraint",
            ),
        }


def _given(values):
    """An initializer that gives an array."""

    def initializer(shape, dtype=None):
        # A copy, for PyTorch takes no array that it may not write to.
        return ops.convert_to_tensor(np.array(values, "float64"), dtype=dtype)

    return initializer


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
    # What has no place in the parameters is told at once.
    eigenvalues_ops.parameters_of(parameterization, array)
    return array


def _as_config(initial):
    if not isinstance(initial, np.ndarray):
        return initial
    return {"real": initial.real.tolist(), "imag": initial.imag.tolist()}
