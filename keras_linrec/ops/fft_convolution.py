"""Causal convolution by the fast Fourier transform."""

from keras import ops


def fft_convolution(inputs, response):
    """y_t = sum_{k <= t} response_k inputs_{t-k}, over the last axis.

    Args:
        inputs: float32 tensor, (..., time).
        response: float32 tensor, (..., time); the leading axes of the two
            broadcast.

    Returns:
        A tensor (..., time).
    """
    time = ops.shape(inputs)[-1]
    length = fast_length(2 * time) if isinstance(time, int) else 2 * time
    inputs_real, inputs_imag = ops.rfft(inputs, length)
    response_real, response_imag = ops.rfft(response, length)
    product = (
        inputs_real * response_real - inputs_imag * response_imag,
        inputs_real * response_imag + inputs_imag * response_real,
    )
    return ops.irfft(product, length)[..., :time]


def fast_length(length):
    """The least even number from `length` on that is 2^a 3^b 5^c."""
    best = 1 << (length - 1).bit_length()
    fives = 1
    while fives < best:
        threes = fives
        while threes < best:
            twos = threes
            while twos < length or twos % 2:
                twos *= 2
            best = min(best, twos)
            threes *= 3
        fives *= 5
    return max(best, 2)
