"""OrthogonalRNN: a nonlinear recurrence whose transition keeps norms."""

from typing import Any
from typing import Literal
from typing import get_args

import keras
import numpy as np
from keras import ops

from keras_linrec import activations
from keras_linrec import types
from keras_linrec.constraints import Sign
from keras_linrec.constraints import UnitReflectors
from keras_linrec.initializers import ReflectorPairs
from keras_linrec.layers.base.given_matrices import checked_matrices
from keras_linrec.layers.base.given_matrices import require_unset
from keras_linrec.layers.base.nonlinear_layer import NonlinearCell
from keras_linrec.layers.base.nonlinear_layer import NonlinearLayer
from keras_linrec.layers.base.nonlinear_layer import NonlinearUnit
from keras_linrec.layers.base.precise_layer import serialized
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.ops.householder import reflection_factors
from keras_linrec.ops.householder import reflection_product
from keras_linrec.ops.householder import unitary_matrix
from keras_linrec.ops.precision import matmul
from keras_linrec.ops.reflectors import reflectors_of
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count

Field = Literal["real", "complex"]
# The default of `reflections`, if the state has as many dimensions: the
# paper's addition task takes 16 of 128.
_REFLECTIONS = 16


class OrthogonalUnit(NonlinearUnit):
    """`OrthogonalRNN` and its cell, without what only layers have."""

    def __init__(
        self,
        units: int,
        reflections: int | None = None,
        activation: types.Identifier = activations.leaky_relu,
        use_bias: bool = True,
        field: Field = "real",
        train_initial_state: bool = False,
        kernel_initializer: types.Identifier = "glorot_uniform",
        reflector_initializer: types.Identifier = None,
        bias_initializer: types.Identifier = "zeros",
        kernel_regularizer: types.Identifier = None,
        reflector_regularizer: types.Identifier = None,
        bias_regularizer: types.Identifier = None,
        kernel_constraint: types.Identifier = None,
        bias_constraint: types.Identifier = None,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        super().__init__(**for_bases(OrthogonalUnit, locals()))
        require_choice("field", field, get_args(Field))
        require_bool("train_initial_state", train_initial_state)
        if field == "complex" and units % 2:
            raise ValueError(
                "`units` should be even for field='complex': real parts, then "
                f"imaginary parts. Received: units={units}"
            )
        self.field = field
        if reflections is None:
            reflections = min(_REFLECTIONS, self._dimension)
        require_count("reflections", reflections)
        if reflections > self._dimension:
            raise ValueError(
                "`reflections` should be at most the dimension of the state, "
                f"{self._dimension}. Received: reflections={reflections}, "
                f"units={units}, field={field}"
            )
        self.reflections = reflections
        self.train_initial_state = train_initial_state
        self.initial_state = None
        if reflector_initializer is None:
            reflector_initializer = ReflectorPairs(matrices=self._matrices)
        self.reflector_initializer = keras.initializers.get(
            reflector_initializer
        )
        self.reflector_regularizer = keras.regularizers.get(
            reflector_regularizer
        )

    @property
    def _matrices(self):
        return 2 if self.field == "complex" else 1

    @property
    def _dimension(self):
        """n, the number of real or complex entries of the state."""
        return self.units // self._matrices

    def build_recurrence(self, features):
        complete = self.reflections == self._dimension
        self.reflectors = self.phases = self.sign = self.modulus_bias = None
        columns = self.reflections - complete
        if columns:
            # Ten steps of Adam at 1e-3 move W by 0.57 in the Frobenius norm
            # (128 units, 16 random reflectors, mean of three seeds), and by
            # 0.06 with the entries of deviation 1 that initializers draw.
            # Norms of 1 at the start alone would grow with each step.
            self.reflectors = self.add_parameter(
                "reflectors",
                (self.units, columns),
                self._initial_reflectors,
                regularizer=self.reflector_regularizer,
                constraint=UnitReflectors(self._matrices),
            )
        if self.field == "complex":
            self.phases = self.add_parameter(
                "phases", (self._dimension,), "zeros"
            )
        elif complete:
            self.sign = self.add_parameter(
                "sign", (), "ones", constraint=Sign()
            )
        if self.activation is activations.modrelu:
            self.modulus_bias = self.add_parameter(
                "modulus_bias", (self.units // 2,), "zeros"
            )
        if self.train_initial_state:
            # As in the authors' code.
            bound = (1.5 / self.units) ** 0.5
            self.initial_state = self.add_parameter(
                "initial_state",
                (self.units,),
                keras.initializers.RandomUniform(-bound, bound),
            )

    def _initial_reflectors(self, shape, dtype=None):
        values = self.reflector_initializer(shape, dtype=dtype)
        return UnitReflectors(self._matrices)(values)

    def trained_states(self, batch_size):
        """The trained initial state for each row, in a list, or `None`."""
        if not self.train_initial_state:
            return None
        if self.initial_state is None:
            raise ValueError(
                f"Layer '{self.name}' trains its initial state: build or call "
                "it before asking for its states. Received: built=False"
            )
        state = ops.convert_to_tensor(self.initial_state)
        return [ops.broadcast_to(state, (batch_size, self.units))]

    def transition_matrix(self) -> types.Tensor:
        """W, a tensor (units, units), in real numbers.

        With field="complex", W = A + iB is returned as [[A, -B], [B, A]].
        """
        if self.field == "complex":
            reflectors = self.reflectors
            if reflectors is None:
                reflectors = ops.zeros((self.units, 1), self.recurrence_dtype)
            return unitary_matrix(reflectors, self.phases)
        sign = None if self.sign is None else Sign().within(self.sign)
        if self.reflectors is None:
            return ops.reshape(sign, (1, 1))
        # It takes vectors of any length, and none of what is above the
        # diagonal.
        matrix = reflection_product(ops.convert_to_tensor(self.reflectors))
        if sign is None:
            return matrix
        last = ops.arange(0, self.units) == self.units - 1
        return matrix * ops.where(last, sign, ops.ones_like(sign))

    def recurrence(self):
        arguments = {"modulus_bias": self.modulus_bias}
        # The factors take 2 n m multiplications for each step and row, W takes
        # n^2. Forward and backward of 200 steps of 32 rows, one core: at
        # n = 256 20.4 ms with W, and 7.7, 8.6, 12.7 and 20.9 with 16, 32, 64
        # and 128 reflections; at n = 128 6.5, and 3.8, 3.7 and 6.8 with 16, 32
        # and 64.
        if self.field == "real" and 2 * self.reflections < self.units:
            left, right = reflection_factors(
                ops.convert_to_tensor(self.reflectors)
            )
            # h^T W^T = h^T - (h^T right^T) left^T.
            factors = ops.transpose(right), ops.transpose(left)
            return {**arguments, "recurrent_kernel": factors}
        kernel = ops.transpose(self.transition_matrix())
        return {**arguments, "recurrent_kernel": kernel}

    def get_config(self):
        return {
            **super().get_config(),
            "reflections": self.reflections,
            "field": self.field,
            "train_initial_state": self.train_initial_state,
            **serialized(
                self, "reflector_initializer", "reflector_regularizer"
            ),
        }


@keras.saving.register_keras_serializable("keras_linrec")
class OrthogonalRNN(OrthogonalUnit, NonlinearLayer):
    """Recurrent layer with an orthogonal transition - Mhammedi et al. 2017.

        h_t = activation(W h_{t-1} + V x_t + b)
        W   = H(u_n) H(u_{n-1}) ... H(u_{n-m+1}),  H(u) = I - 2 u u^T / |u|^2

    W is a product of m Householder reflections. It is orthogonal whatever
    their vectors, so that gradients do not explode over time; with an
    activation that keeps norms they do not vanish either. For m = n the last
    factor is diag(1, ..., 1, u_1), u_1 = 1 or -1, and every orthogonal matrix
    can be reached (theorem 1).

    | weight | shape | meaning |
    |---|---|---|
    | `kernel` | (features, units) | V^T |
    | `bias` | (units,) | b |
    | `reflectors` | (units, reflections) | column j holds u_{n-j}, of norm 1, \
with zeros above row j; (units, reflections - 1) if reflections == n |
    | `sign` | () | u_1 is its sign, if reflections == n |
    | `phases` | (units // 2,) | theta, if field="complex" |
    | `modulus_bias` | (units // 2,) | of activation="modrelu" |
    | `initial_state` | (units,) | h_0, if `train_initial_state` |

    With field="complex" the state is n = units // 2 complex numbers, the real
    parts before the imaginary parts, the reflections are complex, and
    W = H(u_n) ... diag(exp(i theta)) is unitary (section 4.3). `reflectors`
    then hold real parts over imaginary parts, both with zeros above row j.

    The length of a vector has no effect on W, and of `sign` only its sign has
    one: W is orthogonal whatever moves the weights. But the angle by which a
    step of an optimizer turns a vector depends on its length. As in the
    authors' code, initial vectors have length 1 and a constraint restores it
    after each step of Keras' optimizers, so that published learning rates
    apply; with other optimizers vectors grow, and turn more slowly.
    Regularizers that depend on the length alone have no effect. `sign` gets
    the gradient of u_1.

    Differences from the paper and the authors' code: vectors start in nearly
    equal pairs, for a W close to the identity, instead of independent normal
    ones; the phases of field="complex", which the paper has for m = n, are
    there for every m; `"oplu"` pairs the entries 2i and 2i + 1, theirs i and
    i + n/2, so that weights trained with the one do not fit the other without
    a permutation of the units; and `"modrelu"` compares the bias with |z|,
    theirs with |z|^2.

    Args:
        units: integer, the number of output features.
        reflections: integer from 1 to n, m. Defaults to `None`, 16 or n,
            whichever is smaller.
        activation: Defaults to `keras_linrec.activations.leaky_relu`, of
            slope 0.1. `"oplu"` keeps norms; `"modrelu"` is ReLU on the moduli
            of complex numbers, with a trained bias.
        use_bias: whether there is b. Defaults to `True`.
        field: `"real"` (the default) or `"complex"`.
        train_initial_state: whether sequences start, after a reset too, from
            a trained state h_0, as in the authors' code, instead of zeros.
            `keras_linrec.export_step` refuses a layer that has one. Defaults
            to `False`.
        kernel_initializer: for V. Defaults to `"glorot_uniform"`.
        reflector_initializer: for the vectors u, which are then scaled to
            length 1. Defaults to `keras_linrec.initializers.ReflectorPairs()`,
            with which W starts near the identity.
        bias_initializer: Defaults to `"zeros"`.
        kernel_regularizer, reflector_regularizer, bias_regularizer,
            kernel_constraint, bias_constraint: Default to `None`.
        dropout: float in [0, 1), the share of input features to drop during
            training, the same ones at every time step. Defaults to 0.
        seed: integer, the seed of the dropout. Defaults to `None`.
        return_sequences: whether to return the outputs of all time steps or
            only the last. Defaults to `False`.
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
        initial_state: list of one tensor (batch, units), h before the first
            step. Defaults to `None`: zeros, h_0 if `train_initial_state`, or
            the state of the previous batch if `stateful`.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, units), or (batch, time, units) with `return_sequences=True`;
        with `return_state`, a tuple of that and the final state, float32
        whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction.

    Reference:
        [Efficient Orthogonal Parametrisation of Recurrent Neural Networks
        Using Householder Reflections](https://arxiv.org/abs/1612.00188),
        sections 3 and 4.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.OrthogonalRNN(8, reflections=4)
    >>> sequences = np.random.rand(2, 1000, 3).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 8)
    >>> w = keras.ops.convert_to_numpy(layer.transition_matrix())
    >>> bool(np.allclose(w @ w.T, np.eye(8), atol=1e-5))
    True
    """

    def __init__(
        self,
        units: int,
        reflections: int | None = None,
        activation: types.Identifier = activations.leaky_relu,
        use_bias: bool = True,
        field: Field = "real",
        train_initial_state: bool = False,
        kernel_initializer: types.Identifier = "glorot_uniform",
        reflector_initializer: types.Identifier = None,
        bias_initializer: types.Identifier = "zeros",
        kernel_regularizer: types.Identifier = None,
        reflector_regularizer: types.Identifier = None,
        bias_regularizer: types.Identifier = None,
        kernel_constraint: types.Identifier = None,
        bias_constraint: types.Identifier = None,
        dropout: float = 0.0,
        seed: types.Seed = None,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        super().__init__(**for_bases(OrthogonalRNN, locals()))

    @classmethod
    def from_rnn(
        cls,
        transition: types.Tensor,
        inputs: types.Tensor,
        bias: types.Tensor = None,
        reflections: int | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> types.Self:
        """A layer with a given orthogonal transition.

        Its reflectors are those of `keras_linrec.ops.reflectors_of`
        (algorithm 2), which every orthogonal or unitary matrix has.

        Args:
            transition, inputs: arrays W (units, units) and V (units,
                features) of h_t = activation(W h_{t-1} + V x_t + b). With
                field="complex", W is real too, in the form that
                `transition_matrix` returns.
            bias: array (units,), b. Defaults to `None`, a layer without it.
            reflections: integer, see the class. Defaults to `None`, n, which
                suffices for every W.
            batch_size: integer, for a `stateful` layer. Defaults to `None`,
                any.
            **kwargs: further arguments of the class, such as `activation`,
                except `units` and `use_bias`.

        Returns:
            An `OrthogonalRNN`, built for that number of features.

        Raises:
            ValueError: if shapes do not agree, a number is not finite, W is
                not orthogonal, or has not the form of a complex matrix; or if
                it needs more reflections.

        Example: a state that moves on by one place in every step.

        >>> import keras
        >>> import numpy as np
        >>> from keras_linrec.layers import OrthogonalRNN
        >>> shift = np.roll(np.eye(4), 1, axis=0)
        >>> layer = OrthogonalRNN.from_rnn(
        ...     shift, np.eye(4)[:, :1], activation="linear"
        ... )
        >>> pulse = np.array([1.0, 0.0, 0.0]).reshape(1, 3, 1)
        >>> state = keras.ops.convert_to_numpy(layer(pulse))
        >>> bool(np.allclose(state, [[0, 0, 1, 0]], atol=1e-6))
        True
        """
        require_unset(kwargs, "the matrices", ("units", "use_bias"))
        transition, inputs, bias = checked_matrices(
            {"transition": transition, "inputs": inputs, "bias": bias},
            inputs=("units", "features"),
            transition=("units", "units"),
            bias=("units",),
        )
        units, features = inputs.shape
        is_complex = kwargs.get("field") == "complex"
        matrix = _as_complex(transition) if is_complex else transition
        if reflections is None:
            reflections = len(matrix)
        reflectors, last = reflectors_of(matrix, reflections)
        layer = cls(units, reflections, use_bias=bias is not None, **kwargs)
        layer.build((batch_size, None, features))
        layer.kernel.assign(inputs.T)
        if bias is not None:
            layer.bias.assign(bias)
        if layer.reflectors is not None:
            layer.reflectors.assign(reflectors)
        for weight in (layer.sign, layer.phases):
            if weight is not None:
                weight.assign(last)
        return layer

    def _scan_arguments_for(self, steps, constants=None):
        arguments = super()._scan_arguments_for(steps, constants)
        if steps.reset_mask is None or not self.train_initial_state:
            return arguments
        # After a reset the state is zero. W h_0 is added there like the
        # contribution of one more input, which is 1 at resets.
        inputs, resets = steps.inputs, ops.expand_dims(steps.reset_mask, -1)
        resets = ops.cast(resets, inputs.dtype)
        row = _times(self.trained_states(1)[0], arguments["recurrent_kernel"])
        kernel = ops.convert_to_tensor(self.kernel)
        return {
            **arguments,
            "inputs": ops.concatenate([inputs, resets], axis=-1),
            "input_kernel": ops.concatenate([kernel, row]),
        }


def _as_complex(matrix):
    """A + iB of [[A, -B], [B, A]]."""
    size = len(matrix) // 2
    real, imag = matrix[:size, :size], matrix[size:, :size]
    both = np.block([[real, -imag], [imag, real]])
    if both.shape != matrix.shape or not np.allclose(both, matrix, atol=1e-4):
        raise ValueError(
            "`transition` should be [[A, -B], [B, A]] for field='complex', "
            f"which stands for A + iB. Received: transition={matrix}"
        )
    return real + 1j * imag


def _times(state, recurrent_kernel):
    """h^T W^T, with W^T as a matrix or by its factors."""
    if not isinstance(recurrent_kernel, tuple):
        return matmul(state, recurrent_kernel)
    right, left = recurrent_kernel
    return state - matmul(matmul(state, right), left)


@keras.saving.register_keras_serializable("keras_linrec")
class OrthogonalRNNCell(OrthogonalUnit, NonlinearCell):
    """One step of `OrthogonalRNN`, for `layers.RNN`.

    The layer computes W once for a sequence and has a native kernel; the cell
    computes it at every step. Under a 16-bit policy Keras' loop carries the
    state in 16 bits, while the layer keeps it in float32.

    Args:
        units, reflections, activation, use_bias, field, train_initial_state
            and the initializers, regularizers and constraints: as in
            `OrthogonalRNN`.
        **kwargs: `name`, `dtype`, `trainable`.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> cell = keras_linrec.layers.OrthogonalRNNCell(8, reflections=4)
    >>> layer = keras_linrec.layers.RNN(cell)
    >>> tuple(layer(np.random.rand(2, 5, 3)).shape)
    (2, 8)
    """

    def get_initial_state(self, batch_size: int | None = None):
        return self.trained_states(batch_size) or [
            ops.zeros((batch_size, self.units), dtype=self.compute_dtype)
        ]
