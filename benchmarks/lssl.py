"""The training speed of LSSL: KERAS_BACKEND=jax python benchmarks/lssl.py

Three tables of median milliseconds, from interleaved rounds in one process:

- The impulse response alone, forward and backward with gradients of A, B, C and
  dt: ours, our portable kernels, and the dense squaring of the paper's authors,
  which builds an N x L Krylov matrix from powers of Abar. There too our
  tridiagonal solver computes Abar, which favours the dense squaring.
- Its causal convolution with the inputs, forward and backward: ours, our
  portable kernel, and the framework's Fourier transforms as one writes them,
  beside two and a half copies of the inputs. Each table's title has the largest
  relative error of our outputs, against float64.
- A training step of whole layers (forward, backward, a step of gradient
  descent) at 784, 4096 and 16384 steps: LSSL, LSSL-fixed, LSSL with dense
  squaring, `keras.layers.LSTM` and `GRU`; on PyTorch with `use_cudnn=False`,
  without which their loops take a hundred times as long, and beside PyTorch's
  own.

Memory is the peak of a call beyond what the process held before. TensorFlow
does not return memory, so that it cannot be measured there.
"""

import argparse

import numpy as np
from common import copy_time
from common import for_backend
from common import framework_layers
from common import framework_step
from common import keras_layer
from common import on_kernel
from common import parsed_options
from common import print_comparison
from common import print_row
from common import training_step
from keras import ops

import keras_linrec
from keras_linrec.ops import causal_convolution
from keras_linrec.ops.structured.discretization import discretise
from keras_linrec.ops.structured.hippo import StructuredTransition
from keras_linrec.ops.structured.hippo import hippo
from keras_linrec.ops.structured.impulse_response import impulse_response

# features, state_size, time
RESPONSES = ((128, 128, 784), (256, 64, 16384), (64, 256, 1024))
# batch, time, features
CONVOLUTIONS = ((32, 784, 128), (8, 4096, 128), (1, 65536, 64))
# batch, time, features, state_size
LAYERS = ((32, 784, 128, 128), (8, 4096, 128, 64), (2, 16384, 128, 64))
# Contenders that need more memory are left out.
LARGEST_BYTES = 6e9
FIXED = {"trainable_transition": False, "trainable_timescale": False}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--only",
        choices=("responses", "convolutions", "layers"),
        help="one of the tables",
    )
    options = parsed_options(parser)
    if options.only in (None, "responses"):
        for sizes in RESPONSES:
            name = "H{} N{} L{}".format(*sizes)
            print_comparison(name, response_calls(*sizes), options.rounds)
    if options.only in (None, "convolutions"):
        for sizes in CONVOLUTIONS:
            print_convolutions(*sizes, options.rounds)
    if options.only in (None, "layers"):
        for sizes in LAYERS:
            name = "batch {}, {} steps, {} features, N {}".format(*sizes)
            print_comparison(name, layer_steps(*sizes), options.rounds)


def dense_squaring(transition, timescale, output_matrix, time, alpha=0.5):
    """C Abar^k Bbar as the paper's section B.1 computes it."""
    delta, vector = discretise(transition, timescale, alpha)
    power = delta + ops.eye(delta.shape[-1], dtype=delta.dtype)
    krylov = vector[..., None]
    while krylov.shape[-1] < time:
        krylov = ops.concatenate([krylov, power @ krylov], axis=-1)
        if krylov.shape[-1] < time:
            power = power @ power
    return output_matrix @ krylov[..., :time]


def response_calls(features, state_size, time):
    generator = np.random.default_rng(0)
    arrays = [
        *hippo("legs", state_size),
        np.exp(np.linspace(np.log(1e-3), np.log(1e-1), features)),
        generator.standard_normal((features, 1, state_size)) / state_size**0.5,
    ]
    arrays = [ops.convert_to_tensor(a.astype("float32")) for a in arrays]

    def ours(*arrays):
        *transition, timescale, output_matrix = arrays
        return impulse_response(
            StructuredTransition(*transition), timescale, output_matrix, time
        )

    def dense(*arrays):
        return dense_squaring(
            StructuredTransition(*arrays[:5]), *arrays[5:], time
        )

    calls = by_kernel(ours, arrays)
    calls["dense squaring"] = gradient_call(dense, arrays)
    return calls


def by_kernel(function, arrays):
    """Forward and backward calls with our native and our portable kernels."""

    def with_kernel(kernel):
        call = gradient_call(function, arrays)

        def call_on_kernel():
            with on_kernel(kernel):
                return call()

        return call_on_kernel

    calls = {"ours": with_kernel("auto")}
    if keras_linrec.kernels.available()["native"]:
        calls["ours, portable"] = with_kernel("associative")
    return calls


def print_convolutions(batch, time, features, rounds):
    generator = np.random.default_rng(0)
    arrays = [
        generator.standard_normal(shape).astype("float32")
        for shape in ((batch, time, features), (features, 1, time))
    ]
    inputs, response = (array.astype("float64") for array in arrays)
    spectra = (
        np.fft.rfft(inputs, 2 * time, axis=1),
        np.fft.rfft(response[:, 0].T, 2 * time, axis=0),
    )
    expected = np.fft.irfft(spectra[0] * spectra[1], axis=1)[:, :time]
    given = [ops.convert_to_tensor(array) for array in arrays]
    got = ops.convert_to_numpy(causal_convolution(*given))[..., 0]
    error = np.abs(got - expected).max() / np.abs(expected).max()

    calls = by_kernel(causal_convolution, given)
    calls["plain transforms"] = gradient_call(plain_convolution, given)
    name = f"{batch} x {time} x {features}, error {error:.1e}"
    print_comparison(name, calls, rounds)
    bound = copy_time(arrays[:1], rounds)
    print_row("copies", f"{sum(bound.values()):.1f}", "", "")


def plain_convolution(inputs, response):
    """The convolution by the framework's transforms, along the last axis."""
    time = inputs.shape[1]

    def of_numpys_names(fft, transpose):
        def run(inputs, response):
            rows = fft.rfft(transpose(inputs), n=2 * time)
            product = rows * fft.rfft(response[:, 0], n=2 * time)
            return transpose(fft.irfft(product, n=2 * time)[..., :time])

        return run

    def jax():
        import jax.numpy as jnp

        return of_numpys_names(jnp.fft, lambda x: jnp.swapaxes(x, 1, 2))

    def torch():
        import torch

        return of_numpys_names(torch.fft, lambda x: x.transpose(1, 2))

    def tensorflow():
        import tensorflow as tf

        def run(inputs, response):
            length = [2 * time]
            rows = tf.signal.rfft(tf.transpose(inputs, (0, 2, 1)), length)
            product = rows * tf.signal.rfft(response[:, 0], length)
            outputs = tf.signal.irfft(product, length)[..., :time]
            return tf.transpose(outputs, (0, 2, 1))

        return run

    run = for_backend(jax=jax, tensorflow=tensorflow, torch=torch)()
    return run(inputs, response)


def gradient_call(function, arrays):
    """A compiled call of the forward and backward pass."""
    make = for_backend(
        jax=jax_gradient, tensorflow=tensorflow_gradient, torch=torch_gradient
    )
    return make(function, arrays)


def jax_gradient(function, arrays):
    import jax

    @jax.jit
    def run(arrays):
        return jax.grad(lambda a: ops.sum(ops.square(function(*a))))(arrays)

    return lambda: jax.block_until_ready(run(arrays))


def tensorflow_gradient(function, arrays):
    import tensorflow as tf

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            loss = tf.reduce_sum(tf.square(function(*arrays)))
        return tape.gradient(loss, arrays)

    return lambda: [gradient.numpy() for gradient in run()]


def torch_gradient(function, arrays):
    import torch

    arrays = [array.clone().requires_grad_() for array in arrays]
    return lambda: torch.autograd.grad(function(*arrays).square().sum(), arrays)


class DenseLSSL(keras_linrec.layers.LSSL):
    """LSSL with the impulse response of the paper's authors."""

    def run(self, sequences, *_, **__):
        systems = self._systems()
        response = dense_squaring(
            systems.transition,
            systems.timescale,
            systems.output_matrix,
            sequences.shape[1],
        )
        outputs = causal_convolution(sequences, response)
        return self._mix(systems.read_out(outputs, sequences)), None


def layer_steps(batch, time, features, state_size):
    sequences = np.random.default_rng(0).standard_normal(
        (batch, time, features)
    )
    sequences = ops.convert_to_tensor(sequences.astype("float32"))
    arguments = {"state_size": state_size, "dt_min": 1 / time}
    layers = {
        "LSSL": keras_linrec.layers.LSSL(**arguments),
        "LSSL-fixed": keras_linrec.layers.LSSL(**arguments, **FIXED),
    }
    # The Krylov matrix and its gradient, and a copy of both while they double.
    if 16 * features * state_size * time < LARGEST_BYTES:
        layers["LSSL on dense squaring"] = DenseLSSL(**arguments)
    for name in ("LSTM", "GRU"):
        layers[name] = keras_layer(name, features, return_sequences=True)
    steps = {
        name: training_step(layer, sequences) for name, layer in layers.items()
    }
    for name in framework_layers():
        steps[name] = framework_step(name, sequences)
    return steps


if __name__ == "__main__":
    main()
