"""How the Dense layers within a block or a model were quantised."""

import keras


def quantized_config(parts):
    """The entry `quantized` of a configuration; none if nothing is quantised.

    Args:
        parts: dictionary of Dense layers, by name.
    """
    policies = {
        name: keras.dtype_policies.serialize(part.dtype_policy)
        for name, part in parts.items()
        if part.quantization_mode is not None
    }
    return {"quantized": policies} if policies else {}


def quantized_policies(config, names):
    """The dtype policies in an entry `quantized`, by name.

    Args:
        config: the entry.
        names: the names that it may hold.
    """
    if not set(config) <= set(names):
        raise ValueError(
            f"`quantized` should hold policies of {tuple(names)} only. "
            f"Received: quantized={config}"
        )
    return {
        name: keras.dtype_policies.get(policy)
        for name, policy in config.items()
    }
