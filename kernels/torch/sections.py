"""Projected scans, a section of time after the other: `kernels/sections.py`."""

import torch
from torch.utils.checkpoint import checkpoint

from keras_linrec.kernels.operations import projected_scan as plain
from keras_linrec.kernels.sections import section_length


def by_sections(
    scan,
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state,
    reverse=False,
    resets=None,
):
    """See `keras_linrec.kernels.operations.projected_scan`."""
    batch, time, _ = inputs.shape
    parts, per_step = len(decay), decay[0].ndim == 3
    channels = parts * decay[0].shape[-1]
    length = section_length(batch, time, channels, inputs.element_size())

    def section(inputs, resets, *numbers):
        decay, state = numbers[:parts], numbers[parts:]
        outputs, state = plain.projected_scan(
            scan,
            decay,
            inputs,
            input_kernel,
            output_kernel,
            state,
            reverse,
            resets,
        )
        return outputs, *state

    if length >= time:
        outputs, *state = section(inputs, resets, *decay, *initial_state)
        return outputs, tuple(state)

    def cut(tensor):
        # Not by slices, each of whose gradients would be a whole tensor.
        sections = tensor.split(length, dim=1)
        return sections[::-1] if reverse else sections

    count = -(-time // length)
    decays = [cut(part) if per_step else [part] * count for part in decay]
    drops = [None] * count if resets is None else cut(resets)
    outputs, state = [], tuple(initial_state)
    for given, drop, *numbers in zip(cut(inputs), drops, *decays):
        result, *state = checkpoint(
            section,
            given,
            drop,
            *numbers,
            *state,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        outputs.append(result)
    return torch.cat(outputs[::-1] if reverse else outputs, 1), tuple(state)
