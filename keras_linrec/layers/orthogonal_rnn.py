"""OrthogonalRNN: a nonlinear recurrence whose transition keeps norms."""

import keras
from keras import ops

from keras_linrec import activations
from keras_linrec.constraints import LowerTrapezoid
from keras_linrec.constraints import Sign
from keras_linrec.initializers import ReflectorPairs
from keras_linrec.layers.nonlinear_layer import NonlinearCell
from keras_linrec.layers.nonlinear_layer import NonlinearLayer
from keras_linrec.layers.precise_layer import serialized
from keras_linrec.ops.householder import reflection_factors
from keras_linrec.ops.householder import reflection_product
from keras_linrec.ops.householder import unitary_matrix
from keras_linrec.validation import require_count


class OrthogonalUnit:
    """What `OrthogonalRNN` and its cell share."""

    def __init__(
        self,
        units,
        reflections=16,
        activation=activations.leaky_relu,
        use_bias=True,
        field="real",
        kernel_initializer="glorot_uniform",
        reflector_initializer=None,
        bias_initializer="zeros",
        reflector_regularizer=None,
        **kwargs,
    ):
        super().__init__(
            units,
            activation=activation,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            **kwargs,
        )
        if field not in ("real", "complex"):
            raise ValueError(
                "`field` should be 'real' or 'complex'. "
                f"Received: field={field}"
            )
        if field == "complex" and units % 2:
            raise ValueError(
                "`units` should be even for field='complex': real parts, then "
                f"imaginary parts. Received: units={units}"
            )
        self.field = field
        require_count("reflections", reflections)
        if reflections > self.dimension:
            raise ValueError(
                "`reflections` should be at most the dimension of the state, "
                f"{self.dimension}. Received: reflections={reflections}, "
                f"units={units}, field={field}"
            )
        self.reflections = reflections
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
    def dimension(self):
        """n, the numbers of a state: real, or complex."""
        return self.units // self._matrices

    def build_recurrence(self, features):
        complete = self.reflections == self.dimension
        self.reflectors = self.phases = self.sign = self.modulus_bias = None
        columns = self.reflections - complete
        if columns:
            self.reflectors = self.add_parameter(
                "reflectors",
                (self.units, columns),
                self._initial_reflectors,
                regularizer=self.reflector_regularizer,
                constraint=LowerTrapezoid(self._matrices),
            )
        if self.field == "complex":
            self.phases = self.add_parameter(
                "phases", (self.dimension,), "zeros"
            )
        elif complete:
            self.sign = self.add_parameter(
                "sign", (), "ones", constraint=Sign()
            )
        if self.activation is activations.modrelu:
            self.modulus_bias = self.add_parameter(
                "modulus_bias", (self.units // 2,), "zeros"
            )

    def _initial_reflectors(self, shape, dtype=None):
        values = self.reflector_initializer(shape, dtype=dtype)
        return LowerTrapezoid(self._matrices)(values)

    def transition_matrix(self):
        """W, a tensor (units, units); complex ones as real ones.

        W = A + iB of field="complex" is [[A, -B], [B, A]].
        """
        if self.field == "complex":
            reflectors = self.reflectors
            if reflectors is None:
                reflectors = ops.zeros((self.units, 1), self.recurrence_dtype)
            return unitary_matrix(reflectors, self.phases)
        if self.reflectors is None:
            return ops.reshape(self.sign, (1, 1))
        matrix = reflection_product(ops.convert_to_tensor(self.reflectors))
        if self.sign is None:
            return matrix
        last = ops.arange(self.units) == self.units - 1
        sign = ops.convert_to_tensor(self.sign)
        return matrix * ops.where(last, sign, ops.ones_like(sign))

    def recurrence(self):
        arguments = {"modulus_bias": self.modulus_bias}
        # The factors take 2 n m multiplications a step and row, W takes n^2.
        # Forward and backward of 200 steps of 32 rows, one core: at n = 256
        # 20.4 ms with W, and 7.7, 8.6, 12.7 and 20.9 with 16, 32, 64 and 128
        # reflections; at n = 128 6.5, and 3.8, 3.7 and 6.8 with 16, 32, 64.
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
            **serialized(
                self, "reflector_initializer", "reflector_regularizer"
            ),
        }


@keras.saving.register_keras_serializable("keras_linrec")
class OrthogonalRNN(OrthogonalUnit, NonlinearLayer):
    """Recurrent layer with an orthogonal transition - Mhammedi et al. 2017.

        h_t = activation(W h_{t-1} + V x_t + b)
        W   = H(u_n) H(u_{n-1}) ... H(u_{n-m+1}),  H(u) = I - 2 u u^T / |u|^2

    with W a product of m Householder reflections, orthogonal whatever their
    vectors, so that gradients do not explode over time; with an activation
    that keeps norms they do not vanish either. For m = n the last factor is
    diag(1, ..., 1, u_1), u_1 = 1 or -1, and every orthogonal matrix can be
    reached (theorem 1).

    | weight | shape | meaning |
    |---|---|---|
    | `kernel` | (features, units) | V^T |
    | `bias` | (units,) | b |
    | `reflectors` | (units, reflections) | column j holds u_{n-j}, with zeros \
above row j, where they stay; (units, reflections - 1) if reflections == n |
    | `sign` | () | u_1, if reflections == n |
    | `phases` | (units // 2,) | theta, if field="complex" |
    | `modulus_bias` | (units // 2,) | of activation="modrelu" |

    With field="complex" the state is n = units // 2 complex numbers, the real
    parts before the imaginary ones, the reflections are complex, and W =
    H(u_n) ... diag(exp(i theta)) is unitary (section 4.3). The paper has the
    phases where m = n; here they are there for every m, at n numbers' cost.
    `reflectors` then hold real parts over imaginary ones, each with its
    zeros.

    Args:
        units: integer, the number of output features.
        reflections: integer from 1 to n, m. Defaults to 16.
        activation: Defaults to `keras_linrec.activations.leaky_relu`, of
            slope 0.1. `"oplu"` keeps norms; `"modrelu"` is ReLU on the moduli
            of complex numbers and has a trained bias.
        use_bias: whether there is b. Defaults to `True`.
        field: `"real"` (the default) or `"complex"`.
        kernel_initializer: for V. Defaults to `"glorot_uniform"`.
        reflector_initializer: for the vectors u. Defaults to
            `keras_linrec.initializers.ReflectorPairs()`, from which W starts
            near the identity.
        bias_initializer: Defaults to `"zeros"`.
        kernel_regularizer, reflector_regularizer, bias_regularizer,
            kernel_constraint, bias_constraint: Default to `None`.
        **kwargs: those of every unit: `dropout`, `seed`, `return_sequences`
            (`False`), `return_state`, `go_backwards`, `stateful`,
            `zero_output_for_mask`, `name`, `dtype`, `trainable`,
            `activity_regularizer`.

    Call arguments:
        sequences: float tensor, (batch, time, features).
        initial_state: list of one tensor (batch, units), h before the first
            step.
        mask: boolean tensor, (batch, time). A step where it is false carries
            the state and repeats the previous output.
        training: whether dropout applies.
        reset_mask: boolean tensor, (batch, time), true where a sequence
            begins: the states are zero before that step, so that several
            sequences share a row. Defaults to `None`.

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


@keras.saving.register_keras_serializable("keras_linrec")
class OrthogonalRNNCell(OrthogonalUnit, NonlinearCell):
    """One step of `OrthogonalRNN`, for `keras.layers.RNN`.

    The layer computes W once for a sequence and has a native kernel; the cell
    computes it at every step. Under a 16-bit policy Keras' loop carries the
    state in 16 bits, where the layer keeps it in float32.

    Args:
        units, reflections, activation, use_bias, field and the initializers,
            regularizers and constraints: as `OrthogonalRNN` has them.
        **kwargs: `name`, `dtype`, `trainable`.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_linrec
    >>> cell = keras_linrec.layers.OrthogonalRNNCell(8, reflections=4)
    >>> layer = keras.layers.RNN(cell)
    >>> tuple(layer(np.random.rand(2, 5, 3)).shape)
    (2, 8)
    """
