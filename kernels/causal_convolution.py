"""The causal convolution by the framework's own Fourier transforms.

It runs where no native kernel does, and gives the native one its second
derivatives.
"""

import keras
from keras import ops

from keras_linrec import complex_pairs


def causal_convolution(inputs, response, activation=keras.activations.linear):
    """y[b, t, h, m] = activation(sum_k response[h, m, k] inputs[b, t - k, h]).

    Args:
        inputs: tensor (batch, time, features).
        response: tensor (features, channels, taps), with `taps` at most
            `time`.
        activation: function. Defaults to the identity.

    Returns:
        A tensor (batch, time, features, channels).
    """
    by_feature = ops.expand_dims(ops.transpose(inputs, (0, 2, 1)), 2)
    outputs = _over_last_axis(by_feature, response)
    return activation(ops.transpose(outputs, (0, 3, 1, 2)))


def _over_last_axis(inputs, response):
    """y_t = sum_{k <= t} response_k inputs_{t-k}, over the last axis.

    Args:
        inputs: tensor (..., time).
        response: tensor (..., taps), with `taps` at most `time`; the leading
            axes of the two broadcast.

    Returns:
        A tensor (..., time).
    """
    if 0 in inputs.shape or 0 in response.shape:
        # FFT libraries reject empty tensors.
        return inputs * response[..., :1]
    time, taps = ops.shape(inputs)[-1], ops.shape(response)[-1]
    length = _fast_length(2 * time) if isinstance(time, int) else 2 * time

    def spectrum(sequence):
        return ops.rfft(sequence, length)

    def sequence(spectrum, count):
        return ops.irfft(spectrum, length)[..., :count]

    def convolve(of_inputs, of_response):
        return sequence(complex_pairs.multiply(of_inputs, of_response), time)

    if keras.backend.backend() == "torch":
        return convolve(spectrum(inputs), spectrum(response))

    # Automatic differentiation would transform broadcast cotangents before
    # summing them, and XLA would compute whole spectra where halves suffice.
    @ops.custom_gradient
    def run(inputs, response):
        of_inputs, of_response = spectrum(inputs), spectrum(response)

        def gradient(upstream):
            of_upstream = spectrum(upstream)

            def correlation(other, shape, count):
                product = complex_pairs.multiply(
                    of_upstream, complex_pairs.conjugate(other)
                )
                return sequence(
                    tuple(_summed_to(part, shape) for part in product), count
                )

            return (
                correlation(of_response, inputs.shape, time),
                correlation(of_inputs, response.shape, taps),
            )

        return convolve(of_inputs, of_response), gradient

    return run(inputs, response)


def _summed_to(tensor, shape):
    """The sum over the leading axes along which `shape` was broadcast."""
    more = len(tensor.shape) - len(shape)
    if more:
        tensor = ops.sum(tensor, axis=tuple(range(more)))
    ones = tuple(axis for axis, size in enumerate(shape[:-1]) if size == 1)
    return ops.sum(tensor, axis=ones, keepdims=True) if ones else tensor


def _fast_length(length):
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
