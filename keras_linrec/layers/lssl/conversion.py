"""An `LSSL` from given matrices."""

from typing import Any

import numpy as np

from keras_linrec import types
from keras_linrec.layers.base.given_matrices import checked_matrices
from keras_linrec.layers.base.given_matrices import eigenvectors
from keras_linrec.layers.base.given_matrices import require_basis
from keras_linrec.layers.base.given_matrices import require_unset
from keras_linrec.ops.structured.hippo import StructuredTransition

# The arguments that `from_state_space` sets.
_FIXED = ("units", "state_size", "channels", "measure", "use_bias")
_FIXED += ("stable_transition", "dt_min", "dt_max")
# The smallest share of the largest eigenvalue that is inverted as it is.
_SMALLEST_SHARE = 1e-4


class StateSpaceConversion:
    """A mixin of `LSSL`: a layer that runs a given continuous system."""

    @classmethod
    def from_state_space(
        cls,
        transition: types.Tensor,
        inputs: types.Tensor,
        outputs: types.Tensor,
        feedthrough: types.Tensor,
        dt: Any = 1.0,
        bias: types.Tensor = None,
        activation: types.Identifier = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> types.Self:
        """A layer that runs a given continuous system, such as a filter.

            x'(s) = A x(s) + B u(s)
            y(s)  = activation(C_1 x_1(s) + D_1 u_1(s)) + ... + bias

        Each feature u_f drives its own copy x_f of the system, by its column
        of B. Without an activation, the sum is y = C x + D u of the one system
        with all inputs.

        Every A that is diagonalisable in float32 has the form of the layer in
        the coordinates of its eigenvectors, a random A too. Others are
        refused: the matrices of HiPPO, whose eigenvectors are nearly
        dependent, are those of `measure`.

        Args:
            transition, inputs, outputs, feedthrough: arrays A (N, N), B (N,
                features), C (units, N) and D (units, features).
            dt: float, or array (features,), the time between two steps, in
                the unit of A. Defaults to 1.
            bias: array (units,). Defaults to `None`, a layer without it.
            activation: of every feature's outputs. Defaults to `None`, no
                activation, for a linear layer.
            batch_size: integer, for a `stateful` layer. Defaults to `None`,
                any.
            **kwargs: further arguments of the class, such as `alpha`, except
                those that the system determines.

        Returns:
            An `LSSL` with a channel for each output, built for that number of
            features. It is trained like another, from this start.

        Raises:
            ValueError: if shapes do not agree, a number is not finite, `dt`
                is not positive, or A is not diagonalisable.

        Example: a first-order low-pass filter.

        >>> import keras
        >>> import numpy as np
        >>> from keras_linrec.layers import LSSL
        >>> one = np.ones((1, 1))
        >>> layer = LSSL.from_state_space(-one, one, one, 0 * one, dt=0.1)
        >>> response = keras.ops.convert_to_numpy(layer(np.ones((1, 100, 1))))
        >>> bool(np.allclose(response[0, -1], 1, atol=1e-3))
        True
        """
        require_unset(kwargs, "the matrices", _FIXED)
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
        size, features = inputs.shape
        units = len(outputs)
        timescale = _checked_timescale(dt, features)
        start, basis = structured_transition(transition)
        layer = cls(
            units,
            size,
            channels=units,
            activation=activation,
            use_bias=bias is not None,
            **kwargs,
        )
        layer.build((batch_size, None, features))
        layer.transition_p.assign(start.p)
        layer.transition_d.assign(start.d)
        layer.transition_q.assign(start.q)
        layer.transition_t.assign(start.t)
        layer.input_vector.assign(start.b)
        layer.log_timescale.assign(np.log(timescale))
        entering = np.linalg.solve(basis, inputs)
        leaving = outputs @ basis
        read_outs = [_read_out(leaving, b, start.b) for b in entering.T]
        layer.output_matrix.assign(np.stack(read_outs))
        layer.feedthrough.assign(feedthrough.T)
        # The sum over the features.
        layer.kernel.assign(np.tile(np.eye(units), (features, 1)))
        if bias is not None:
            layer.bias.assign(bias)
        return layer


def structured_transition(transition):
    """S^-1 A S as P (D + T^-1) Q, with a B that reaches all states, and S.

    S^-1 A S has the eigenvalues of A on its diagonal, and a block
    [[a, -b], [b, a]] for each pair a + ib, a - ib. T is the inverse of
    -S^-1 A S - D, which has the same form, and D shifts it away from zero.
    """
    eigenvalues, one, other, leftover = eigenvectors(transition)
    pairs = one.shape[1]
    is_real = np.isreal(eigenvalues[: 2 * pairs : 2])
    u = one.real
    v = np.where(is_real, other.real, -one.imag)
    basis = np.stack([u, v], axis=-1).reshape(len(transition), -1)
    basis = np.concatenate([basis, leftover.real], axis=1)
    require_basis(basis)
    largest = np.abs(eigenvalues).max() or 1.0
    shift = 0.0
    if np.abs(eigenvalues).min() < _SMALLEST_SHARE * largest:
        shift = -2.0 * largest
    # Numbers a + ib as such blocks: their inverses are blocks too.
    inverse = 1.0 / (-eigenvalues - shift)
    bands = np.zeros((3, len(eigenvalues)))
    bands[1] = inverse.real
    first = np.arange(0, 2 * pairs, 2)[~is_real]
    bands[0, first] = -inverse.imag[first]
    bands[2, first] = inverse.imag[first]
    entering = np.ones(len(eigenvalues))
    entering[first + 1] = 0.0
    ones = np.ones(len(eigenvalues))
    return StructuredTransition(
        -ones, shift * ones, ones, bands, entering
    ), basis


def _read_out(leaving, column, entering):
    """C of a feature, which enters by `entering` instead of by its column."""
    result = leaving * column
    for second in np.flatnonzero(entering == 0):
        first = second - 1
        # Re((c_u - i c_v) (b_u + i b_v) z) for the state z.
        factor = leaving[:, first] - 1j * leaving[:, second]
        factor = factor * (column[first] + 1j * column[second])
        result[:, first], result[:, second] = factor.real, -factor.imag
    return result


def _checked_timescale(dt, features):
    timescale = np.asarray(dt, "float64")
    is_positive = np.isfinite(timescale).all() and (timescale > 0).all()
    if timescale.shape not in ((), (features,)) or not is_positive:
        raise ValueError(
            f"`dt` should be a positive number, or {features} of them, one "
            f"for each feature. Received: dt={dt}"
        )
    return np.broadcast_to(timescale, (features,))
