"""The time of a step of a stream, by the way in which the step is called.

    KERAS_BACKEND=jax python benchmarks/step.py

The model of docs/guides/serving.md, after `keras_linrec.export_step`, reads one
stream: with a plain call, with `predict_on_batch`, and compiled. So do the same
model of units whose states are matrices. A round is `--steps` steps in a row,
each of which needs the states of the one before.
"""

import argparse

import keras
import numpy as np
from common import for_backend
from common import interleaved
from common import parsed_options
from common import print_header
from common import print_row
from keras import ops

import keras_linrec
from keras_linrec.layers import DeltaNet
from keras_linrec.layers import Mamba2
from keras_linrec.layers import RotRNN

UNITS = {
    "RotRNN(16)": lambda: RotRNN(16, state_size=32),
    "DeltaNet(16)": lambda: DeltaNet(16, num_heads=2, key_dim=16, value_dim=16),
    "Mamba2(16)": lambda: Mamba2(16, state_size=16, num_heads=2),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=50)
    options = parsed_options(parser)
    rows = {name: times_of(unit, options) for name, unit in UNITS.items()}
    ways = next(iter(rows.values()))
    print_header(f"{keras.backend.backend()}: ms a step", *ways)
    for name, times in rows.items():
        each = (f"{total / options.steps:.3f}" for total in times.values())
        print_row(f"2 x {name}", *each)


def times_of(unit, options):
    """Milliseconds of `options.steps` steps, by the way of the call."""
    step = one_step_model(unit)
    ways = {
        "plain call": for_backend(
            jax=lambda step: step,
            tensorflow=lambda step: step,
            torch=without_gradients,
        )(step),
        "predict_on_batch": step.predict_on_batch,
        "compiled": for_backend(
            jax=compiled_by_jax,
            tensorflow=compiled_by_tensorflow,
            torch=compiled_by_torch,
        )(step),
    }
    streams = {
        name: stream_of(step, way, options.steps) for name, way in ways.items()
    }
    for stream in streams.values():
        # The first call compiles.
        stream()
    return interleaved(streams, options.rounds)


def one_step_model(unit):
    model = keras.Sequential(
        [
            keras.Input((None, 3)),
            unit(),
            keras.layers.Dense(16, activation="gelu"),
            unit(),
            keras.layers.Dense(16, activation="gelu"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(2),
        ]
    )
    return keras_linrec.export_step(model)


def stream_of(step, way, count):
    """A function that runs a stream of `count` steps."""
    sequence = np.random.default_rng(0).random((count, 1, 3), "float32")
    initial = step.initial_states(batch_size=1)

    def stream():
        states = initial
        for now in sequence:
            output, *states = way([now, *states])
        return ops.convert_to_numpy(output)

    return stream


def compiled_by_jax(step):
    import jax

    # `predict_on_batch` replaces the arrays of the variables.
    weights = [
        [ops.copy(variable) for variable in variables]
        for variables in (
            step.trainable_variables,
            step.non_trainable_variables,
        )
    ]
    return jax.jit(lambda inputs: step.stateless_call(*weights, inputs)[0])


def compiled_by_tensorflow(step):
    import tensorflow as tf

    return tf.function(step)


def without_gradients(step):
    import torch

    return torch.inference_mode()(step)


def compiled_by_torch(step):
    import torch

    # It stops compiling what it has compiled for several models.
    torch.compiler.reset()
    return torch.no_grad()(torch.compile(step))


if __name__ == "__main__":
    main()
