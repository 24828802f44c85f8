"""Deep models: an encoder, residual blocks, pooling and a head."""

import keras
from keras import ops

from keras_linrec import activations
from keras_linrec.layers import LSSL
from keras_linrec.layers.streaming import Streaming
from keras_linrec.models.residual_block import ResidualBlock
from keras_linrec.models.residual_block import clone
from keras_linrec.models.residual_block import serialize_unbuilt
from keras_linrec.models.residual_block import with_unit
from keras_linrec.ops import packing
from keras_linrec.validation import require_count

POOLINGS = ("mean", "last", None)

SIZES = {
    "small": {"depth": 6, "units": 128, "state_size": 128, "channels": 1},
    "large": {"depth": 4, "units": 256, "state_size": 256, "channels": 4},
}


class SequenceModel(Streaming, keras.Model):
    """What `SequenceClassifier` and `SequenceRegressor` share.

    Args:
        output_units: integer, the number of outputs of the head.
        **kwargs: those of `SequenceClassifier`.
    """

    def __init__(
        self,
        output_units,
        depth=6,
        units=128,
        dropout=0.0,
        normalization="pre",
        pooling="mean",
        activation=None,
        unit=None,
        seed=None,
        name=None,
        dtype=None,
        trainable=True,
        **unit_arguments,
    ):
        # Autocasting would bring time_deltas down to 16 bits.
        super().__init__(
            name=name, dtype=dtype, trainable=trainable, autocast=False
        )
        require_count("depth", depth)
        require_count("units", units)
        if pooling not in POOLINGS:
            raise ValueError(
                f"`pooling` should be one of {POOLINGS}. "
                f"Received: pooling={pooling}"
            )
        if unit is not None and unit_arguments:
            raise ValueError(
                "The arguments of LSSL have no use beside a `unit`. "
                f"Received: unit={unit}, {unit_arguments}"
            )
        if unit is None:
            arguments = {"state_size": 128, **unit_arguments}
            unit = LSSL(name="lssl", dtype=self.dtype_policy, **arguments)
        self.output_units = output_units
        self.depth = depth
        self.units = units
        self.dropout = dropout
        self.normalization = normalization
        self.pooling = pooling
        self.activation = keras.activations.get(activation)
        self.seed = seed
        self.supports_masking = True
        self._make_layers(unit)

    def _make_layers(self, unit):
        policy = self.dtype_policy
        self.encoder = keras.layers.Dense(
            self.units, name="encoder", dtype=policy
        )
        self.blocks = [
            ResidualBlock(
                clone(unit, index),
                normalization=self.normalization,
                dropout=self.dropout,
                seed=None if self.seed is None else self.seed + index,
                name=f"block_{index}",
                dtype=policy,
            )
            for index in range(self.depth)
        ]
        self.norm = None
        if self.normalization == "pre":
            self.norm = keras.layers.LayerNormalization(
                epsilon=self.blocks[0].epsilon, name="norm", dtype=policy
            )
        # In full precision, as sums of many steps and a softmax want it.
        self.head = keras.layers.Dense(
            self.output_units,
            activation=self.activation,
            name="head",
            dtype="float64" if self.variable_dtype == "float64" else "float32",
        )

    @classmethod
    def from_size(cls, size, output_units, **overrides):
        """A model of one of the paper's two sizes.

        The paper counts `depth * channels * units * (units + state_size)`
        parameters: C and the mixing of every LSSL. The encoder, the head, the
        normalizations, the biases, D, A, B and dt come on top: with one
        feature and ten classes, the last column.

        | size | depth | units | state_size | channels | paper's count | all |
        |---|---|---|---|---|---|---|
        | `"small"` | 6 | 128 | 128 | 1 | 196,608 | 207,626 |
        | `"large"` | 4 | 256 | 256 | 4 | 2,097,152 | 2,116,106 |

        Args:
            size: `"small"` or `"large"`.
            output_units: integer, the number of classes or outputs.
            **overrides: any other arguments of the constructor.

        Raises:
            ValueError: for an unknown size.
        """
        if size not in SIZES:
            raise ValueError(
                f"`size` should be one of {tuple(SIZES)}. Received: size={size}"
            )
        return cls(output_units, **{**SIZES[size], **overrides})

    # Sampling rates.

    @property
    def step_rescale(self):
        """What multiplies dt in every block; it may be set at any time.

        Signals of half the training data's sampling rate want 2. See `LSSL`.
        """
        return self._scaled_units()[0].step_rescale

    @step_rescale.setter
    def step_rescale(self, value):
        for unit in self._scaled_units():
            unit.step_rescale = value

    def _scaled_units(self):
        units = [block.unit for block in self.blocks]
        if not hasattr(units[0], "step_rescale"):
            raise ValueError(
                "Only units with time_deltas, as LSSL, can scale them. "
                f"Received: unit={type(units[0]).__name__}"
            )
        return units

    # Building and shapes.

    def build(self, sequences_shape):
        inner = (*sequences_shape[:-1], self.units)
        layers = [(self.encoder, sequences_shape)]
        layers += [(block, inner) for block in self.blocks]
        layers += [(self.head, inner)]
        if self.norm is not None:
            layers += [(self.norm, inner)]
        for layer, shape in layers:
            if not layer.built:
                layer.build(shape)

    def compute_output_shape(self, sequences_shape):
        leading = sequences_shape[: 2 if self.pooling is None else 1]
        return (*leading, self.output_units)

    def compute_output_spec(self, sequences, *args, **kwargs):
        return keras.KerasTensor(
            self.compute_output_shape(sequences.shape),
            dtype=self.head.compute_dtype,
        )

    def compute_mask(self, sequences, mask=None):
        return mask if self.pooling is None else None

    # Calling.

    def call(
        self,
        sequences,
        mask=None,
        training=False,
        time_deltas=None,
        reset_mask=None,
        sequences_mask=None,
    ):
        if reset_mask is not None and self.pooling is not None:
            raise ValueError(
                "Sequences that share a row have one output a step each, "
                "which needs a model with pooling=None. Received: reset_mask "
                f"and pooling={self.pooling}"
            )
        # Keras hands on an earlier layer's mask under this name where there
        # are time_deltas too.
        mask = sequences_mask if mask is None else mask
        if mask is not None:
            mask = ops.cast(mask, "bool")
            # What is no number would reach the weights by their gradients.
            sequences = ops.where(mask[:, :, None], sequences, 0.0)
        outputs = self.encoder(sequences)
        for block in self.blocks:
            outputs = block(
                outputs,
                mask=mask,
                training=training,
                time_deltas=time_deltas,
                reset_mask=reset_mask,
            )
        return self.head(self._pool(self._normalise(outputs), mask))

    def _normalise(self, outputs):
        if self.norm is not None:
            outputs = self.norm(outputs)
        return ops.cast(outputs, self.head.compute_dtype)

    def _pool(self, outputs, mask):
        if self.pooling is None:
            return outputs
        if mask is None:
            last = self.pooling == "last"
            return outputs[:, -1] if last else ops.mean(outputs, axis=1)
        if self.pooling == "last":
            return packing.last(outputs, mask)
        return packing.mean(outputs, mask)

    # Streaming.

    def streaming_parts(self):
        return self.blocks

    def get_initial_state(self, batch_size):
        """The states before the first step.

        Args:
            batch_size: integer, the number of rows.

        Returns:
            A list with the list of states of each block and, with
            `pooling="mean"`, one of the mean so far and of the number of
            steps.
        """
        states = super().get_initial_state(batch_size)
        if self.pooling != "mean":
            return states
        return [
            *states,
            [
                ops.zeros((batch_size, width), dtype=self.head.compute_dtype)
                for width in (self.units, 1)
            ],
        ]

    def stream_step(self, inputs, states, constants, **options):
        outputs = self.encoder(inputs)
        new_states = []
        constants = constants or [None] * len(self.blocks)
        for block, state, ahead in zip(self.blocks, states, constants):
            outputs, state = block.step(outputs, state, ahead, **options)
            new_states.append(state)
        outputs = self._normalise(outputs)
        if self.pooling == "mean":
            mean, count = states[-1]
            count = count + 1
            outputs = mean + (outputs - mean) / count
            new_states.append([outputs, count])
        return self.head(outputs), new_states

    def stream_part(self, sequences, states, mask, **options):
        outputs = self.encoder(sequences)
        new_states = []
        for block, state in zip(self.blocks, states):
            outputs, state = block.call_with_states(
                outputs, state, mask, **options
            )
            new_states.append(state)
        outputs = self._normalise(outputs)
        if self.pooling == "mean":
            outputs, pooled = _running_mean(outputs, states[-1], mask)
            new_states.append(pooled)
        return self.head(outputs), new_states

    # Saving.

    def get_config(self):
        # The unit holds what was given for every LSSL.
        return {
            **super().get_config(),
            "output_units": self.output_units,
            "depth": self.depth,
            "units": self.units,
            "dropout": self.dropout,
            "normalization": self.normalization,
            "pooling": self.pooling,
            "activation": activations.serialize(self.activation),
            "unit": serialize_unbuilt(self.blocks[0].unit),
            "seed": self.seed,
            **self._quantized(),
        }

    def _quantized(self):
        """The policies of the Dense parts that `quantize` has changed."""
        policies = {
            name: keras.dtype_policies.serialize(part.dtype_policy)
            for name, part in self._dense_parts().items()
            if part.quantization_mode is not None
        }
        return {"quantized": policies} if policies else {}

    def _dense_parts(self):
        return {"encoder": self.encoder, "head": self.head}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = with_unit(config, custom_objects)
        policies = config.pop("quantized", {})
        model = cls(**config)
        parts = model._dense_parts()
        if not set(policies) <= set(parts):
            raise ValueError(
                f"`quantized` should hold the policies of {tuple(parts)} or of "
                f"one of them. Received: quantized={policies}"
            )
        for name, policy in policies.items():
            # Before it is built: its weights are then 8-bit integers at once.
            parts[name].dtype_policy = keras.dtype_policies.get(policy)
        return model


@keras.saving.register_keras_serializable("keras_linrec")
class SequenceClassifier(SequenceModel):
    """The deep LSSL of Gu et al. 2021, for classes.

        x_0 = encoder(sequences)              `units` features a step
        x_i = block_i(x_{i-1})                `depth` residual blocks
        y   = activation(head(pool(norm(x_depth))))

    The encoder and the head are position-wise linear maps; with
    `normalization="post"` every block ends with a norm, and no other follows.
    Under a 16-bit policy pooling and head compute in float32.

    `SequenceClassifier.from_size("small", classes)` and `"large"` are the
    paper's two models.

    Args:
        classes: integer, the number of classes.
        activation: of the head. Defaults to `"softmax"`; `None` gives logits.
        depth: integer, the number of blocks. Defaults to 6.
        units: integer, H, the features of every block. Defaults to 128.
        dropout: float in [0, 1), of every block. Defaults to 0.
        normalization: `"pre"` or `"post"`, of every block. Defaults to
            `"pre"`.
        pooling: `"mean"`, over the steps that count, `"last"`, the last step
            that counts, or `None`: one output a step. Defaults to `"mean"`.
        unit: a layer to take instead of an LSSL, from (batch, time, units) to
            the same shape; every block gets a copy of it, with weights of its
            own (that start alike where its initializers have seeds).
            Defaults to `None`.
        seed: integer, the seed of the blocks' dropout. Defaults to `None`.
        **kwargs: `name`, `dtype`, `trainable`; and all that LSSL takes, for
            every LSSL: `state_size` (128, where LSSL itself has 64),
            `channels`, `measure`, `trainable_transition`,
            `trainable_timescale`, `dt_min`, `dt_max`, `step_rescale` and
            so on. The paper takes dt_min and dt_max a factor of 100 apart,
            with 1 / L between them for sequences of L steps.

    Call arguments:
        sequences: float tensor, (batch, time, features), of any length.
        mask: boolean tensor, (batch, time), true where a step counts. Any
            pattern is allowed, and what the other steps hold does not matter.
            A row that is masked throughout pools to zeros.
        training: whether dropout applies.
        time_deltas: float tensor, (batch, time), how long each step lasts. See
            `LSSL`.

    The attribute `step_rescale`, that of every LSSL, may be set at any
    time, for signals of another sampling rate.

    Output shape:
        (batch, classes), or (batch, time, classes) with `pooling=None`.

    Raises:
        ValueError: for an argument out of its range, at construction.

    Reference:
        [Combining Recurrent, Convolutional, and Continuous-time Models with
        Linear State-Space Layers](https://arxiv.org/abs/2110.13985), appendix
        B.4.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> model = keras_linrec.models.SequenceClassifier(
    ...     5, depth=2, units=8, state_size=16, dropout=0.1
    ... )
    >>> model.compile("adam", "sparse_categorical_crossentropy")
    >>> sequences = np.random.rand(4, 100, 3).astype("float32")
    >>> history = model.fit(sequences, np.array([0, 1, 2, 3]), verbose=0)
    >>> model.predict(sequences, verbose=0).shape
    (4, 5)

    What it says of a stream, after each step:

    >>> states = model.get_initial_state(batch_size=4)
    >>> output, states = model.step(sequences[:, 0], states)
    >>> tuple(output.shape)
    (4, 5)
    """

    def __init__(self, classes, activation="softmax", **kwargs):
        require_count("classes", classes)
        super().__init__(classes, activation=activation, **kwargs)
        self.classes = classes

    def get_config(self):
        config = super().get_config()
        config["classes"] = config.pop("output_units")
        return config


@keras.saving.register_keras_serializable("keras_linrec")
class SequenceRegressor(SequenceModel):
    """The deep LSSL of Gu et al. 2021, for real numbers.

    `SequenceClassifier` with a linear head; see there.

    Args:
        outputs: integer, how many numbers to predict.
        activation: of the head. Defaults to `None`.
        **kwargs: those of `SequenceClassifier`.

    Output shape:
        (batch, outputs), or (batch, time, outputs) with `pooling=None`.

    Raises:
        ValueError: for an argument out of its range, at construction.

    Reference:
        [Combining Recurrent, Convolutional, and Continuous-time Models with
        Linear State-Space Layers](https://arxiv.org/abs/2110.13985), appendix
        B.4.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> model = keras_linrec.models.SequenceRegressor(
    ...     1, depth=2, units=8, state_size=16, pooling=None
    ... )
    >>> sequences = np.random.rand(4, 100, 3).astype("float32")
    >>> tuple(model(sequences).shape)
    (4, 100, 1)
    """

    def __init__(self, outputs, activation=None, **kwargs):
        require_count("outputs", outputs)
        super().__init__(outputs, activation=activation, **kwargs)

    def get_config(self):
        config = super().get_config()
        config["outputs"] = config.pop("output_units")
        return config


def _running_mean(outputs, pooled, mask):
    """The means up to each step, and the last with the number of steps."""
    mean, count = pooled
    counts = ops.ones_like(outputs[:, :, :1])
    if mask is not None:
        mask = ops.expand_dims(ops.cast(mask, "bool"), -1)
        counts = ops.where(mask, counts, 0.0)
        outputs = ops.where(mask, outputs, 0.0)
    # Of differences from the mean before, as single steps take it.
    before = ops.expand_dims(mean, 1)
    changes = ops.cumsum(counts * (outputs - before), axis=1)
    counts = ops.expand_dims(count, 1) + ops.cumsum(counts, axis=1)
    means = before + changes / ops.maximum(counts, 1.0)
    return means, [means[:, -1], counts[:, -1]]
