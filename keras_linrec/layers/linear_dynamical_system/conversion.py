"""A `LinearDynamicalSystem` as real matrices, in canonical forms."""

from typing import Literal

import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.ops.algebra import canonical_system
from keras_linrec.ops.algebra import eigenvalues as eigenvalues_ops
from keras_linrec.validation import require_choice


class CanonicalConversion:
    """A mixin of `LinearDynamicalSystem`: its system as matrices."""

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
            self.modal_form().spectrum, self._size
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


def to_float64(tensor):
    """A NumPy copy."""
    return ops.convert_to_numpy(tensor).astype("float64")
