"""Token embedding, residual blocks of sequence units, last normalization."""

from collections.abc import Mapping
from typing import Any

import keras
from keras_hub.layers import ReversibleEmbedding
from keras_hub.models import Backbone

from keras_linrec import types
from keras_linrec.layers.base.set_later import SetLater
from keras_linrec.layers.base.streaming import Streaming
from keras_linrec.models.frozen_parts import freeze
from keras_linrec.models.frozen_parts import freeze_all
from keras_linrec.models.frozen_parts import frozen_config
from keras_linrec.models.frozen_parts import layers_within
from keras_linrec.models.normalization import NORMALIZATIONS
from keras_linrec.models.normalization import make_norm
from keras_linrec.models.normalization import normalize
from keras_linrec.models.pooling import repeat_last
from keras_linrec.models.residual_block import ResidualBlock
from keras_linrec.models.saved_whole import SavedWhole
from keras_linrec.models.units import clone
from keras_linrec.models.units import make_unit
from keras_linrec.models.units import serialize_unbuilt
from keras_linrec.models.units import with_unit
from keras_linrec.nlp.gated_feedforward import GatedFeedforward
from keras_linrec.nlp.padding import PaddingBack
from keras_linrec.nlp.padding import PaddingLast
from keras_linrec.nlp.preset import NamedPreset
from keras_linrec.validation import require_between
from keras_linrec.validation import require_bools
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count

_EPSILON = 1e-5


@keras.saving.register_keras_serializable("keras_linrec")
class LinRecBackbone(SetLater, NamedPreset, SavedWhole, Streaming, Backbone):
    """The core of a language model whose memory is a state of constant size.

        x = token_embedding(token_ids)
        x = x + dropout(unit_i(norm(x)))           for every layer i
        x = x + dropout(feedforward_i(norm(x)))
        y = norm(x)

    with a sequence unit of `keras_linrec.layers` in the place that attention
    has in a Transformer, followed by a `GatedFeedforward`. There is no position
    embedding, since a unit reads the tokens in order, and no maximum length.

    The units compute in float32 under any dtype policy (float64 under a
    float64 one), and their weights and states are float32; the rest follows
    the policy.

    Args:
        vocabulary_size: integer, the number of tokens.
        num_layers: integer, the number of layers, each of a unit and a
            feedforward network.
        hidden_dim: integer, the number of features of a token.
        intermediate_dim: integer, the number of features within the
            feedforward networks.
        unit: the name of a unit, as in `models.SequenceClassifier`, or any
            layer from (batch, time, hidden_dim) to the same shape, of which
            every layer of the model gets a copy. Defaults to `"rotrnn"`.
        unit_arguments: dictionary of constructor arguments for a unit given by
            name, such as `{"state_size": 256, "num_heads": 32}`. Every unit
            gets them, and weights of its own. Defaults to `None`, the unit's
            own defaults.
        normalization: `"rms"`, `"layer"` or `"batch"`, see
            `models.ResidualBlock`. Defaults to `"rms"`.
        dropout: float in [0, 1), the share of features to drop, during
            training, from what each unit and network adds, the same ones at
            every time step. Defaults to 0.
        tie_embeddings: whether tokens are predicted with the matrix that
            embeds them. Defaults to `True`.
        packed: whether several texts share a row, so that the model takes
            `reset_mask` beside its other inputs. Weights are the same either
            way, and a preset saved with the one loads with the other:
            `from_preset(folder, packed=False)`. Defaults to `False`.
        dtype: a dtype policy, its name, or `None`, the global one.
        **kwargs: `name`, `trainable`.

    Call arguments:
        inputs: dictionary of
            `token_ids`, integers (batch, time);
            `padding_mask`, integer or boolean (batch, time), true where there
            is a token: the units skip the other steps, whose outputs repeat
            those of the token before, or are zeros if there is none;
            and, if `packed`, `reset_mask`, boolean (batch, time), true at the
            first token of every text.

    Output shape:
        (batch, time, hidden_dim).

    Raises:
        ValueError: for an argument out of its range, and an unknown unit, at
            construction.

    Example:

    >>> import numpy as np
    >>> from keras_linrec.nlp import LinRecBackbone
    >>> backbone = LinRecBackbone(
    ...     vocabulary_size=259,
    ...     num_layers=2,
    ...     hidden_dim=16,
    ...     intermediate_dim=32,
    ...     unit="rotrnn",
    ...     unit_arguments={"state_size": 16, "num_heads": 4},
    ... )
    >>> inputs = {
    ...     "token_ids": np.array([[5, 7, 9, 0], [4, 3, 2, 1]]),
    ...     "padding_mask": np.array([[1, 1, 1, 0], [1, 1, 1, 1]]),
    ... }
    >>> tuple(backbone(inputs).shape)
    (2, 4, 16)

    One token at a time, at a cost that does not grow:

    >>> states = backbone.get_initial_state(batch_size=2)
    >>> outputs, states = backbone.step(inputs["token_ids"][:, 0], states)
    >>> tuple(outputs.shape)
    (2, 16)
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        hidden_dim: int,
        intermediate_dim: int,
        unit: types.Unit = "rotrnn",
        unit_arguments: Mapping[str, Any] | None = None,
        normalization: types.Normalization = "rms",
        dropout: float = 0.0,
        tie_embeddings: bool = True,
        packed: bool = False,
        dtype: Any = None,
        **kwargs: Any,
    ):
        require_count("vocabulary_size", vocabulary_size)
        require_count("num_layers", num_layers)
        require_count("hidden_dim", hidden_dim)
        require_count("intermediate_dim", intermediate_dim)
        # Keras takes no NumPy integers.
        vocabulary_size, hidden_dim = int(vocabulary_size), int(hidden_dim)
        require_between("dropout", dropout, 0, 1, "[)")
        require_choice("normalization", normalization, NORMALIZATIONS)
        require_bools(tie_embeddings=tie_embeddings, packed=packed)
        first_unit = make_unit(unit, unit_arguments, hidden_dim, dtype)

        # Layers.
        self.token_embedding = ReversibleEmbedding(
            vocabulary_size,
            hidden_dim,
            tie_weights=tie_embeddings,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02),
            dtype=dtype,
            name="token_embedding",
        )
        # Masks end here, and do not reach the loss: weights of samples do.
        self.token_embedding.supports_masking = True
        # Once for all layers, and numbers instead of features.
        self.padding_last = PaddingLast(name="padding_last")
        self.padding_back = PaddingBack(dtype=dtype, name="padding_back")

        def around(layer, name):
            return ResidualBlock(
                layer,
                # The network that follows every unit is its nonlinearity.
                activation="linear",
                gated=False,
                dropout=dropout,
                normalization=normalization,
                epsilon=_EPSILON,
                dtype=dtype,
                name=name,
            )

        self.unit_blocks = tuple(
            around(clone(first_unit, index), f"unit_block_{index}")
            for index in range(num_layers)
        )
        self.feedforward_blocks = tuple(
            around(
                GatedFeedforward(
                    intermediate_dim, dtype=dtype, name="feedforward"
                ),
                f"feedforward_block_{index}",
            )
            for index in range(num_layers)
        )
        self.output_norm = make_norm(
            normalization, epsilon=_EPSILON, dtype=dtype, name="output_norm"
        )

        # The functional model.
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input(
                (None,), dtype="int32", name="padding_mask"
            ),
        }
        if packed:
            inputs["reset_mask"] = keras.Input(
                (None,), dtype="bool", name="reset_mask"
            )
        outputs = self.hidden_states(**inputs)
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)
        if not self.trainable:
            freeze_all(self._parts())

        # Config.
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        # A configuration, since Keras would save a layer held here twice.
        is_name = isinstance(unit, str)
        self.unit = unit if is_name else serialize_unbuilt(unit)
        self.unit_arguments = unit_arguments
        self.normalization = normalization
        self.tie_embeddings = tie_embeddings
        self.packed = packed

    @property
    def dropout(self):
        """The share that every block drops; it may be set at any time."""
        return self.unit_blocks[0].dropout

    @dropout.setter
    def dropout(self, value):
        require_between("dropout", value, 0, 1, "[)")
        for block in (*self.unit_blocks, *self.feedforward_blocks):
            block.dropout = value

    def _parts(self):
        """All layers within, by place, each before its own parts."""
        return layers_within("backbone", self)

    def _layer_blocks(self):
        return zip(self.unit_blocks, self.feedforward_blocks)

    def hidden_states(
        self,
        token_ids,
        padding_mask=None,
        reset_mask=None,
        layer_intercept_fn=None,
    ):
        """What a call gives, with a look at every layer.

        Args:
            token_ids: integers, (batch, time).
            padding_mask: (batch, time), true where there is a token. Defaults
                to `None`, everywhere.
            reset_mask: boolean, (batch, time), true at the first token of
                every text. Defaults to `None`, nowhere.
            layer_intercept_fn: function of an output (batch, time, hidden_dim)
                and an integer, the number of the layer that it comes from, or
                -1 for the embedding. What the function returns replaces that
                output. Defaults to `None`.

        Returns:
            (batch, time, hidden_dim).
        """
        look_at = layer_intercept_fn or (lambda outputs, index: outputs)
        options = {"mask": padding_mask, "reset_mask": reset_mask}
        # Whoever looks at the layers sees the tokens where they are.
        moves = padding_mask is not None and layer_intercept_fn is None
        if moves:
            moved = self.padding_last(token_ids, padding_mask, reset_mask)
            token_ids = moved["token_ids"]
            options["mask"] = moved["padding_mask"]
            options["reset_mask"] = moved.get("reset_mask")
            options["padding_is_last"] = True
        outputs = look_at(self.token_embedding(token_ids), -1)
        for index, (unit, feedforward) in enumerate(self._layer_blocks()):
            outputs = unit(outputs, **options)
            outputs = feedforward(outputs, mask=options["mask"])
            outputs = look_at(outputs, index)
        outputs = normalize(self.output_norm, outputs, options["mask"])
        if not moves:
            return outputs
        return self.padding_back(outputs, mask=padding_mask)

    # Streaming.

    @property
    def can_stream(self):
        """Whether the units run step by step: forwards only."""
        try:
            self.unit_blocks[0]._require_streaming()
        except ValueError:
            return False
        return True

    # A step is a token.
    _step_axes = ("batch",)

    def _streaming_parts(self):
        return self.unit_blocks

    def _stream_step(self, inputs, states, constants):
        outputs = self.token_embedding(inputs)
        new_states = []
        constants = constants or [None] * self.num_layers
        for blocks, state, ahead in zip(
            self._layer_blocks(), states, constants
        ):
            unit_block, feedforward_block = blocks
            outputs, state = unit_block.step(outputs, state, ahead)
            outputs, _ = feedforward_block.step(outputs, [])
            new_states.append(state)
        return self._stream_norm(outputs), new_states

    def _stream_part(self, sequences, states, mask):
        outputs = self.token_embedding(sequences)
        new_states = []
        for blocks, state in zip(self._layer_blocks(), states):
            unit_block, feedforward_block = blocks
            outputs, state = unit_block.call_with_states(outputs, state, mask)
            outputs, _ = feedforward_block.call_with_states(outputs, [])
            new_states.append(state)
        outputs = self._stream_norm(outputs)
        if mask is not None:
            outputs = repeat_last(outputs, mask)
        return outputs, new_states

    def _stream_norm(self, outputs):
        return normalize(self.output_norm, outputs, training=False)

    # Fine-tuning.

    def default_lora_layer_names(self):
        return ["gate_dense", "value_dense", "output_dense"]

    # Saving.

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "unit": self.unit,
            "unit_arguments": keras.saving.serialize_keras_object(
                self.unit_arguments
            ),
            "normalization": self.normalization,
            "dropout": self.dropout,
            "tie_embeddings": self.tie_embeddings,
            "packed": self.packed,
            # Whoever is frozen as a whole freezes its parts when it is made.
            **(frozen_config(self, self._parts()) if self.trainable else {}),
        }

    @classmethod
    def from_config(cls, config):
        config = with_unit(config)
        config["unit_arguments"] = keras.saving.deserialize_keras_object(
            config["unit_arguments"]
        )
        frozen = config.pop("frozen", ())
        backbone = super().from_config(config)
        if frozen:
            freeze(backbone._parts(), frozen)
        return backbone
