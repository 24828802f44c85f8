"""Sequence units by name, and copies of them."""

import keras

from keras_linrec import layers
from keras_linrec.validation import require_dictionary

UNITS = {
    "lssl": layers.LSSL,
    "rotrnn": layers.RotRNN,
    "lru": layers.LRU,
    "s5": layers.S5,
    "s4d": layers.S4D,
    "linoss": layers.LinOSS,
    "linear_dynamical_system": layers.LinearDynamicalSystem,
    "ldstack": layers.LDStack,
    "orthogonal_rnn": layers.OrthogonalRNN,
    "lipschitz_rnn": layers.LipschitzRNN,
    "antisymmetric_rnn": layers.AntisymmetricRNN,
    "min_gru": layers.MinGRU,
    "min_lstm": layers.MinLSTM,
    "rglru": layers.RGLRU,
    "delta_net": layers.DeltaNet,
    "mamba2": layers.Mamba2,
}


def make_unit(unit, unit_arguments=None, units=None, dtype=None):
    """A unit from its name, or the layer that was given.

    Args:
        unit: a name of `UNITS`, or a layer.
        unit_arguments: dictionary of constructor arguments, for a name only.
        units: integer, the number of output features of a unit given by name;
            `None` for as many as its inputs have.
        dtype: the dtype policy of a unit given by name.
    """
    if isinstance(unit, keras.layers.Layer):
        if unit_arguments is not None:
            raise ValueError(
                "`unit_arguments` should be None where `unit` is a layer, "
                "which has its arguments already. Received: "
                f"unit={unit.name}, unit_arguments={unit_arguments}"
            )
        return unit
    if not isinstance(unit, str) or unit not in UNITS:
        raise ValueError(
            f"`unit` should be a layer or one of {tuple(UNITS)}. "
            f"Received: unit={unit}"
        )
    require_dictionary("unit_arguments", unit_arguments)
    arguments = {
        "name": unit,
        "dtype": dtype,
        "units": units,
        # Not the default of the nonlinear units.
        "return_sequences": True,
        **(unit_arguments or {}),
    }
    return UNITS[unit](**arguments)


def units_of_blocks(unit, unit_arguments, units, dtype, count):
    """What to `clone` for each block: a unit, and the index of the copy.

    It is cloned together with its block, so that weights without a seed are
    drawn in the order of the blocks.
    """
    if not isinstance(unit, (list, tuple)):
        unit = make_unit(unit, unit_arguments, units, dtype)
        return [(unit, index) for index in range(count)]
    if len(unit) != count:
        raise ValueError(
            "`unit` should be one unit, or a list of one for each block. "
            f"Received: {len(unit)} in `unit`, num_layers={count}"
        )
    return [(make_unit(one, unit_arguments, units, dtype), 0) for one in unit]


def serialize_units(units):
    """One configuration of units that are alike, or a list of all."""
    configs = [serialize_for_copies(unit) for unit in units]
    first = _everywhere(_shared, configs[0])
    if all(_everywhere(_shared, config) == first for config in configs[1:]):
        return configs[0]
    return configs


def is_linear(unit):
    """Whether a unit has no nonlinearity of its own."""
    if isinstance(unit, keras.layers.Bidirectional):
        return is_linear(unit.forward_layer)
    return getattr(unit, "is_linear", False)


def clone(unit, index):
    """A layer with the same configuration and new weights.

    Its seed differs from that of the other copies by `index`.
    """
    config = _everywhere(_anew, unit.get_config())
    if index and "seed" in config:
        config["seed"] = seed_of_copy(config["seed"], index)
    return type(unit).from_config(config)


def seed_of_copy(seed, index):
    """The seed of one of several copies; the first keeps the given one."""
    return None if seed is None else (seed + index) % 2**31


def _everywhere(change, config):
    """A configuration with `change` applied to each dictionary in it."""
    if isinstance(config, dict):
        return {
            name: _everywhere(change, part)
            for name, part in change(config).items()
        }
    if isinstance(config, (list, tuple)):
        return type(config)(_everywhere(change, part) for part in config)
    return config


# Of parts that Keras has serialized several times, or built.
_MARKS = ("shared_object_id", "build_config")


def _anew(config):
    """The configuration of a part that is made anew, for another owner.

    Keras marks parts that are serialized several times, and gives all layers
    made from them the same object. It builds what was built, at once: weights
    would not have the owner's name in their paths.
    """
    return {name: part for name, part in config.items() if name not in _MARKS}


def _trained(config):
    """The configuration of a part that is trained."""
    return {**config, "trainable": True} if "trainable" in config else config


def _shared(config):
    """What copies of one unit have in common."""
    own = ("seed", "step_rescale", "trainable", *_MARKS)
    return {name: part for name, part in config.items() if name not in own}


def serialize_unbuilt(unit):
    """A layer's configuration; its new owner builds it."""
    config = keras.saving.serialize_keras_object(unit)
    return _everywhere(_anew, config)


def serialize_for_copies(unit):
    """As `serialize_unbuilt`, of which several units are made.

    Whether each is trained is its own affair.
    """
    config = serialize_unbuilt(unit)
    return config if unit.trainable else _everywhere(_trained, config)


def with_unit(config, custom_objects=None):
    """A configuration with its unit, or its units, deserialized."""
    if not isinstance(config.get("unit"), (dict, list)):
        return dict(config)
    unit = keras.saving.deserialize_keras_object(
        config["unit"], custom_objects=custom_objects
    )
    return {**config, "unit": unit}
