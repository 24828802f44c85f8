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
    if 0 in inputs.shape:
        # FFT libraries reject empty tensors.
        return inputs * response
    time = ops.shape(inputs)[-1]
    length = fast_length(2 * time) if isinstance(time, int) else 2 * time

    # Automatic differentiation would transform broadcast cotangents before
    # summing them, and XLA would compute whole spectra where halves suffice.
    @ops.custom_gradient
    def convolve(inputs, response):
        def spectra():
            return ops.rfft(inputs, length), ops.rfft(response, length)

        def back(spectrum):
            return ops.irfft(spectrum, length)[..., :time]

        of_inputs, of_response = spectra()
        outputs = back(
            (
                of_inputs[0] * of_response[0] - of_inputs[1] * of_response[1],
                of_inputs[0] * of_response[1] + of_inputs[1] * of_response[0],
            )
        )

        def gradient(*arguments, upstream=None):
            if upstream is None:
                (upstream,), known = arguments, (of_inputs, of_response)
            else:
                # PyTorch differentiates a second time only through what is
                # computed in this function.
                known = spectra()
            real, imag = ops.rfft(upstream, length)

            def correlation(other, shape):
                return back(
                    (
                        _summed_to(real * other[0] + imag * other[1], shape),
                        _summed_to(imag * other[0] - real * other[1], shape),
                    )
                )

            return (
                correlation(known[1], inputs.shape),
                correlation(known[0], response.shape),
            )

        return outputs, gradient

    return convolve(inputs, response)


def _summed_to(tensor, shape):
    """Sum over the leading axes along which `shape` was broadcast."""
    more = len(tensor.shape) - len(shape)
    if more:
        tensor = ops.sum(tensor, axis=tuple(range(more)))
    ones = tuple(axis for axis, size in enumerate(shape[:-1]) if size == 1)
    return ops.sum(tensor, axis=ones, keepdims=True) if ones else tensor


def fast_length(length):
    """The smallest even number 2^a 3^b 5^c that is at least `length`."""
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
