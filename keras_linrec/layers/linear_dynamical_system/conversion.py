"""A `LinearDynamicalSystem` as real matrices, and from given ones."""

from typing import Any
from typing import Literal

import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.layers.base.given_matrices import checked_matrices
from keras_linrec.layers.base.given_matrices import diagonalise
from keras_linrec.layers.base.given_matrices import require_unset
from keras_linrec.ops.algebra import canonical_system
from keras_linrec.ops.algebra import eigenvalues as eigenvalues_ops
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_choice

# The arguments that `from_state_space` sets.
_FIXED = ("units", "state_size", "eigenvalues", "mimo", "use_bias")
_FIXED += ("initial_eigenvalues",)


class CanonicalConversion:
    """A mixin of `LinearDynamicalSystem`: its system as matrices, and back."""

    @classmethod
    def from_state_space(
        cls,
        transition: types.Tensor,
        inputs: types.Tensor,
        outputs: types.Tensor,
        feedthrough: types.Tensor,
        bias: types.Tensor = None,
        delayed: bool = False,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> types.Self:
        """A layer that runs a given linear system, such as a filter.

        The layer has the eigenvalues of A as its weights, and B, C in the
        coordinates of A's eigenvectors. So A has to be diagonalisable in
        float32: chains of equal eigenvalues, such as those of a delay line,
        are refused.

        Args:
            transition, inputs, outputs, feedthrough: arrays A (n, n), B (n,
                features), C (units, n) and D (units, features), of s_t = A
                s_{t-1} + B x_t, y_t = C s_t + D x_t.
            bias: array (units,), added to y_t. Defaults to `None`, a layer
                without it.
            delayed: whether y_t = C s_{t-1} + D x_t instead, as in SciPy,
                MATLAB and the paper's equation 1. A has to be invertible
                then. Defaults to `False`.
            batch_size: integer, for a `stateful` layer. Defaults to `None`,
                any.
            **kwargs: further arguments of the class, such as
                `return_sequences`, except those that the system determines.

        Returns:
            A `LinearDynamicalSystem` with eigenvalues="hinge" and
            mimo="general", built for that number of features.

        Raises:
            ValueError: if shapes do not agree, a number is not finite, A is
                not diagonalisable, or not invertible with `delayed`; or for
                an `LDStack`, which has `from_rnn`.

        Example: a low-pass filter.

        >>> import keras
        >>> import numpy as np
        >>> from scipy import signal
        >>> from keras_linrec.layers import LinearDynamicalSystem
        >>> numerator, denominator = signal.butter(2, 0.2)
        >>> layer = LinearDynamicalSystem.from_state_space(
        ...     *signal.tf2ss(numerator, denominator), delayed=True
        ... )
        >>> noise = np.random.randn(1, 50, 1)
        >>> filtered = signal.lfilter(numerator, denominator, noise, axis=1)
        >>> outputs = keras.ops.convert_to_numpy(layer(noise))
        >>> bool(np.allclose(outputs, filtered, atol=1e-4))
        True
        """
        if hasattr(cls, "from_rnn"):
            raise ValueError(
                f"A {cls.__name__} is made from matrices by `from_rnn`, with "
                "activation='linear' for a linear system. Received: "
                "from_state_space"
            )
        require_unset(kwargs, "the matrices", _FIXED)
        require_bool("delayed", delayed)
        transition, inputs, outputs, feedthrough, bias = checked_matrices(
            {
                "transition": transition,
                "inputs": inputs,
                "outputs": outputs,
                "feedthrough": feedthrough,
                "bias": bias,
            },
            inputs=("state_size", "features"),
            transition=("state_size", "state_size"),
            outputs=("units", "state_size"),
            feedthrough=("units", "features"),
            bias=("units",),
        )
        eigenvalues, basis = diagonalise(transition)
        if delayed:
            _require_invertible(eigenvalues)
            # C s_{t-1} = C A^-1 (s_t - B x_t).
            outputs = np.linalg.solve(transition.T, outputs.T).T
            feedthrough = feedthrough - outputs @ inputs
        layer = cls(
            len(outputs),
            len(transition),
            eigenvalues="hinge",
            mimo="general",
            initial_eigenvalues=eigenvalues,
            use_bias=bias is not None,
            **kwargs,
        )
        layer.build((batch_size, None, inputs.shape[1]))
        layer.input_kernel.assign(np.linalg.solve(basis, inputs).T)
        layer.output_kernel.assign((outputs @ basis).T)
        layer.feedthrough.assign(feedthrough.T)
        if bias is not None:
            layer.bias.assign(bias)
        return layer

    def to_canonical(
        self, form: Literal["transpose", "companion"] = "transpose"
    ) -> tuple[types.Tensor, ...]:
        """The system in a canonical form, as real float64 matrices.

        A companion form is determined by few numbers: A holds only the
        coefficients of its characteristic polynomial (equation 2).

        Args:
            form: `"transpose"` (the default), A with ones above the diagonal
                and B = (0, ..., 0, 1) of a single input; or `"companion"`,
                its transpose, with B = (1, 0, ..., 0). With
                mimo="concatenate" there is one such block for each feature
                (section 2.3). If one system has several inputs, A has that
                form and B is any matrix.

        Returns:
            `(A, B, C, D)`, NumPy arrays of the shapes (n, n), (n, features),
            (units, n), (units, features).

        A nonlinear `LDStack` returns the matrices of its linear part, without
        the bias of the state.

        Raises:
            ValueError: if the layer is not built; or if a system of several
                inputs has eigenvalues so close together that no such form
                exists. For a single input it always exists.
        """
        self._require_built("to_canonical")
        require_choice("form", form, canonical_system.FORMS)
        return *self._canonical(form), to_float64(self.feedthrough).T

    def _eigenvalues(self):
        """All of them as a complex float64 array (systems, states of one)."""
        return eigenvalues_ops.as_complex(
            self._modal_form().spectrum, self._size
        )

    def _canonical(self, form):
        """A, B and C."""
        outputs = to_float64(self.output_kernel).T
        if self.mimo != "concatenate":
            (eigenvalues,) = self._eigenvalues()
            inputs = to_float64(self._linear_input_rows()).T
            return canonical_system.canonical_system(
                form, eigenvalues, inputs, outputs
            )
        entering = to_float64(self._entering())[:, None]
        systems = [
            canonical_system.canonical_system(form, eigenvalues, entering, part)
            for eigenvalues, part in zip(
                self._eigenvalues(),
                np.split(outputs, self._systems, axis=1),
            )
        ]
        transitions, inputs, outputs = zip(*systems)
        return (
            canonical_system.block_diagonal(transitions),
            canonical_system.block_diagonal(inputs)
            @ to_float64(self.input_kernel).T,
            np.concatenate(outputs, axis=1),
        )

    def _require_built(self, method):
        if not self.built:
            raise ValueError(
                f"`{method}` needs a layer that is built: call it on a "
                f"sequence first. Received: built=False in '{self.name}'"
            )


def _require_invertible(eigenvalues):
    sizes = np.abs(eigenvalues)
    if sizes.min() < 1e-5 * max(1.0, sizes.max()):
        raise ValueError(
            "`transition` should be invertible where `delayed` is true: the "
            "layer's outputs read the state after the step. Received: a "
            f"matrix with an eigenvalue of {sizes.min():.1e}"
        )


def to_float64(tensor):
    """A NumPy copy."""
    return ops.convert_to_numpy(tensor).astype("float64")
