"""A deep model for classes."""

from collections.abc import Mapping
from typing import Any
from typing import Literal

import keras

from keras_linrec import types
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.models.sequence_model import SequenceModel
from keras_linrec.validation import require_count


@keras.saving.register_keras_serializable("keras_linrec")
class SequenceClassifier(SequenceModel):
    """A deep model of residual blocks that gives classes.

        x_0 = encoder(sequences)              `units` features a step
        x_i = block_i(x_{i-1})                `num_layers` blocks
        y   = activation(head(pool(norm(x_n))))

    Each block is a `ResidualBlock` around a unit of any kind; around a linear
    unit, the block adds an activation and a gate. With the default `"lssl"`,
    the model is the deep LSSL of Gu et al. 2021. The encoder and the head are
    position-wise linear maps; with `norm_first=False` every block ends with a
    norm, and no other follows. Under a 16-bit policy pooling and head compute
    in float32.

    `SequenceClassifier.from_size("small", num_classes)` and `"large"` are the
    LSSL paper's two models.

    Args:
        num_classes: integer, the number of classes.
        num_layers: integer, the number of blocks. Defaults to 6.
        units: integer, the features of every block. Defaults to 128.
        unit: a name that `ResidualBlock` takes, or any layer that keeps the
            shape (batch, time, units). Every block gets a copy, with weights
            of its own (equal at the start if its initializers have seeds). Or
            a list of one for each block. Defaults to `"lssl"`.
        unit_arguments: dictionary of constructor arguments for a unit given by
            name, such as `{"state_size": 64}`. For LSSL the paper chooses
            `dt_min` and `dt_max` a factor of 100 apart, with 1 / L between
            them for sequences of L steps. Defaults to `None`.
        dropout: float in [0, 1), of every block. Defaults to 0.
        normalization: `"layer"`, `"rms"` or `"batch"`. Defaults to `"layer"`.
        norm_first: boolean. `True` normalizes the inputs of each unit, `False`
            the sum after it. Defaults to `True`.
        block_activation: after each unit, see `ResidualBlock`. Defaults to
            `None`: `"gelu"` for a linear unit.
        gated: whether a gated linear unit follows each unit, see
            `ResidualBlock`. Defaults to `None`: `True` for a linear unit,
            `False` for others.
        pool_size: integer, k: between two blocks the outputs of k steps are
            averaged, so that each block reads a k-th of the steps; or a tuple
            of one for each place between two blocks. Masked steps are left
            out first. Steps that do not fill the last window are dropped: a
            row of 10 steps with `pool_size=4` loses two. Defaults to 1.
        pooling: over the steps that count, before the head: `"mean"`,
            `"max"`, `"last"`, the last of them, or `None`: one output a step
            (with `pool_size`, for each step of the last block). Defaults to
            `"mean"`.
        activation: of the head. `None` gives logits. Defaults to
            `"softmax"`.
        seed: integer, the seed of the blocks' dropout. Defaults to `None`.
        name, dtype, trainable: those of `keras.Model`.

    Call arguments:
        sequences: float tensor, (batch, time, features), of any length.
        mask: boolean tensor, (batch, time), true where a step counts. Any
            pattern is allowed, and what the other steps hold does not matter.
            A row that is masked throughout, or has too few steps for one
            average, pools to zeros. With `pooling=None`, the output at a
            masked step is the head's for zeros. Defaults to `None`.
        training: whether dropout applies and batch normalization uses the
            statistics of the batch. Defaults to `False`.
        reset_mask: boolean tensor, (batch, time), true where a sequence
            begins, so that several share a row. Needs `pooling=None` and no
            `pool_size`. Defaults to `None`.
        time_deltas: float tensor, (batch, time), how long each step lasts. See
            `LSSL`. Not with `pool_size`. Defaults to `None`.

    `with_step_rescale` returns a copy of a trained model of LSSLs for signals
    of another sampling rate. Without `pool_size` the attribute `step_rescale`,
    that of every LSSL, does the same and may be set outside of `fit`.

    A stream, step by step or in parts, gives after each step the outputs for
    the sequence so far. With `pool_size`, these outputs change only when the
    last block has a full average: every `pool_size ** (num_layers - 1)` steps,
    or the product of a tuple. A model with both `pool_size` and `pooling=None`
    cannot stream.

    Output shape:
        (batch, num_classes), or (batch, time, num_classes) with
        `pooling=None`.

    Raises:
        ValueError: at construction, for an argument out of its range; at the
            call, for `time_deltas` or a `reset_mask` that the model cannot
            take.

    Reference:
        [Combining Recurrent, Convolutional, and Continuous-time Models with
        Linear State-Space Layers](https://arxiv.org/abs/2110.13985), appendix
        B.4.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> model = keras_linrec.models.SequenceClassifier(
    ...     num_classes=5, num_layers=2, units=8, unit="rotrnn", pool_size=4
    ... )
    >>> model.compile("adam", "sparse_categorical_crossentropy")
    >>> sequences = np.random.rand(4, 100, 3).astype("float32")
    >>> history = model.fit(sequences, np.array([0, 1, 2, 3]), verbose=0)
    >>> model.predict(sequences, verbose=0).shape
    (4, 5)

    Its outputs for a stream, after each step:

    >>> states = model.get_initial_state(batch_size=4)
    >>> output, states = model.step(sequences[:, 0], states)
    >>> tuple(output.shape)
    (4, 5)
    """

    def __init__(
        self,
        num_classes: int,
        num_layers: int = 6,
        units: int = 128,
        unit: types.Unit = "lssl",
        unit_arguments: Mapping[str, Any] | None = None,
        dropout: float = 0.0,
        normalization: types.Normalization = "layer",
        norm_first: bool = True,
        block_activation: types.Identifier = None,
        gated: bool | None = None,
        pool_size: int = 1,
        pooling: types.Pooling = "mean",
        activation: types.Identifier = "softmax",
        seed: types.Seed = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ):
        require_count("num_classes", num_classes)
        super().__init__(
            output_dim=num_classes, **for_bases(SequenceClassifier, locals())
        )
        self.num_classes = num_classes

    @classmethod
    def from_size(
        cls,
        size: Literal["small", "large"],
        num_classes: int,
        unit_arguments: Mapping[str, Any] | None = None,
        **overrides: Any,
    ) -> types.Self:
        """A model of one of the LSSL paper's two sizes.

        The paper counts `num_layers * channels * units * (units + state_size)`
        parameters: C and the mixing of every LSSL. The encoder, the head, the
        normalizations, the biases, D, A, B and dt come on top: with one
        feature and ten classes, the last column.

        | size | num_layers | units | state_size | channels | paper's | all |
        |---|---|---|---|---|---|---|
        | `"small"` | 6 | 128 | 128 | 1 | 196,608 | 207,626 |
        | `"large"` | 4 | 256 | 256 | 4 | 2,097,152 | 2,116,106 |

        Args:
            size: `"small"` or `"large"`.
            num_classes: integer, the number of classes.
            unit_arguments: dictionary of arguments for LSSL besides those of
                the size, or in their place. Defaults to `None`.
            **overrides: any other arguments of the constructor.

        Raises:
            ValueError: for an unknown size, and for a `unit` other than
                `"lssl"`.
        """
        return cls._from_size(size, num_classes, unit_arguments, overrides)

    @classmethod
    def for_signals(
        cls,
        num_classes: int,
        *,
        sampling_rate: float,
        longest_memory: float,
        shortest_memory: float | None = None,
        highest_frequency: float | None = None,
        **arguments: Any,
    ) -> types.Self:
        """A model for signals, with starting values in hertz and seconds.

        The states of each block start as the `for_signals` of its unit makes
        them, for the rate at which the block reads: with `pool_size`, a step
        of a later block lasts `pool_size` times as long as one of the block
        before it. So every block remembers up to `longest_memory` seconds.

        Args:
            num_classes: integer, the number of classes.
            sampling_rate: float, steps of the signal per second.
            longest_memory: float, in seconds, more than two steps of the last
                block.
            shortest_memory: float, in seconds; blocks whose steps are longer
                start at two of them. Defaults to `None`, which follows from
                `highest_frequency` in every block, see `LSSL.for_signals`.
            highest_frequency: float, in hertz, at most half the sampling rate.
                Defaults to `None`, half the rate of each block.
            **arguments: other arguments of the constructor; `unit` is
                `"lssl"`, the default, `"rotrnn"`, `"lru"`, `"s5"` or `"s4d"`.

        Returns:
            A model.

        Raises:
            ValueError: for an argument out of its range.

        Example: two seconds of sound at 16,000 samples a second. A step of
        the third block lasts 64 samples, 4 ms.

        >>> from keras_linrec.models import SequenceClassifier
        >>> model = SequenceClassifier.for_signals(
        ...     10, sampling_rate=16000, longest_memory=2,
        ...     num_layers=3, units=8, pool_size=8,
        ... )
        >>> [round(1 / block.unit.dt_min) for block in model.blocks]
        [32000, 4000, 500]
        """
        return cls._for_signals(
            num_classes,
            sampling_rate,
            longest_memory,
            shortest_memory,
            highest_frequency,
            **arguments,
        )

    def get_config(self):
        config = super().get_config()
        config["num_classes"] = config.pop("output_dim")
        return config
