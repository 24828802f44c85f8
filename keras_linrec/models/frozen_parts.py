"""Which layers within a block or a model are not trained."""


def frozen_config(owner, parts):
    """The entry `frozen` of a configuration; none if everything is trained.

    Args:
        owner: the block or the model.
        parts: dictionary of layers, by name.
    """
    frozen = [name for name, part in parts.items() if not part.trainable]
    return {"frozen": frozen} if frozen or not owner.trainable else {}


def layers_within(name, layer):
    """The layers that a layer holds, as those of a wrapper, by name."""
    layers = layer._flatten_layers(include_self=False)
    return {f"{name}/{index}": part for index, part in enumerate(layers)}


def freeze_all(parts):
    """Freeze what is in a layer that is made frozen: Keras leaves that alone.

    Under TensorFlow the layer's own `trainable = False` would do nothing, since
    that is its value already.
    """
    freeze(parts, list(parts))


def freeze(parts, frozen):
    """Train the parts that `frozen` does not name, and no others.

    Args:
        parts: dictionary of layers, by name, each before its own parts.
        frozen: the names.
    """
    for name, part in parts.items():
        trainable = name not in frozen
        # Keras sets it for all layers within a part too.
        if part.trainable != trainable:
            part.trainable = trainable
