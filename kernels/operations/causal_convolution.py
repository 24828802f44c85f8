"""The causal convolution by the framework's own Fourier transforms.

It runs where no native kernel does, and gives the native one its second
derivatives.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_linrec import complex_pairs
from keras_linrec.double_precision import activate
from keras_linrec.kernels import backends
from keras_linrec.kernels.native.call_encoding import activation_flags
from keras_linrec.kernels.native.call_encoding import activation_of
from keras_linrec.kernels.native.table import Call
from keras_linrec.kernels.operations import outliers
from keras_linrec.kernels.operations.record import Operation
from keras_linrec.kernels.operations.record import fused
from keras_linrec.kernels.operations.tiny_cases import numbers


def causal_convolution(inputs, response, activation=keras.activations.linear):
    """y[b, t, h, m] = activation(sum_k response[h, m, k] inputs[b, t - k, h]).

    An outlier, a NaN, an infinity or a response that grows leaves earlier
    outputs as they were; see `kernels.outliers`.

    Args:
        inputs: tensor (batch, time, features).
        response: tensor (features, channels, taps), with `taps` at most
            `time`.
        activation: function. Defaults to the identity.

    Returns:
        A tensor (batch, time, features, channels).
    """
    by_feature = ops.expand_dims(ops.transpose(inputs, (0, 2, 1)), 2)
    if 0 in inputs.shape or 0 in response.shape:
        # FFT libraries reject empty tensors.
        outputs = by_feature * response[..., :1]
        return activate(activation, ops.transpose(outputs, (0, 3, 1, 2)))
    if keras.backend.backend() == "torch":
        return _by_operations(by_feature, response, activation)
    outputs = ops.transpose(_convolved(by_feature, response), (0, 3, 1, 2))
    return _activated(activation, outputs)


def _by_operations(by_feature, response, activation):
    """The convolution, which PyTorch differentiates operation by operation."""
    transforms = _Transforms(by_feature, response)
    if not backends.current().can_read(by_feature):
        # The program depends on no values; exports fix what the search for
        # outliers compares.
        outputs = transforms.uncut()
        return activate(activation, ops.transpose(outputs, (0, 3, 1, 2)))
    is_cut = outliers.with_outliers(by_feature.detach())
    in_pieces = transforms.needs_pieces(is_cut)
    outputs = ops.transpose(transforms.convolve(in_pieces), (0, 3, 1, 2))
    if ops.any(in_pieces):
        return _activated(activation, outputs)
    return activate(activation, outputs)


def _activated(activation, outputs):
    """The activation. What is not finite passes as it is, with a slope of 1."""
    if activation is keras.activations.linear:
        return outputs
    is_finite = ops.all(ops.isfinite(outputs), axis=-1, keepdims=True)
    nothing = ops.zeros_like(outputs)
    finite = ops.where(is_finite, outputs, nothing)
    return ops.where(is_finite, activate(activation, finite), outputs)


def _convolved(inputs, response):
    """The convolution of `_Transforms`, with a gradient of its own.

    Automatic differentiation would transform broadcast cotangents before
    summing them, and XLA would compute whole spectra where halves suffice.
    """

    @ops.custom_gradient
    def run(inputs, response):
        transforms = _Transforms(inputs, response)
        is_cut = outliers.with_outliers(inputs)

        in_pieces = transforms.needs_pieces(is_cut)

        def gradient(upstream):
            return transforms.gradients(is_cut, in_pieces, upstream)

        with backends.current().unrecorded():
            return transforms.convolve(in_pieces), gradient

    return run(inputs, response)


class _Transforms:
    """y_t = sum_{k <= t} response_k inputs_{t-k}, over the last axis.

    Args:
        inputs: tensor (batch, features, channels, time), of one channel or as
            many as the response has.
        response: tensor (features, channels, taps), with `taps` at most `time`.
    """

    def __init__(self, inputs, response):
        self.inputs, self.response = inputs, response
        self.time = time = ops.shape(inputs)[-1]
        is_known = isinstance(time, int)
        self.length = fast_length(2 * time) if is_known else 2 * time
        self.of_inputs = self._spectrum(inputs)
        self.of_response = self._spectrum(response)

    def _spectrum(self, sequence):
        return ops.rfft(sequence, self.length)

    def _sequence(self, spectrum, count):
        return ops.irfft(spectrum, self.length)[..., :count]

    def needs_pieces(self, is_cut):
        """Where one transform would round too much.

        Args:
            is_cut: boolean tensor (batch, features, 1, 1), the sequences with
                outliers.

        Returns:
            A boolean tensor (batch, features, channels, 1).
        """
        return (
            is_cut
            | outliers.has_growth(self.response)
            | outliers.may_overflow(self.inputs, self.response)
        )

    def convolve(self, in_pieces):
        """The outputs, (batch, features, channels, time).

        Args:
            in_pieces: from `needs_pieces`.
        """
        return backends.current().choose(
            ops.any(in_pieces),
            lambda: _convolved_in_pieces(self.inputs, self.response),
            self.uncut,
        )

    def uncut(self):
        """The outputs, whatever the numbers."""
        return self._product(self.of_inputs, self.of_response)

    def sum_of_pieces(self):
        """The outputs, in pieces where these are needed."""
        is_cut = outliers.with_outliers(self.inputs)
        in_pieces = self.needs_pieces(is_cut)
        outputs = outliers.sum_of_pieces(
            self._spectrum, self._product, self.inputs, self.response, is_cut
        )
        # What needs none has the same bits beside what does. Its numbers alone,
        # because a gradient of zero is NaN at a NaN.
        one_needs = ops.any(in_pieces, axis=2, keepdims=True)
        numbers = ops.where(one_needs, 0.0, self.inputs)
        in_one = self._product(self._spectrum(numbers), self.of_response)
        return ops.where(one_needs, outputs, in_one)

    def _product(self, of_inputs, of_response):
        product = complex_pairs.multiply(of_inputs, of_response)
        return self._sequence(product, self.time)

    def gradients(self, is_cut, in_pieces, upstream):
        """The cotangents of inputs and response."""
        of_inputs = backends.current().choose(
            ops.any(is_cut),
            lambda: self._of_differentiated(upstream),
            lambda: self.of_inputs,
        )
        of_upstream = self._spectrum(upstream)
        d_inputs = backends.current().choose(
            ops.any(in_pieces),
            lambda: self._gradient_in_pieces(upstream),
            lambda: self._correlation(
                of_upstream, self.of_response, self.inputs
            ),
        )
        return d_inputs, self._correlation(
            of_upstream, of_inputs, self.response
        )

    def gradients_of_pieces(self, upstream):
        """The cotangents of inputs and response of `sum_of_pieces`."""
        of_upstream = self._spectrum(upstream)
        of_inputs = self._of_differentiated(upstream)
        return self._gradient_in_pieces(upstream), self._correlation(
            of_upstream, of_inputs, self.response
        )

    def _of_differentiated(self, upstream):
        return self._spectrum(outliers.differentiated(self.inputs, upstream))

    def _gradient_in_pieces(self, upstream):
        """The cotangent of the inputs.

        It is the convolution of the upstream one, read from its end, with the
        response, whose growth it feels as much.
        """
        outputs = _convolved_in_pieces(ops.flip(upstream, -1), self.response)
        return ops.flip(_summed_to(outputs, self.inputs.shape), -1)

    def _correlation(self, of_upstream, other, like):
        product = complex_pairs.multiply(
            of_upstream, complex_pairs.conjugate(other)
        )
        return self._sequence(
            tuple(_summed_to(part, like.shape) for part in product),
            ops.shape(like)[-1],
        )


def _convolved_in_pieces(inputs, response):
    """`_Transforms.sum_of_pieces`."""
    if keras.backend.backend() == "torch":
        return _Transforms(inputs, response).sum_of_pieces()

    # A second derivative differentiates this where it comes; JAX has no
    # gradient of the loop within.
    @ops.custom_gradient
    def run(inputs, response):
        transforms = _Transforms(inputs, response)
        return transforms.sum_of_pieces(), transforms.gradients_of_pieces

    return run(inputs, response)


def _summed_to(tensor, shape):
    """The sum over the leading axes along which `shape` was broadcast."""
    more = len(tensor.shape) - len(shape)
    if more:
        tensor = ops.sum(tensor, axis=tuple(range(more)))
    ones = tuple(axis for axis, size in enumerate(shape[:-1]) if size == 1)
    return ops.sum(tensor, axis=ones, keepdims=True) if ones else tensor


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


# How it runs.


def _form_of(case, kernel):
    reason = "the framework's transforms run on this device"
    return fused(case, kernel.causal_convolution, "transforms", reason)


def _causal_convolution_case(kernel, sizes=(2, 5, 3, 2, 4)):
    """Three features, two channels, fewer taps than steps, and GELU."""
    batch, time, features, channels, taps = sizes
    arrays = numbers((batch, time, features), (features, channels, taps))
    cotangents = numbers((batch, time, features, channels))

    def function(tensors):
        return [kernel.causal_convolution(*tensors, keras.activations.gelu)]

    inputs, response = (array.astype("float64") for array in arrays)
    sums = np.zeros(cotangents[0].shape)
    for lag in range(taps):
        earlier = inputs[:, : time - lag, :, None]
        sums[:, lag:] += response[:, :, lag] * earlier
    # The normal distribution and its density.
    below = 0.5 + 0.5 * np.vectorize(math.erf)(sums / math.sqrt(2))
    density = np.exp(-0.5 * sums**2) / math.sqrt(2 * math.pi)
    slopes = cotangents[0] * (below + sums * density)
    d_inputs, d_response = np.zeros_like(inputs), np.zeros_like(response)
    for lag in range(taps):
        earlier, later = inputs[:, : time - lag, :, None], slopes[:, lag:]
        d_inputs[:, : time - lag] += (response[:, :, lag] * later).sum(-1)
        d_response[:, :, lag] = (earlier * later).sum((0, 1))
    return function, arrays, cotangents, [sums * below, d_inputs, d_response]


def _call_native(run, inputs, response, activation):
    flags, leak = activation_flags(activation)
    call = Call("causal_convolution", flags, (leak,))
    (outputs,) = run(call, inputs, response)
    return outputs


def _call_plain(_, call, inputs, response):
    activation = activation_of(call.flags, call.number("leak"))
    return (causal_convolution(inputs, response, activation),)


OPERATION = Operation(
    function="causal_convolution",
    choose=_form_of,
    forms={
        "fused": lambda kernel: kernel.causal_convolution,
        "transforms": lambda kernel: causal_convolution,
    },
    plain=lambda kernel: causal_convolution,
    call_native=_call_native,
    call_plain=_call_plain,
    self_tests=(_causal_convolution_case,),
    # batch, time, features, channels, taps
    odd_sizes=(3, 601, 5, 2, 577),
    along_time=False,
)
