"""The base of deep models: an encoder, residual blocks, pooling, a head."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_linrec import activations
from keras_linrec import types
from keras_linrec.layers.base.sequence_layer import SequenceLayer
from keras_linrec.layers.base.set_later import SetLater
from keras_linrec.layers.base.set_later import set_all
from keras_linrec.layers.base.set_later import settings_of
from keras_linrec.layers.base.streaming import Streaming
from keras_linrec.layers.base.torch_module import LoadsAnyName
from keras_linrec.models import pooling as pooling_over_time
from keras_linrec.models import step_averages
from keras_linrec.models.dense_parts import build_dense
from keras_linrec.models.dense_parts import dense_config
from keras_linrec.models.dense_parts import pop_entries
from keras_linrec.models.dense_parts import prepare
from keras_linrec.models.dense_parts import require_names
from keras_linrec.models.frozen_parts import freeze
from keras_linrec.models.frozen_parts import freeze_all
from keras_linrec.models.frozen_parts import frozen_config
from keras_linrec.models.normalization import make_norm
from keras_linrec.models.normalization import normalize
from keras_linrec.models.residual_block import ResidualBlock
from keras_linrec.models.saved_whole import SavedWhole
from keras_linrec.models.signals import steps_of_blocks
from keras_linrec.models.signals import units_for_signals
from keras_linrec.models.units import clone
from keras_linrec.models.units import seed_of_copy
from keras_linrec.models.units import serialize_units
from keras_linrec.models.units import units_of_blocks
from keras_linrec.models.units import with_unit
from keras_linrec.ops.masks import packing
from keras_linrec.ops.masks.moves import to_places
from keras_linrec.ops.masks.steps import Steps
from keras_linrec.ops.masks.steps import require_arrays
from keras_linrec.validation import by_name
from keras_linrec.validation import checked_seed
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import property_if_known
from keras_linrec.validation import require_between
from keras_linrec.validation import require_choice
from keras_linrec.validation import require_count
from keras_linrec.validation import require_dictionary

POOLINGS = (*pooling_over_time.POOLINGS, None)

# Of the paper's two models: num_layers, units, and arguments of LSSL.
SIZES = {
    "small": (6, 128, {"state_size": 128, "channels": 1}),
    "large": (4, 256, {"state_size": 256, "channels": 4}),
}


class SequenceModel(SetLater, LoadsAnyName, SavedWhole, Streaming, keras.Model):
    """The base of `SequenceClassifier` and `SequenceRegressor`.

    `SequenceRegressor`, which takes the same, describes the arguments.
    """

    def __init__(
        self,
        output_dim: int,
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
        activation: types.Identifier = None,
        seed: types.Seed = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ):
        # Autocasting would bring time_deltas down to 16 bits.
        super().__init__(
            name=name, dtype=dtype, trainable=trainable, autocast=False
        )
        require_count("num_layers", num_layers)
        require_count("units", units)
        seed = checked_seed(seed)
        require_count("output_dim", output_dim)
        self.output_dim = output_dim = int(output_dim)
        self.num_layers = int(num_layers)
        self.units = units = int(units)
        self.normalization = normalization
        self.norm_first = norm_first
        self.pool_size, self._pool_sizes = _pool_sizes(pool_size, num_layers)
        self.pooling = pooling
        self.activation = activation
        if block_activation is not None:
            activations.get_unary(block_activation, "block_activation")
        self.seed = seed
        self.supports_masking = True
        policy = self.dtype_policy
        originals = units_of_blocks(
            unit, unit_arguments, units, policy, num_layers
        )
        self.encoder = keras.layers.Dense(units, name="encoder", dtype=policy)
        self.blocks = tuple(
            ResidualBlock(
                clone(*originals[index]),
                activation=block_activation,
                gated=gated,
                dropout=dropout,
                normalization=normalization,
                norm_first=norm_first,
                seed=seed_of_copy(seed, index),
                name=f"block_{index}",
                dtype=policy,
            )
            for index in range(num_layers)
        )
        if all(block.is_linear for block in self.blocks):
            warnings.warn(
                "The model is linear from its inputs to its head: the unit "
                f"'{originals[0][0].name}' is, and batch normalization outside "
                "training. Leave `block_activation` or `gated` at None, or set "
                "`normalization` to 'layer' or 'rms'.",
                stacklevel=2 + _constructors_below(type(self)),
            )
        self.norm = None
        if norm_first:
            self.norm = make_norm(
                normalization,
                epsilon=self.blocks[0].epsilon,
                name="norm",
                dtype=policy,
            )
        # In full precision: it ends in sums over many steps and a softmax.
        self.head = keras.layers.Dense(
            output_dim,
            activation=self.activation,
            name="head",
            dtype="float64" if self.variable_dtype == "float64" else "float32",
        )
        if not trainable:
            freeze_all(self._parts())

    @classmethod
    def _from_size(cls, size, output_dim, unit_arguments, overrides):
        require_choice("size", size, SIZES)
        unit = overrides.pop("unit", "lssl")
        if unit != "lssl":
            raise ValueError(
                "`from_size` makes the models of the LSSL paper, so that "
                "`unit` should be 'lssl'. For another one give the "
                "constructor `num_layers`, `units` and `unit`. "
                f"Received: unit={unit}"
            )
        require_dictionary("unit_arguments", unit_arguments)
        num_layers, units, sizes = SIZES[size]
        return cls(
            output_dim,
            unit=unit,
            unit_arguments={**sizes, **(unit_arguments or {})},
            **{"num_layers": num_layers, "units": units, **overrides},
        )

    @classmethod
    def _for_signals(
        cls,
        output_dim,
        sampling_rate,
        longest_memory,
        shortest_memory,
        highest_frequency,
        unit="lssl",
        unit_arguments=None,
        num_layers=6,
        units=128,
        pool_size=1,
        dtype=None,
        **arguments,
    ):
        require_count("num_layers", num_layers)
        require_dictionary("unit_arguments", unit_arguments)
        _, sizes = _pool_sizes(pool_size, num_layers)
        unit = units_for_signals(
            unit,
            {"units": units, "dtype": dtype, **(unit_arguments or {})},
            steps_of_blocks(sizes),
            sampling_rate=sampling_rate,
            longest_memory=longest_memory,
            shortest_memory=shortest_memory,
            highest_frequency=highest_frequency,
        )
        return cls(
            output_dim,
            num_layers=num_layers,
            units=units,
            unit=unit,
            pool_size=pool_size,
            dtype=dtype,
            **arguments,
        )

    # Arguments that may be set later.

    _accept_unit = _accept_unit_arguments = SetLater._refuse
    _accept_block_activation = _accept_gated = SetLater._refuse

    def _accept_pooling(self, name, value):
        require_choice(name, value, POOLINGS)
        return value

    def _accept_activation(self, name, value):
        activation = activations.get_unary(value)
        if hasattr(self, "head"):
            self.head.activation = activation
        return activation

    @property
    def dropout(self):
        """The share that every block drops; it may be set at any time."""
        return self.blocks[0].dropout

    @dropout.setter
    def dropout(self, value):
        require_between("dropout", value, 0, 1, "[)")
        for block in self.blocks:
            block.dropout = value

    # Sampling rates.

    def with_step_rescale(self, step_rescale: float):
        """A copy for signals of another sampling rate.

        The first block multiplies its dt by `step_rescale`. With `pool_size`,
        the averages that follow it take in other numbers of steps, to last
        about as long as before: for half the rate, averages of 4, 4 and 4
        steps become averages of 2, 4 and 4, and only the first dt is doubled.

        Args:
            step_rescale: positive float, how many times as long a step lasts
                as in training: 2 for half the sampling rate.

        Returns:
            A model of the same class with the same weights, not compiled.

        Raises:
            ValueError: for a number that is not positive, and for units
                without `step_rescale`.

        Example:

        >>> import keras_linrec
        >>> model = keras_linrec.models.SequenceClassifier(
        ...     num_classes=5, num_layers=3, units=8, pool_size=4
        ... )
        >>> slower = model.with_step_rescale(2)
        >>> slower.pool_size, slower.blocks[0].unit.step_rescale
        ((2, 4), 2.0)
        """
        require_between("step_rescale", step_rescale, 0, math.inf, "()")
        units = self._scaled_units()
        factors, sizes = _rescaled(step_rescale, self._pool_sizes)
        config = self.get_config()
        if sizes != self._pool_sizes:
            config["pool_size"] = sizes
        config["step_rescales"] = [
            factor * unit.step_rescale for factor, unit in zip(factors, units)
        ]
        copy = type(self).from_config(config)
        if self.built:
            copy.build_from_config(self.get_build_config())
            copy.set_weights(self.get_weights())
        return copy

    @property_if_known
    def step_rescale(self):
        """What multiplies dt in every block; it may be set outside of `fit`.

        2 for signals of half the training data's sampling rate. See `LSSL`.
        With `pool_size`, averages would then last twice as long as in
        training: use `with_step_rescale`. Units other than LSSL have none.
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
        dense = tuple(self._dense_parts().values())
        for layer, shape in layers:
            if layer.built:
                continue
            if layer in dense:
                build_dense(layer, shape)
            else:
                layer.build(shape)

    def compute_output_shape(self, sequences_shape):
        batch, time = sequences_shape[:2]
        if self.pooling is not None:
            return (batch, self.output_dim)
        for size in self._pool_sizes:
            if size > 1:
                time = step_averages.length_after(time, size)
        return (batch, time, self.output_dim)

    def compute_output_spec(self, sequences, *args, **kwargs):
        return keras.KerasTensor(
            self.compute_output_shape(sequences.shape),
            dtype=self.head.compute_dtype,
        )

    def compute_mask(self, sequences, mask=None):
        if self.pooling is not None or mask is None:
            return None
        size = math.prod(self._pool_sizes)
        if size == 1:
            return mask
        # The output that `size` steps end counts if there are as many.
        steps = ops.cast(mask, "int32")
        first = min(size, mask.shape[1] or size) - 1
        ends = ops.cumsum(ops.ones_like(steps), axis=1)[:, first::size]
        return ops.sum(steps, axis=1, keepdims=True) >= ops.maximum(ends, size)

    def _shortenings(self):
        """How often the blocks' outputs are averaged."""
        sizes = self._pool_sizes
        return len(sizes) if math.prod(sizes) > 1 else 0

    # Calling.

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
        sequences_mask=None,
    ):
        self._check_options(reset_mask=reset_mask, time_deltas=time_deltas)
        # Keras hands on an earlier layer's mask under this name where there
        # are time_deltas too.
        mask = sequences_mask if mask is None else mask
        steps = Steps(sequences, mask, reset_mask, time_deltas)
        counts = None
        if mask is not None:
            # Once for all blocks.
            steps = steps.checked()
            mask = steps.mask
            steps = steps.packed()
            counts = packing.mask_of_lengths(steps.lengths, ops.shape(mask)[1])
        outputs = self.encoder(steps.inputs)
        for block, size in zip(self.blocks, (1, *self._pool_sizes)):
            if size > 1:
                outputs, counts = step_averages.average_steps(
                    outputs, size, counts
                )
            outputs = block(
                outputs,
                mask=counts,
                training=training,
                reset_mask=steps.reset_mask,
                time_deltas=steps.time_deltas,
                padding_is_last=_ignores_padding_behind(block.unit),
            )
        outputs = self._normalize(outputs, counts, training)
        if self.pooling is not None:
            outputs = pooling_over_time.pool(self.pooling, outputs, counts)
        elif mask is not None and not self._shortenings():
            outputs = to_places(outputs, mask)
        return self.head(outputs)

    def _normalize(self, outputs, mask=None, training=False):
        if self.norm is not None:
            outputs = normalize(self.norm, outputs, mask, training)
        return ops.cast(outputs, self.head.compute_dtype)

    def _check_options(self, reset_mask=None, **options):
        """Raise for what says something about steps that are pooled."""
        if reset_mask is not None and (
            self.pooling is not None or self._shortenings()
        ):
            raise ValueError(
                "Sequences that share a row have one output a step each, "
                "which needs a model with pooling=None and pool_size=1. "
                f"Received: reset_mask, pooling={self.pooling} and "
                f"pool_size={self.pool_size}"
            )
        for name, value in options.items():
            if value is not None and self._shortenings():
                raise ValueError(
                    f"`{name}` needs a model with pool_size=1, whose blocks "
                    "all read the same steps. Received: pool_size="
                    f"{self.pool_size}"
                )

    # Streaming.
    #
    # The states are a list for each block; with `pool_size`, one for each
    # average between blocks; and one of the pooling. That of the last step is
    # what masked steps repeat.

    def _require_streaming(self, part=False):
        if self.pooling is None and self._shortenings():
            raise ValueError(
                "A model that averages steps and does not pool has no output "
                "for each step, and cannot stream. Received: "
                f"pool_size={self.pool_size}, pooling=None"
            )
        for block in self.blocks:
            block._require_streaming(part)

    def _streaming_parts(self):
        return self.blocks

    def get_initial_state(self, batch_size: int):
        """The states before the first step.

        Args:
            batch_size: integer, the number of rows.

        Returns:
            A list of lists, in this order:

            - the states of each block;
            - with `pool_size`, for each average between two blocks, the sum
              over the steps of the unfinished window, and their number;
            - unless `pooling` is `None`, what was pooled so far, the number
              of steps in it, and for a mean what rounding took from both.
        """
        self._require_streaming()
        states = super().get_initial_state(batch_size)
        given = batch_size, self.units, self.head.compute_dtype
        for _ in range(self._shortenings()):
            states.append(step_averages.initial_states(*given))
        if self.pooling is not None:
            pooled = pooling_over_time.initial_states(self.pooling, *given)
            states.append(pooled)
        return states

    def _state_count(self):
        is_pooled = self.pooling is not None
        return self.num_layers + self._shortenings() + is_pooled

    def _parts_of(self, states):
        """The states of the blocks, of the averages and of the pooling."""
        ends = self.num_layers, self.num_layers + self._shortenings()
        pooled = None if self.pooling is None else states[ends[1]]
        return states[: ends[0]], states[ends[0] : ends[1]], pooled

    def _stream_step(self, inputs, states, constants, **options):
        self._check_options(**options)
        block_states, sums, pooled = self._parts_of(states)
        outputs = self.encoder(inputs)
        new_states, new_sums = [], []
        # The rows in which the step has reached a block; `None`: all.
        counts = None
        constants = constants or [None] * self.num_layers
        for index, (block, before) in enumerate(zip(self.blocks, block_states)):
            if index and sums:
                given, size = sums[index - 1], self._pool_sizes[index - 1]
                outputs, counts, new_sum = step_averages.average_step(
                    outputs, size, given, counts
                )
                new_sums.append(new_sum)
            outputs, after = block.step(
                outputs, before, constants[index], **options
            )
            new_states.append(_advanced(counts, after, before))
        outputs = self._normalize(outputs)
        if pooled is None:
            return self.head(outputs), new_states
        after = pooling_over_time.pool_step(self.pooling, outputs, pooled)
        pooled = _advanced(counts, after, pooled)
        return self.head(pooled[0]), [*new_states, *new_sums, pooled]

    def _stream_part(self, sequences, states, mask, **options):
        self._check_options(**options)
        if mask is not None:
            # A NaN there would reach the gradients of the encoder.
            sequences = packing.zero_masked(sequences, mask)
        block_states, sums, pooled = self._parts_of(states)
        # How many steps have reached the last block by each step.
        finished = _steps_so_far(sequences, mask) if sums else None
        outputs = self.encoder(sequences)
        new_states, new_sums = [], []
        for index, (block, before) in enumerate(zip(self.blocks, block_states)):
            if index and sums:
                given, size = sums[index - 1], self._pool_sizes[index - 1]
                outputs, mask, new_sum = step_averages.average_part(
                    outputs, size, given, mask
                )
                finished = step_averages.finished_by(given[1], size, finished)
                new_sums.append(new_sum)
            outputs, after = block.call_with_states(
                outputs, before, mask, **options
            )
            new_states.append(after)
        outputs = self._normalize(outputs)
        if pooled is None:
            if mask is not None:
                # As in a call with the whole sequence.
                outputs = packing.zero_masked(outputs, mask)
            return self.head(outputs), new_states
        outputs, after = pooling_over_time.pool_part(
            self.pooling, outputs, pooled, mask
        )
        if sums:
            # Each step says what the last average before it did.
            before = ops.expand_dims(pooled[0], 1)
            outputs = ops.concatenate([before, outputs], axis=1)
            outputs = packing.take(outputs, finished)
        return self.head(outputs), [*new_states, *new_sums, after]

    # Saving.

    def get_config(self):
        # The units hold their arguments.
        block = self.blocks[0]
        units = [block.unit for block in self.blocks]
        return {
            **super().get_config(),
            "output_dim": self.output_dim,
            "num_layers": self.num_layers,
            "units": self.units,
            "unit": serialize_units(units),
            "dropout": self.dropout,
            "normalization": self.normalization,
            "norm_first": self.norm_first,
            "block_activation": activations.serialize(block.activation),
            "gated": block.gated,
            "pool_size": self.pool_size,
            "pooling": self.pooling,
            "activation": activations.serialize(self.activation),
            "seed": self.seed,
            **self._dense_config(),
            **frozen_config(self, self._parts()),
            **self._step_rescales(),
            **self._block_settings(),
        }

    def _dense_parts(self):
        return {"encoder": self.encoder, "head": self.head}

    def _parts(self):
        parts = self._dense_parts()
        if self.norm is not None:
            parts["norm"] = self.norm
        for block in self.blocks:
            parts[block.name] = block
            for name, part in block._parts().items():
                parts[f"{block.name}/{name}"] = part
        return parts

    def _set_frozen(self, names):
        freeze(self._parts(), names)
        for block in self.blocks:
            start = f"{block.name}/"
            # Its gate is not built yet.
            block._set_frozen(
                name.removeprefix(start)
                for name in names
                if name.startswith(start)
            )

    def _step_rescales(self):
        """Those of all blocks, if they differ: the unit holds the first's."""
        factors = [
            getattr(block.unit, "step_rescale", None) for block in self.blocks
        ]
        differ = any(factor != factors[0] for factor in factors)
        return {"step_rescales": factors} if differ else {}

    def _block_settings(self):
        """What was set in single blocks: the first stands for all."""
        settings = [settings_of(block) for block in self.blocks]
        differ = any(one != settings[0] for one in settings)
        return {"block_settings": settings} if differ else {}

    def _dense_config(self):
        config = dense_config(self._dense_parts())
        for block in self.blocks:
            for entry, values in dense_config(block._dense_parts()).items():
                config.setdefault(entry, {})[block.name] = values
        return config

    def _set_dense(self, entries):
        # Before anything is built.
        for block in self.blocks:
            block._set_dense(
                {
                    entry: values.pop(block.name, {})
                    for entry, values in entries.items()
                }
            )
        parts = self._dense_parts()
        require_names(entries, parts)
        for name, part in parts.items():
            prepare(part, name, entries)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = with_unit(config, custom_objects)
        entries = pop_entries(config)
        frozen = config.pop("frozen", None)
        factors = config.pop("step_rescales", ())
        settings = config.pop("block_settings", ())
        model = cls(**config)
        model._set_dense(entries)
        if frozen is not None:
            model._set_frozen(frozen)
        for block, factor in zip(model.blocks, factors):
            block.unit.step_rescale = factor
        for block, given in zip(model.blocks, settings):
            set_all(block, given)
        return model


def _constructors_below(cls):
    """The number of constructors that call `SequenceModel`'s, one by one."""
    below = cls.__mro__[: cls.__mro__.index(SequenceModel)]
    return sum("__init__" in vars(one) for one in below)


def _pool_sizes(pool_size, num_layers):
    """The argument, a list of it as a tuple, and the size of each average."""
    if not isinstance(pool_size, (list, tuple)):
        require_count("pool_size", pool_size)
        return pool_size, (int(pool_size),) * (num_layers - 1)
    pool_size = tuple(pool_size)
    if len(pool_size) != num_layers - 1:
        raise ValueError(
            "`pool_size` should be an integer, or a tuple of one for each "
            "place between two blocks. Received: "
            f"pool_size={pool_size}, num_layers={num_layers}"
        )
    for size in pool_size:
        require_count("pool_size", size)
    return pool_size, tuple(map(int, pool_size))


def _rescaled(step_rescale, sizes):
    """The factors of the blocks' dt and the sizes of the averages."""
    factors, changed = [float(step_rescale)], []
    for size in sizes:
        # Blocks that no average separates read the same steps.
        new = size if size == 1 else max(1, round(size / factors[-1]))
        changed.append(new)
        factors.append(factors[-1] * new / size)
    return factors, tuple(changed)


def _advanced(counts, after, before):
    """The states after a step, in the rows in which there was one."""
    if counts is None:
        return after
    return step_averages.where_rows(counts, after, before)


def _ignores_padding_behind(unit):
    """Whether zeros at the end of a row change nothing before them."""
    reads_forward = isinstance(unit, SequenceLayer) and not unit.stateful
    return reads_forward and not getattr(unit, "bidirectional", False)


def _steps_so_far(sequences, mask):
    """How many steps count up to each of (batch, time)."""
    if mask is None:
        mask = ops.ones(ops.shape(sequences)[:2], dtype="bool")
    return ops.cumsum(ops.cast(mask, "int32"), axis=1)
