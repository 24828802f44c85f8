"""The training speed of LSSL: KERAS_BACKEND=jax python benchmarks/lssl.py

Two tables of median milliseconds, from interleaved rounds in one process:

- The impulse response alone, forward and backward with gradients of A, B, C and
  dt: ours, our portable kernels, and the dense squaring of the paper's authors,
  which builds an N x L Krylov matrix from powers of Abar. There too our
  tridiagonal solver computes Abar, which favours the dense squaring.
- A training step of whole layers (forward, backward, a step of gradient
  descent) at 784, 4096 and 16384 steps: LSSL, LSSL-fixed, LSSL with dense
  squaring, `keras.layers.LSTM` and `GRU`; on PyTorch with `use_cudnn=False`,
  without which their loops take a hundred times as long.

Memory is the peak of a call beyond what the process held before. TensorFlow
does not return memory, so that it cannot be measured there.
"""

import argparse

import numpy as np
from common import for_backend
from common import keras_layer
from common import parsed_options
from common import print_comparison
from common import training_step
from keras import ops

import keras_linrec
from keras_linrec.ops.discretization import discretise
from keras_linrec.ops.hippo import StructuredTransition
from keras_linrec.ops.hippo import hippo
from keras_linrec.ops.impulse_response import impulse_response

# features, state_size, time
RESPONSES = ((128, 128, 784), (256, 64, 16384), (64, 256, 1024))
# batch, time, features, state_size
LAYERS = ((32, 784, 128, 128), (8, 4096, 128, 64), (2, 16384, 128, 64))
# Contenders that need more memory are left out.
LARGEST_BYTES = 6e9
FIXED = {"trainable_transition": False, "trainable_timescale": False}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--only", choices=("responses", "layers"), help="one of the tables"
    )
    options = parsed_options(parser)
    if options.only != "layers":
        for sizes in RESPONSES:
            name = "H{} N{} L{}".format(*sizes)
            print_comparison(name, response_calls(*sizes), options.rounds)
    if options.only != "responses":
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

    def with_kernel(kernel):
        def run(*arrays):
            *transition, timescale, output_matrix = arrays
            return impulse_response(
                StructuredTransition(*transition),
                timescale,
                output_matrix,
                time,
            )

        call = gradient_call(run, arrays)

        def on_kernel():
            keras_linrec.config.set_kernel(kernel)
            try:
                return call()
            finally:
                keras_linrec.config.set_kernel(None)

        return on_kernel

    def dense(*arrays):
        return dense_squaring(
            StructuredTransition(*arrays[:5]), *arrays[5:], time
        )

    calls = {"ours": with_kernel("auto")}
    if keras_linrec.kernels.available()["native"]:
        calls["ours, portable"] = with_kernel("associative")
    calls["dense squaring"] = gradient_call(dense, arrays)
    return calls


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

    def _response(self, transition, timescale, time, constant):
        output_matrix = ops.convert_to_tensor(self.output_matrix)
        return dense_squaring(transition, timescale, output_matrix, time)


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
    return {
        name: training_step(layer, sequences) for name, layer in layers.items()
    }


if __name__ == "__main__":
    main()
