"""A unit with a residual connection and a normalization around it."""

import inspect

import keras

from keras_linrec.layers import LSSL
from keras_linrec.layers.streaming import Streaming
from keras_linrec.validation import require_between

NORMALIZATIONS = ("pre", "post")
NORMALIZERS = ("layer", "rms")


@keras.saving.register_keras_serializable("keras_linrec")
class ResidualBlock(Streaming, keras.layers.Layer):
    """A sequence layer as a Transformer holds its own - Gu et al. 2021.

        pre:  y = x + dropout(unit(norm(x)))
        post: y = norm(x + dropout(unit(x)))

    where norm is `keras.layers.LayerNormalization`, or `RMSNormalization`.
    Blocks of the one kind are stacked; "pre" trains more stably in deep
    stacks, whose last output wants a normalization of its own then.

    The nonlinearity and the mixing of the features that follow an LSSL in the
    paper's deep models are LSSL's own `activation` and `kernel`.

    Args:
        unit: the layer within: one of `keras_linrec.layers`, or any layer
            from (batch, time, features) to the same shape. The block's own
            from then on; a `keras.layers.Bidirectional` fits with
            `merge_mode="sum"`. Defaults to `None`, `LSSL()`.
        normalization: `"pre"` or `"post"`. Defaults to `"pre"`.
        dropout: float in [0, 1), the share of the unit's output features to
            drop during training, the same ones at every time step. Defaults
            to 0.
        epsilon: float, added to the variance by the normalization. Defaults
            to 1e-5.
        seed: integer, the seed of the dropout. Defaults to `None`.
        normalizer: `"layer"`, which takes the mean away and divides by the
            standard deviation, or `"rms"`, which divides by the root of the
            mean square. Defaults to `"layer"`.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        sequences: float tensor, (batch, time, features).
        mask: boolean tensor, (batch, time), true where a step counts: passed
            to the unit. What the outputs are at the other steps is
            unspecified.
        training: whether dropout applies.
        time_deltas, step_rescale, reset_mask: for a unit that takes them.
            See `LSSL`.
        padding_is_last: boolean, whether the steps that do not count are the
            last of each row. The unit then reads zeros there, and no mask,
            which saves moving its steps; for units that look at earlier steps
            only, or whose states stay zero over zeros, as those of a `RotRNN`
            of both directions. Defaults to `False`.

    Output shape:
        (batch, time, features), that of the input.

    Raises:
        ValueError: at construction, for an argument out of its range and for
            a unit that returns its states, the last step only, or the steps
            in reverse; at the call, for a unit that changes the number of
            features, and for what the unit does not take.

    Reference:
        [Combining Recurrent, Convolutional, and Continuous-time Models with
        Linear State-Space Layers](https://arxiv.org/abs/2110.13985), appendix
        B.4.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> block = keras_linrec.models.ResidualBlock(
    ...     keras_linrec.layers.LSSL(state_size=16), dropout=0.1
    ... )
    >>> sequences = np.random.rand(2, 100, 3).astype("float32")
    >>> tuple(block(sequences).shape)
    (2, 100, 3)

    The same, one step at a time:

    >>> states = block.get_initial_state(batch_size=2)
    >>> output, states = block.step(sequences[:, 0], states)
    >>> tuple(output.shape)
    (2, 3)
    """

    def __init__(
        self,
        unit=None,
        normalization="pre",
        dropout=0.0,
        epsilon=1e-5,
        seed=None,
        normalizer="layer",
        **kwargs,
    ):
        # Autocasting would bring time_deltas down to 16 bits.
        super().__init__(autocast=False, **kwargs)
        if unit is None:
            unit = LSSL(name="lssl", dtype=self.dtype_policy)
        _check_unit(unit)
        if normalization not in NORMALIZATIONS:
            raise ValueError(
                f"`normalization` should be one of {NORMALIZATIONS}. "
                f"Received: normalization={normalization}"
            )
        require_between("dropout", dropout, 0, 1, "[)")
        require_between("epsilon", epsilon, 0, 1, "()")
        self.unit = unit
        self.normalization = normalization
        self.normalizer = normalizer
        self.dropout = dropout
        self.epsilon = epsilon
        self.seed = seed
        self.supports_masking = True
        self.norm = make_norm(
            normalizer, epsilon=epsilon, name="norm", dtype=self.dtype_policy
        )
        self.dropout_layer = keras.layers.SpatialDropout1D(
            dropout, seed=seed, name="dropout", dtype=self.dtype_policy
        )

    def build(self, sequences_shape):
        if not self.norm.built:
            self.norm.build(sequences_shape)
        if not self.unit.built:
            self.unit.build(sequences_shape)
        output_shape = self.unit.compute_output_shape(sequences_shape)
        if output_shape[-1] != sequences_shape[-1]:
            raise ValueError(
                f"The unit '{self.unit.name}' of a residual block should give "
                f"as many features as it is given, {sequences_shape[-1]}. "
                f"Received: {output_shape[-1]} features"
            )

    def compute_output_shape(self, sequences_shape):
        return sequences_shape

    def compute_output_spec(self, sequences, *args, **kwargs):
        return keras.KerasTensor(sequences.shape, dtype=self.compute_dtype)

    def compute_mask(self, sequences, mask=None):
        return mask

    def call(
        self,
        sequences,
        mask=None,
        training=False,
        time_deltas=None,
        step_rescale=None,
        reset_mask=None,
        sequences_mask=None,
        padding_is_last=False,
    ):
        # Keras hands on an earlier layer's mask under this name where there
        # are time_deltas too.
        mask = sequences_mask if mask is None else mask
        arguments = self._unit_arguments(
            time_deltas=time_deltas,
            step_rescale=step_rescale,
            reset_mask=reset_mask,
        )
        taken = _arguments_of(self.unit)
        if "training" in taken:
            arguments["training"] = training
        reads_zeros = padding_is_last and mask is not None
        if mask is not None and "mask" in taken and not reads_zeros:
            arguments["mask"] = mask

        def run(inputs):
            if reads_zeros:
                counts = keras.ops.cast(mask, "bool")
                counts = keras.ops.expand_dims(counts, -1)
                inputs = keras.ops.where(counts, inputs, 0.0)
            outputs = self.unit(inputs, **arguments)
            return self.dropout_layer(outputs, training=training)

        return self._around(run, sequences)

    def _around(self, run, inputs):
        inputs = keras.ops.cast(inputs, self.compute_dtype)
        if self.normalization == "pre":
            return inputs + run(self.norm(inputs))
        return self.norm(inputs + run(inputs))

    def _unit_arguments(self, **given):
        """Those that are given, which the unit has to take then."""
        given = {k: v for k, v in given.items() if v is not None}
        for name, value in given.items():
            if name not in _arguments_of(self.unit):
                raise ValueError(
                    f"The unit '{self.unit.name}', {type(self.unit).__name__}, "
                    f"takes no `{name}`. Received: {name}={value}"
                )
        return given

    # Streaming, with the unit's states.

    def require_streaming(self, part=False):
        wanted = "call_with_states" if part else "step"
        if not hasattr(self.unit, wanted):
            raise ValueError(
                "A block streams if its unit does, as those of "
                "keras_linrec.layers do. Received: unit="
                f"{type(self.unit).__name__}, without `{wanted}`"
            )

    def get_initial_state(self, batch_size):
        self.require_streaming()
        return self.unit.get_initial_state(batch_size)

    def step_constants(self):
        self.require_streaming()
        if not hasattr(self.unit, "step_constants"):
            return None
        return self.unit.step_constants()

    def stream_step(self, inputs, states, constants, **options):
        options = self._unit_arguments(**options)
        if constants is not None:
            options["constants"] = constants
        return self._stream(self.unit.step, inputs, states, options)

    def stream_part(self, sequences, states, mask, **options):
        options = {"mask": mask, **self._unit_arguments(**options)}
        return self._stream(
            self.unit.call_with_states, sequences, states, options
        )

    def _stream(self, unit, inputs, states, options):
        new_states = []

        def run(inputs):
            outputs, new = unit(inputs, states, **options)
            new_states.extend(new)
            return outputs

        return self._around(run, inputs), new_states

    def get_config(self):
        return {
            **super().get_config(),
            "unit": serialize_unbuilt(self.unit),
            "normalization": self.normalization,
            "dropout": self.dropout,
            "epsilon": self.epsilon,
            "seed": self.seed,
            "normalizer": self.normalizer,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**with_unit(config, custom_objects))


def make_norm(normalizer, **arguments):
    """The layer that a name of `NORMALIZERS` stands for."""
    if normalizer not in NORMALIZERS:
        raise ValueError(
            f"`normalizer` should be one of {NORMALIZERS}. "
            f"Received: normalizer={normalizer}"
        )
    if normalizer == "layer":
        return keras.layers.LayerNormalization(**arguments)
    norm = keras.layers.RMSNormalization(**arguments)
    # It treats every step alike, and Keras forgot to say so.
    norm.supports_masking = True
    return norm


def clone(unit, index):
    """A layer like another, with weights and a seed of its own to come."""
    if not isinstance(unit, keras.layers.Layer):
        return unit
    config = unit.get_config()
    if index and config.get("seed") is not None:
        config["seed"] += index
    return type(unit).from_config(config)


def serialize_unbuilt(unit):
    """A layer's config, from which its weights come within its new owner."""
    config = keras.saving.serialize_keras_object(unit)
    config.pop("build_config", None)
    return config


def with_unit(config, custom_objects=None):
    """A config with its unit as a layer."""
    if not isinstance(config.get("unit"), dict):
        return dict(config)
    unit = keras.saving.deserialize_keras_object(
        config["unit"], custom_objects=custom_objects
    )
    return {**config, "unit": unit}


def _arguments_of(unit):
    """The names of what the unit's call takes."""
    return inspect.signature(unit.call).parameters


def _check_unit(unit):
    if not isinstance(unit, keras.layers.Layer):
        raise ValueError(
            f"`unit` should be a layer or None. Received: unit={unit}"
        )
    for name, wanted in (
        ("return_sequences", True),
        ("return_state", False),
        ("go_backwards", False),
    ):
        if getattr(unit, name, wanted) != wanted:
            raise ValueError(
                f"`unit` should have {name}={wanted}. Received: unit with "
                f"{name}={not wanted}"
            )
