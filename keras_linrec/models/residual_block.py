"""A unit with normalization, position-wise layers and a residual connection."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_linrec import activations
from keras_linrec import types
from keras_linrec.double_precision import activate
from keras_linrec.layers.base.kept_masks import keep_masks
from keras_linrec.layers.base.set_later import SetLater
from keras_linrec.layers.base.set_later import accepted_share
from keras_linrec.layers.base.streaming import Streaming
from keras_linrec.layers.base.torch_module import LoadsAnyName
from keras_linrec.models.dense_parts import build_dense
from keras_linrec.models.dense_parts import dense_config
from keras_linrec.models.dense_parts import pop_entries
from keras_linrec.models.dense_parts import prepare
from keras_linrec.models.dense_parts import require_names
from keras_linrec.models.frozen_parts import freeze
from keras_linrec.models.frozen_parts import freeze_all
from keras_linrec.models.frozen_parts import frozen_config
from keras_linrec.models.frozen_parts import layers_within
from keras_linrec.models.normalization import make_norm
from keras_linrec.models.normalization import normalize
from keras_linrec.models.units import is_linear
from keras_linrec.models.units import make_unit
from keras_linrec.models.units import serialize_unbuilt
from keras_linrec.models.units import with_unit
from keras_linrec.ops.masks.packing import zero_masked
from keras_linrec.ops.masks.steps import require_arrays
from keras_linrec.validation import by_name
from keras_linrec.validation import checked_seed
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import parameters_of
from keras_linrec.validation import require_between
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_call_arguments

GATE_PARTS = ("value_dense", "gate_dense")

# The arguments of a call that some units take.
_OF_SOME_UNITS = ("reset_mask", "time_deltas", "step_rescale")


@keras.saving.register_keras_serializable("keras_linrec")
class ResidualBlock(SetLater, LoadsAnyName, Streaming, keras.layers.Layer):
    """A sequence unit in a residual block, as deep state space models use it.

        h = dropout(activation(unit(norm(x))))
        h = dropout((W_v h + b_v) * sigmoid(W_g h + b_g))      if gated
        y = x + h

    With `norm_first=False` the norm follows the sum: y = norm(x + h) and
    h = dropout(activation(unit(x))).

    A linear unit (RotRNN, LRU, S5, LinOSS, LinearDynamicalSystem without an
    `activation`)
    needs the activation and the gate: without them only the norm makes the
    block nonlinear, and a stack of such blocks learns little. Outside training
    batch normalization is linear too. Activation and gate are what the blocks
    of S5 and LRU have, and on by default for a linear unit. For a unit with a
    nonlinearity of its own they are off by default: LSSL contains the
    activation and the mixing of its paper's deep models.

    Args:
        unit: `"lssl"`, `"rotrnn"`, `"lru"`, `"s5"`, `"s4d"`, `"linoss"`,
            `"linear_dynamical_system"`, `"ldstack"`, `"orthogonal_rnn"`,
            `"lipschitz_rnn"`, `"antisymmetric_rnn"`, `"min_gru"`, `"min_lstm"`
            or `"rglru"`, or any layer from (batch, time, features) to the same
            shape; the block owns that layer from then on. A
            `keras_linrec.layers.Bidirectional`, or Keras', fits with
            `merge_mode="sum"`. Defaults to `"lssl"`.
        unit_arguments: dictionary of constructor arguments for a unit given by
            name. The nonlinear units need `units`, the number of features.
            Defaults to `None`.
        activation: after the unit. `None` is `"gelu"` for a linear unit and
            `"linear"` for others. Defaults to `None`.
        gated: whether the gated linear unit follows, two `keras.layers.Dense`
            with biases, `value_dense` (W_v, b_v) and `gate_dense` (W_g, b_g).
            `None` is `True` for a linear unit and `False` for others.
            Defaults to `None`.
        dropout: float in [0, 1), the share of features to drop during
            training, the same ones at every time step: after the activation
            and after the gate, or after the unit if there is neither.
            Defaults to 0.
        normalization: `"layer"`, `"rms"`, which divides by the root mean
            square without subtracting the mean, or `"batch"`, over the batch
            and time, as RotRNN's paper uses it. Masked steps do not enter the
            batch statistics; outside training, and in a stream, the moving
            statistics (momentum 0.9) are used. Defaults to `"layer"`.
        norm_first: boolean. `True` normalizes the inputs of the unit, which
            trains more stably in deep stacks and leaves the last block's
            output without a norm; `False` normalizes the sum. Defaults to
            `True`.
        epsilon: float, added to the variance by the normalization. Defaults
            to 1e-5.
        seed: integer, the seed of the dropout. Defaults to `None`.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        sequences: float tensor, (batch, time, features).
        mask: boolean tensor, (batch, time), true where a step counts. Passed
            to the unit and to batch normalization. Outputs at the other steps
            are unspecified.
        training: whether dropout applies and batch normalization uses the
            statistics of the batch. Defaults to `False`.
        reset_mask, time_deltas, step_rescale: for a unit that takes them.
            See `LSSL`.
        padding_is_last: boolean, whether masked steps are the last of each
            row. Then the unit gets zeros instead of a mask, which is faster.
            Only causal units allow this, and those whose zero state stays
            zero. Defaults to `False`.

    Output shape:
        (batch, time, features), that of the input.

    Raises:
        ValueError: at construction, for an argument out of its range and for
            a unit that returns its states, the last step only, or the steps
            in reverse; at the call, for a unit that changes the number of
            features, and for an argument that the unit does not take.

    References:
        [Combining Recurrent, Convolutional, and Continuous-time Models with
        Linear State-Space Layers](https://arxiv.org/abs/2110.13985), appendix
        B.4; [Simplified State Space Layers for Sequence
        Modeling](https://arxiv.org/abs/2208.04933), appendix G.1;
        [RotRNN: Modelling Long Sequences with
        Rotations](https://arxiv.org/abs/2407.07239), appendix B.2.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> block = keras_linrec.models.ResidualBlock("rotrnn", dropout=0.1)
    >>> sequences = np.random.rand(2, 100, 8).astype("float32")
    >>> tuple(block(sequences).shape)
    (2, 100, 8)

    The same, one step at a time:

    >>> states = block.get_initial_state(batch_size=2)
    >>> output, states = block.step(sequences[:, 0], states)
    >>> tuple(output.shape)
    (2, 8)
    """

    def __init__(
        self,
        unit: types.Unit = "lssl",
        unit_arguments: Mapping[str, Any] | None = None,
        activation: types.Identifier = None,
        gated: bool | None = None,
        dropout: float = 0.0,
        normalization: types.Normalization = "layer",
        norm_first: bool = True,
        epsilon: float = 1e-5,
        seed: types.Seed = None,
        **kwargs: Any,
    ):
        # Autocasting would bring time_deltas down to 16 bits.
        super().__init__(autocast=False, **kwargs)
        policy = self.dtype_policy
        unit = make_unit(unit, unit_arguments, dtype=policy)
        _check_unit(unit)
        require_bool("gated", gated, optional=True)
        require_bool("norm_first", norm_first)
        require_between("epsilon", epsilon, 0, 1, "()")
        seed = checked_seed(seed)
        # The block hands the mask to its unit, and on.
        keep_masks(unit)
        self.unit = unit
        self.activation = activation
        self.gated = is_linear(unit) if gated is None else gated
        self.normalization = normalization
        self.norm_first = norm_first
        self.epsilon = epsilon
        self.seed = seed
        self.supports_masking = True
        self.norm = make_norm(
            normalization, epsilon=epsilon, name="norm", dtype=policy
        )
        # Its rate follows.
        self.dropout_layer = keras.layers.SpatialDropout1D(
            0.0, seed=seed, name="dropout", dtype=policy
        )
        self.dropout = dropout
        # The gate's Dense layers, made once the number of features is known.
        self.value_dense = self.gate_dense = None
        self._gate_entries = pop_entries({})
        self._frozen = None
        if not self.trainable:
            freeze_all(self._parts())

    _accept_unit_arguments = SetLater._refuse

    def _accept_activation(self, name, value):
        if value is None:
            value = "gelu" if is_linear(self.unit) else "linear"
        return activations.get_unary(value)

    def _accept_dropout(self, name, value):
        layer = self.dropout_layer
        layer.rate = accepted_share(layer, name, value, layer.seed)
        return value

    @property
    def is_linear(self):
        """Whether nothing in the block is nonlinear outside training."""
        return (
            is_linear(self.unit)
            and self.normalization == "batch"
            and not (self._is_activated or self.gated)
        )

    @property
    def _is_activated(self):
        return self.activation is not keras.activations.linear

    def build(self, sequences_shape):
        features = sequences_shape[-1]
        if not self.norm.built:
            self.norm.build(sequences_shape)
        if not self.unit.built:
            self.unit.build(sequences_shape)
        output_shape = self.unit.compute_output_shape(sequences_shape)
        if output_shape[-1] != features:
            raise ValueError(
                f"The unit '{self.unit.name}' of a residual block should give "
                f"as many features as it is given, {features}. "
                f"Received: {output_shape[-1]} features"
            )
        if self.gated and self.value_dense is None:
            self.value_dense, self.gate_dense = (
                self._make_dense(name, sequences_shape) for name in GATE_PARTS
            )

    def _make_dense(self, name, sequences_shape):
        dense = keras.layers.Dense(
            sequences_shape[-1],
            name=name,
            dtype=self.dtype_policy,
            trainable=(
                self.trainable
                if self._frozen is None
                else name not in self._frozen
            ),
        )
        prepare(dense, name, self._gate_entries)
        build_dense(dense, sequences_shape)
        return dense

    def _dense_parts(self):
        """The Dense layers of the gate, by name."""
        if self.value_dense is None:
            return {}
        return {name: getattr(self, name) for name in GATE_PARTS}

    def _set_dense(self, entries):
        """Build the gate as the entries of a configuration have it."""
        require_names(entries, GATE_PARTS)
        self._gate_entries = entries

    def _parts(self):
        """The layers that have weights, by name."""
        return {
            "unit": self.unit,
            **layers_within("unit", self.unit),
            "norm": self.norm,
            **self._dense_parts(),
        }

    @property
    def trainable(self):
        """Whether the block is trained; setting it sets all of its parts."""
        return super().trainable

    @trainable.setter
    def trainable(self, value):
        keras.layers.Layer.trainable.fset(self, value)
        # This is a later word on the gate than that of a configuration.
        self._frozen = None

    def _set_frozen(self, names):
        """Train the parts that are not named, also those not built yet."""
        self._frozen = list(names)
        freeze(self._parts(), self._frozen)

    def compute_output_shape(self, sequences_shape):
        return sequences_shape

    def compute_output_spec(self, sequences, *args, **kwargs):
        return keras.KerasTensor(sequences.shape, dtype=self.compute_dtype)

    def compute_mask(self, sequences, mask=None):
        return mask

    @in_any_byte_order
    def __call__(self, *args, **kwargs):
        require_arrays(by_name(type(self).call, args, kwargs))
        return super().__call__(*args, **kwargs)

    def call(
        self,
        sequences,
        mask=None,
        training=False,
        reset_mask=None,
        time_deltas=None,
        step_rescale=None,
        sequences_mask=None,
        padding_is_last=False,
    ):
        # Keras hands on an earlier layer's mask under this name where there
        # are time_deltas too.
        mask = sequences_mask if mask is None else mask
        arguments = self._call_arguments(
            reset_mask=reset_mask,
            time_deltas=time_deltas,
            step_rescale=step_rescale,
        )
        taken = _arguments_of(self.unit)
        if "training" in taken:
            arguments["training"] = training
        reads_zeros = padding_is_last and mask is not None
        if mask is not None and "mask" in taken and not reads_zeros:
            arguments["mask"] = mask

        def run(inputs):
            if reads_zeros:
                inputs = zero_masked(inputs, mask)
            return self.unit(inputs, **arguments)

        if mask is not None and not reads_zeros:
            # A NaN there would reach the gradients of the normalization.
            sequences = zero_masked(sequences, mask)
        return self._around(run, sequences, mask, training)

    def _around(self, run, inputs, mask=None, training=False):
        """The block, where `run` runs its unit."""
        inputs = keras.ops.cast(inputs, self.compute_dtype)
        if self.norm_first:
            normalized = normalize(self.norm, inputs, mask, training)
            return inputs + self._position_wise(run(normalized), training)
        outputs = inputs + self._position_wise(run(inputs), training)
        return normalize(self.norm, outputs, mask, training)

    def _position_wise(self, outputs, training):
        """What follows the unit, at each step separately."""
        if self._is_activated:
            outputs = activate(self.activation, outputs)
        if self._is_activated or not self.gated:
            outputs = self._drop(outputs, training)
        if not self.gated:
            return outputs
        gate = keras.ops.sigmoid(self.gate_dense(outputs))
        return self._drop(self.value_dense(outputs) * gate, training)

    def _drop(self, outputs, training):
        # A stream has no dropout, and its steps no time axis. In this order:
        # within `keras.RematScope` JAX may give no bool.
        if not (self.dropout and training):
            return outputs
        return self.dropout_layer(outputs, training=training)

    def _call_arguments(self, **given):
        """Those that are not `None`, if the unit takes them."""
        require_call_arguments(self, given, _OF_SOME_UNITS)
        given = {k: v for k, v in given.items() if v is not None}
        for name, value in given.items():
            if name not in _arguments_of(self.unit):
                raise ValueError(
                    f"The unit '{self.unit.name}', {type(self.unit).__name__}, "
                    f"takes no `{name}`. Received: {name}={value}"
                )
        return given

    # Streaming, with the unit's states.

    def _require_streaming(self, part=False):
        wanted = "call_with_states" if part else "step"
        if not hasattr(self.unit, wanted):
            raise ValueError(
                "A block streams if its unit does, as those of "
                "keras_linrec.layers do. Received: unit="
                f"{type(self.unit).__name__}, without `{wanted}`"
            )
        if isinstance(self.unit, Streaming):
            self.unit._require_streaming(part)

    def get_initial_state(self, batch_size: int):
        self._require_streaming()
        return self.unit.get_initial_state(batch_size)

    def step_constants(self):
        self._require_streaming()
        if not hasattr(self.unit, "step_constants"):
            return None
        return self.unit.step_constants()

    def _stream_step(self, inputs, states, constants, **options):
        options = self._call_arguments(**options)
        if constants is not None:
            options["constants"] = constants
        return self._stream(self.unit.step, inputs, states, options)

    def _stream_part(self, sequences, states, mask, **options):
        options = {"mask": mask, **self._call_arguments(**options)}
        if mask is not None:
            sequences = zero_masked(sequences, mask)
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

    # Saving.

    def get_config(self):
        return {
            **super().get_config(),
            "unit": serialize_unbuilt(self.unit),
            "activation": activations.serialize(self.activation),
            "gated": self.gated,
            "dropout": self.dropout,
            "normalization": self.normalization,
            "norm_first": self.norm_first,
            "epsilon": self.epsilon,
            "seed": self.seed,
            **dense_config(self._dense_parts()),
            **frozen_config(self, self._parts()),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = with_unit(config, custom_objects)
        entries = pop_entries(config)
        frozen = config.pop("frozen", None)
        block = cls(**config)
        block._set_dense(entries)
        if frozen is not None:
            block._set_frozen(frozen)
        return block


def _arguments_of(unit):
    """The parameters of the unit's call, by name."""
    return parameters_of(type(unit).call)


def _check_unit(unit):
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
