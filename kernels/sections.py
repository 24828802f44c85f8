"""Projected scans that keep the states of a section of time at once.

On a GPU a projected scan is a product, a scan and a product, which write the
projected inputs and the states to memory. Of all steps these take many times
what the inputs take. A section's stay in the GPU's cache for the greater part,
and its memory serves the next section. The gradient computes them again from
the state that enters the section, which is all that is stored.
"""

# Of the projected inputs of a section, whose states take as much again. On an
# H100, whose cache has 50 MB, a section starts some eight kernels, which takes
# 20 us; memory that is not read and written saves about as much. So shorter
# sections would save memory and cost time. Estimated, not measured.
_BYTES = 25 * 2**19


def section_length(batch, time, channels, itemsize=4, maximum=max):
    """Steps in a section; at least `time` if all are one section.

    `channels` counts real numbers: two for a complex channel. The batch and the
    time may be tensors, whose `maximum` is then to be given.
    """
    most = maximum(_BYTES // maximum(batch * channels * itemsize, 1), 16)
    # Of almost equal length, so that the last one is not short.
    return -(-time // maximum(-(-time // most), 1))
