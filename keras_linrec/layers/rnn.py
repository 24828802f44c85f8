"""`keras.layers.RNN` that keeps masks."""

from typing import Any

import keras

from keras_linrec import types
from keras_linrec.layers.base.kept_masks import keep_masks
from keras_linrec.validation import first_mask


@keras.saving.register_keras_serializable("keras_linrec")
class RNN(keras.layers.RNN):
    """`keras.layers.RNN` that hands on masks in every version of Keras.

    It runs any cell, ours and Keras', step by step:

        y_t, h_t = cell(x_t, h_{t-1})

    Keras' own layer reads the mask of an earlier layer, and up to version 3.15
    hands it on; from 3.16 on, it drops it with a warning, and a pooling after
    it averages over masked steps. This one hands it on, and also reads it
    beside an `initial_state`. Everything else is as in Keras.

    Args:
        cell: the cell, or a list of cells, each of which reads the outputs of
            the one before it.
        return_sequences: whether to return all outputs or the last one.
            Defaults to `False`.
        return_state: whether to return the final states too. Defaults to
            `False`.
        go_backwards: whether to read the sequence from its end, and return the
            outputs in that order. Defaults to `False`.
        stateful: whether a batch starts with the final states of the one
            before it. Defaults to `False`.
        unroll: whether the program repeats the step instead of a loop. It
            needs a known length. Defaults to `False`.
        zero_output_for_mask: whether masked steps give zeros instead of the
            output before them. Defaults to `False`.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        sequences: float tensor, (batch, time, features).
        initial_state: list of the cell's states. Defaults to `None`: those of
            the cell, mostly zeros.
        mask: boolean tensor, (batch, time). A masked step changes no state.
            Defaults to `None`: that of an earlier layer.
        training: whether dropout applies. Defaults to `False`.
        sequences_mask: filled in by Keras with the mask of an earlier layer
            if a call has several tensors. Users pass `mask`.

    Output shape:
        (batch, time, units) with `return_sequences`, (batch, units) without;
        with `return_state`, a tuple of that and the final states, (batch,
        size) each. All have the policy's compute dtype.

    Raises:
        ValueError: at construction, for something that is not a cell; in a
            call, with `unroll` and an unknown length, or with `stateful` and
            another batch size.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_linrec
    >>> tokens = np.array([[5, 3, 0, 0], [2, 4, 1, 0]])
    >>> embedded = keras.layers.Embedding(6, 3, mask_zero=True)(tokens)
    >>> cell = keras_linrec.layers.OrthogonalRNNCell(8)
    >>> layer = keras_linrec.layers.RNN(cell, return_sequences=True)
    >>> outputs = layer(embedded)
    >>> tuple(keras.layers.GlobalAveragePooling1D()(outputs).shape)
    (2, 8)
    """

    def __init__(
        self,
        cell: Any,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        super().__init__(
            cell,
            return_sequences=return_sequences,
            return_state=return_state,
            go_backwards=go_backwards,
            stateful=stateful,
            unroll=unroll,
            zero_output_for_mask=zero_output_for_mask,
            **kwargs,
        )
        keep_masks(self)

    def call(
        self,
        sequences,
        initial_state=None,
        mask=None,
        training=False,
        sequences_mask=None,
    ):
        mask = first_mask(sequences_mask if mask is None else mask)
        return super().call(sequences, initial_state, mask, training)
