"""What Keras did to the Dense layers within a block or a model.

`quantize` changes their dtype policies, and `enable_lora` gives them factors
beside the kernel. Neither is an argument of the block or the model, so that
their configurations have entries for both.
"""

import keras

QUANTIZED, LORA = ENTRIES = ("quantized", "lora")


def dense_config(parts):
    """The entries of a configuration; none for layers that are as made.

    Args:
        parts: dictionary of Dense layers, by name.
    """
    config = {
        QUANTIZED: {
            name: keras.dtype_policies.serialize(part.dtype_policy)
            for name, part in parts.items()
            if part.quantization_mode is not None
        },
        LORA: {
            name: {"rank": part.lora_rank, "alpha": part.lora_alpha}
            for name, part in parts.items()
            if part.lora_enabled
        },
    }
    return {entry: values for entry, values in config.items() if values}


def pop_entries(config):
    """The entries, taken out of a configuration."""
    return {entry: dict(config.pop(entry, {})) for entry in ENTRIES}


def require_names(entries, names):
    for entry, values in entries.items():
        if not set(values) <= set(names):
            raise ValueError(
                f"`{entry}` should hold entries of {tuple(names)} only. "
                f"Received: {entry}={values}"
            )


def prepare(part, name, entries):
    """Let a Dense layer that is not built become what the entries say.

    Its weights are then 8-bit integers at once.
    """
    if name in entries[QUANTIZED]:
        part.dtype_policy = keras.dtype_policies.get(entries[QUANTIZED][name])
    if name in entries[LORA]:
        given = entries[LORA][name]
        part.lora_rank, part.lora_alpha = given["rank"], given["alpha"]


def build_dense(part, sequences_shape):
    """Build a Dense layer; Keras forgets the `lora_alpha` given before."""
    alpha = part.lora_alpha
    part.build(sequences_shape)
    part.lora_alpha = alpha
