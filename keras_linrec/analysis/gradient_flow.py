"""The norms of gradients after many steps back in time."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.ops import differentiation
from keras_linrec.ops.scan_checks import require_rank
from keras_linrec.validation import checked_seed
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_array


@in_any_byte_order
def gradient_norms(
    layer: Any, sequences: types.Tensor, steps: int, seed: types.Seed = 0
) -> types.Tensor:
    """The relative norm of a gradient after a number of steps back in time.

        |(d h_t / d h_0)^T v| / |v|

    with the output h_t after t steps, a random initial state h_0 and a random
    direction v of the output. A recurrence with orthogonal Jacobians, such as
    `OrthogonalRNN(activation="oplu")`, gives 1 for every t. Gradients vanish
    if the values fall towards 0, and explode if they grow without bound.

    Args:
        layer: a recurrent layer, of this package or of Keras, that returns
            the last output only and takes an `initial_state`.
        sequences: float array (batch, time, features).
        steps: integers from 1 to time, the values of t.
        seed: integer, for h_0 and v. Defaults to 0.

    Returns:
        A float64 array (number of steps, batch).

    Raises:
        ValueError: if one of the steps is not from 1 to time, `layer` has no
            states or returns more than its last output, or `sequences` are not
            an array (batch, time, features).

    Example:

    >>> import numpy as np
    >>> from keras_linrec import analysis
    >>> from keras_linrec.layers import OrthogonalRNN
    >>> layer = OrthogonalRNN(8, reflections=4, activation="oplu")
    >>> sequences = np.zeros((1, 100, 2), "float32")
    >>> layer.build(sequences.shape)
    >>> norms = analysis.gradient_norms(layer, sequences, [10, 100])
    >>> bool(np.allclose(norms, 1.0, atol=1e-3))
    True
    """
    if not hasattr(layer, "get_initial_state"):
        raise ValueError(
            "`layer` should be a recurrent layer, with `get_initial_state`. "
            f"Received: layer={layer}"
        )
    for name in ("return_sequences", "return_state"):
        if getattr(layer, name, False):
            raise ValueError(
                "`layer` should return its last output alone. Received: "
                f"{name}=True in layer '{layer.name}'"
            )
    require_array("sequences", sequences)
    require_rank("sequences", sequences, 3, "(batch, time, features)")
    sequences = np.asarray(sequences, "float32")
    batch, time, _ = sequences.shape
    # Here, and not within the gradient: JAX would leave tracers as weights.
    if not layer.built:
        layer.build(sequences.shape)
    counts = np.asarray(steps)
    if (
        counts.ndim != 1
        or not counts.size
        or counts.dtype.kind not in "iu"
        or not ((counts >= 1) & (counts <= time)).all()
    ):
        raise ValueError(
            f"`steps` should be integers from 1 to {time}, the length of the "
            f"sequences. Received: steps={steps}"
        )
    generator = np.random.default_rng(checked_seed(seed))

    def normal(shape):
        return ops.convert_to_tensor(
            generator.standard_normal(shape).astype("float32")
        )

    structure = layer.get_initial_state(batch)
    states = [normal(state.shape) for state in keras.tree.flatten(structure)]
    direction = normal(layer.compute_output_shape(sequences.shape))

    def along_direction(states, sequences):
        initial_state = keras.tree.pack_sequence_as(structure, states)
        output = layer(sequences, initial_state=initial_state)
        return ops.sum(ops.cast(output, "float32") * direction)

    gradient = differentiation.gradient(along_direction)
    norms = [
        _lengths(gradient(states, ops.convert_to_tensor(sequences[:, :count])))
        for count in counts
    ]
    return np.stack(norms) / _lengths([direction])


def _lengths(tensors):
    """The norm of each row of all tensors together."""
    rows = [
        ops.convert_to_numpy(tensor).astype("float64").reshape(len(tensor), -1)
        for tensor in tensors
    ]
    return np.sqrt(sum(np.sum(row**2, axis=-1) for row in rows))
