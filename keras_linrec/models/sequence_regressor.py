"""A deep model for real numbers."""

from collections.abc import Mapping
from typing import Any
from typing import Literal

import keras

from keras_linrec import types
from keras_linrec.models.sequence_model import SequenceModel


@keras.saving.register_keras_serializable("keras_linrec")
class SequenceRegressor(SequenceModel):
    """A deep model of residual blocks that gives real numbers.

    `SequenceClassifier` with a linear head.

    Args:
        output_dim: integer, how many numbers to predict.
        activation: of the head. Defaults to `None`.
        num_layers, units, unit, unit_arguments, dropout, normalization,
            norm_first, block_activation, gated, pool_size, pooling, seed,
            name, dtype, trainable: those of `SequenceClassifier`.

    Call arguments:
        sequences, mask, training, reset_mask, time_deltas: those of
            `SequenceClassifier`.

    Output shape:
        (batch, output_dim), or (batch, time, output_dim) with `pooling=None`.

    Raises:
        ValueError: as `SequenceClassifier`.

    Reference:
        [Combining Recurrent, Convolutional, and Continuous-time Models with
        Linear State-Space Layers](https://arxiv.org/abs/2110.13985), appendix
        B.4.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> model = keras_linrec.models.SequenceRegressor(
    ...     output_dim=1, num_layers=2, units=8, pooling=None
    ... )
    >>> sequences = np.random.rand(4, 100, 3).astype("float32")
    >>> tuple(model(sequences).shape)
    (4, 100, 1)
    """

    @classmethod
    def from_size(
        cls,
        size: Literal["small", "large"],
        output_dim: int,
        unit_arguments: Mapping[str, Any] | None = None,
        **overrides: Any,
    ) -> types.Self:
        """A model of one of the LSSL paper's two sizes.

        Args:
            size: `"small"` or `"large"`, see `SequenceClassifier.from_size`.
            output_dim: integer, how many numbers to predict.
            unit_arguments: dictionary of arguments for LSSL besides those of
                the size, or in their place. Defaults to `None`.
            **overrides: any other arguments of the constructor.

        Raises:
            ValueError: for an unknown size, and for a `unit` other than
                `"lssl"`.
        """
        return cls._from_size(size, output_dim, unit_arguments, overrides)

    @classmethod
    def for_signals(
        cls,
        output_dim: int,
        *,
        sampling_rate: float,
        longest_memory: float,
        shortest_memory: float | None = None,
        highest_frequency: float | None = None,
        **arguments: Any,
    ) -> types.Self:
        """A model for signals, with starting values in hertz and seconds.

        Args:
            output_dim: integer, how many numbers to predict.
            sampling_rate, longest_memory, shortest_memory, highest_frequency,
                **arguments: those of `SequenceClassifier.for_signals`.

        Returns:
            A model.

        Raises:
            ValueError: for an argument out of its range.
        """
        return cls._for_signals(
            output_dim,
            sampling_rate,
            longest_memory,
            shortest_memory,
            highest_frequency,
            **arguments,
        )
