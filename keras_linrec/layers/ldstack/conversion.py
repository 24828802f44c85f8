"""Conversion between an `LDStack` and the network that it approximates."""

import warnings
from typing import Any

import keras
import numpy as np

from keras_linrec import types
from keras_linrec.layers.base.given_matrices import checked_matrices
from keras_linrec.layers.base.given_matrices import diagonalise
from keras_linrec.layers.base.given_matrices import require_unset
from keras_linrec.layers.linear_dynamical_system.conversion import to_float64
from keras_linrec.ops.algebra import canonical_system

# The norm of a given transition beyond which a slope of 1/2 may be too large.
_NORM_MAX = 1.2

# The arguments that `from_rnn` sets.
_FIXED = ("units", "state_size", "eigenvalues", "mimo", "basis", "use_bias")
_FIXED += ("initial_eigenvalues", "use_state_bias")


class NetworkConversion:
    """A mixin of `LDStack`: its network as matrices, and back."""

    def to_rnn(self) -> tuple[types.Tensor, ...]:
        """The nonlinear network that the stack approximates.

        With mimo="average" it is that of the unprojected inputs, to which the
        mean over projections converges if the activation is linear.

        Returns:
            `(A, B, C, D, bias)` of h_t = activation(A h_{t-1} + B x_t), y_t =
            C h_t + D x_t + bias, real float64 NumPy arrays of the shapes (n,
            n), (n, features), (units, n), (units, features) and (units,);
            with `use_state_bias` also b of activation(A h + B x + b), (n,).

        Raises:
            ValueError: if the layer is not built, or its basis is singular.
        """
        self._require_built("to_rnn")
        basis = self._basis_in_float64()
        inverse_basis = np.linalg.inv(basis)
        if self.basis == "companion":
            transition = self._companion(canonical_system.companion_transition)
        else:
            modal = canonical_system.modal_transition(self._eigenvalues())
            transition = basis @ modal @ inverse_basis
        rows = self._linear_input_rows()
        if self._is_averaged:
            rows = self._input_rows()
        bias = np.zeros(self.output_units)
        if self.bias is not None:
            bias = to_float64(self.bias)
        network = (
            transition,
            basis @ to_float64(rows).T,
            to_float64(self.output_kernel).T @ inverse_basis,
            to_float64(self.feedthrough).T,
            bias,
        )
        if self.state_bias is not None:
            network = *network, to_float64(self.state_bias)
        return network

    def _basis_in_float64(self):
        if self.basis == "companion":
            return self._companion(canonical_system.companion_basis)
        return to_float64(self.state_basis)

    def _companion(self, matrix_of):
        """The systems' matrices of the transpose form, block-diagonal."""
        return canonical_system.block_diagonal(
            [matrix_of("transpose", e) for e in self._eigenvalues()]
        )

    @classmethod
    def from_rnn(
        cls,
        transition: types.Tensor,
        inputs: types.Tensor,
        outputs: types.Tensor,
        feedthrough: types.Tensor,
        activation: types.Identifier = "tanh",
        depth: int = 8,
        bias: types.Tensor = None,
        state_bias: types.Tensor = None,
        slope: float = 0.5,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> types.Self:
        """A layer that runs a given nonlinear network in parallel time.

        Where the norm of A is above 1, the error may grow with the depth
        before it falls, beyond the precision of float32: a warning says so,
        and a smaller slope helps. For 16 units with ||A|| = 1.5 over 64 steps
        the error is 8e7 at depth 24 and 7e-6 at depth 65 with a slope of 1/2,
        and 4e-4 and 4e-6 with 1/4.

        Args:
            transition, inputs, outputs, feedthrough: arrays A (n, n), B (n,
                features), C (units, n) and D (units, features), of h_t =
                activation(A h_{t-1} + B x_t), y_t = C h_t + D x_t. A has to
                be diagonalisable.
            activation: name or function. Defaults to `"tanh"`.
            depth: integer, the number of linear recurrences; one more than
                the number of time steps is exact. Defaults to 8.
            bias: array (units,), added to y_t. Defaults to `None`, zero.
            state_bias: array (n,), b of activation(A h + B x + b). Defaults
                to `None`, zero.
            slope: float in (0, 1], see the class. Defaults to 1/2.
            batch_size: integer, for a `stateful` layer. Defaults to `None`,
                any.
            **kwargs: further arguments of the class, such as
                `return_sequences`, except those that the network determines.

        Returns:
            An `LDStack` with eigenvalues="hinge", mimo="general" and a
            learned basis, built for that number of features.

        Raises:
            ValueError: if shapes do not agree, a number is not finite, or A's
                eigenvectors are not a basis in float32.

        Example: a SimpleRNN, see also `from_simple_rnn`.

        >>> import numpy as np
        >>> from keras_linrec.layers import LDStack
        >>> a, b = np.array([[0.0, 0.8], [-0.8, 0.0]]), np.ones((2, 1))
        >>> c, d = np.eye(2), np.zeros((2, 1))
        >>> layer = LDStack.from_rnn(a, b, c, d, "tanh", depth=4)
        >>> bool(np.allclose(layer.to_rnn()[0], a, atol=1e-5))
        True
        """
        require_unset(kwargs, "the matrices", _FIXED)
        network = checked_matrices(
            {
                "transition": transition,
                "inputs": inputs,
                "outputs": outputs,
                "feedthrough": feedthrough,
                "bias": bias,
                "state_bias": state_bias,
            },
            inputs=("state_size", "features"),
            transition=("state_size", "state_size"),
            outputs=("units", "state_size"),
            feedthrough=("units", "features"),
            bias=("units",),
            state_bias=("state_size",),
        )
        transition, inputs, outputs, feedthrough, bias, state_bias = network
        eigenvalues, basis = diagonalise(transition)
        norm = np.linalg.norm(transition, 2)
        if norm > _NORM_MAX:
            warnings.warn(
                f"`transition` has the norm {norm:.2g}: where it is above 1, "
                "the error may grow with the depth before it falls. Compare "
                "a few depths, and take a smaller `slope` than "
                f"{slope} if they disagree.",
                stacklevel=2,
            )
        layer = cls(
            len(outputs),
            len(transition),
            depth,
            activation,
            eigenvalues="hinge",
            mimo="general",
            slope=slope,
            initial_eigenvalues=eigenvalues,
            use_bias=bias is not None,
            use_state_bias=state_bias is not None,
            **kwargs,
        )
        layer.build((batch_size, None, inputs.shape[1]))
        layer.state_basis.assign(basis)
        layer.input_kernel.assign(np.linalg.solve(basis, inputs).T)
        layer.output_kernel.assign((outputs @ basis).T)
        layer.feedthrough.assign(feedthrough.T)
        if bias is not None:
            layer.bias.assign(bias)
        if state_bias is not None:
            layer.state_bias.assign(state_bias)
        return layer

    @classmethod
    def from_simple_rnn(
        cls, layer: Any, depth: int = 8, slope: float = 0.5, **kwargs: Any
    ) -> types.Self:
        """A layer that runs a `keras.layers.SimpleRNN` in parallel time.

        Args:
            layer: a built `SimpleRNN`. Its weights, activation, dtype policy,
                dropout, seed, `trainable` and return arguments are copied, its
                name, initializers, regularizers and constraints are not. The
                new layer has one state too, with the same meaning
                (`one_state=True`).
            depth, slope: see `from_rnn`.
            **kwargs: further arguments of the class, which override those of
                `layer`.

        Raises:
            ValueError: if `layer` is not a `SimpleRNN`, is not built, drops
                recurrent states, or has a transition that is not
                diagonalisable.

        Example:

        >>> import keras
        >>> import numpy as np
        >>> from keras_linrec.layers import LDStack
        >>> rnn = keras.layers.SimpleRNN(16, return_sequences=True)
        >>> sequences = np.random.rand(2, 64, 3).astype("float32")
        >>> expected = rnn(sequences)
        >>> got = LDStack.from_simple_rnn(rnn, depth=32)(sequences)
        >>> bool(keras.ops.max(keras.ops.abs(got - expected)) < 1e-3)
        True
        """
        if not isinstance(layer, keras.layers.SimpleRNN) or not layer.built:
            raise ValueError(
                "`layer` should be a keras.layers.SimpleRNN that is built. "
                f"Received: layer={layer}"
            )
        if layer.cell.recurrent_dropout:
            raise ValueError(
                "An LDStack has no recurrent dropout. Received: a SimpleRNN "
                f"with recurrent_dropout={layer.cell.recurrent_dropout}"
            )
        units, features = layer.cell.units, layer.cell.kernel.shape[0]
        taken_over = {
            name: getattr(layer, name)
            for name in (
                *("return_sequences", "return_state", "go_backwards"),
                *("stateful", "zero_output_for_mask", "trainable"),
            )
        }
        taken_over["dropout"] = layer.cell.dropout
        taken_over["seed"] = layer.cell.seed
        taken_over["one_state"] = True
        taken_over["dtype"] = layer.dtype_policy
        if layer.stateful:
            taken_over["batch_size"] = layer.states[0].shape[0]
        bias = layer.cell.bias
        return cls.from_rnn(
            to_float64(layer.cell.recurrent_kernel).T,
            to_float64(layer.cell.kernel).T,
            np.eye(units),
            np.zeros((units, features)),
            layer.cell.activation,
            depth,
            state_bias=None if bias is None else to_float64(bias),
            slope=slope,
            **{**taken_over, **kwargs},
        )
