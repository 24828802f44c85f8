r"""Run the gated delta rule of KerasHub's Qwen3.5 by `ops.matrix_scan`.

The linear attention of Qwen3.5 is a gated delta rule. KerasHub computes it in
chunks of 64 steps, in Python loops over the chunks and over the rows of each;
`ops.matrix_scan` computes the same on a native kernel, or in a loop that
compiles once:

    pip install ".[examples,jax,nlp]"    # or tensorflow, or torch
    python examples/qwen_delta_rule.py --steps 4096

The script makes a layer of KerasHub, computes its outputs and gradients by
either function, and prints how far they are apart and how long they take.
`delta_rule` has the arguments of KerasHub's function. KerasHub has no argument
for it, so that `by_matrix_scan` replaces a private name of KerasHub 0.32 for as
long as it is entered: for an experiment, not for a product.
"""

import argparse
import time
from contextlib import contextmanager

import numpy as np
from common import add_numbers
from common import prepare_backend

prepare_backend()

import keras
from keras import ops
from keras_hub.src.models.qwen3_5 import qwen3_5_gated_delta_net as qwen

from keras_linrec.ops import matrix_scan

# Beside the square of a norm, as KerasHub has it.
EPSILON = 1e-6


def delta_rule(
    query,
    key,
    value,
    g,
    beta,
    chunk_size=64,
    initial_state=None,
    output_final_state=False,
    padding_mask=None,
):
    """`_chunk_gated_delta_rule` of KerasHub, whatever the size of a chunk."""
    outputs, state = matrix_scan(
        of_norm_one(query) * query.shape[-1] ** -0.5,
        of_norm_one(key),
        value,
        log_decay=g,
        erase=beta,
        write=beta,
        initial_state=initial_state,
    )
    outputs = ops.cast(outputs, query.dtype)
    return outputs, state if output_final_state else None


def of_norm_one(numbers):
    square = ops.sum(ops.square(numbers), axis=-1, keepdims=True)
    return numbers * ops.rsqrt(square + EPSILON)


@contextmanager
def by_matrix_scan():
    """KerasHub's layers compute by `ops.matrix_scan` in this context."""
    theirs = qwen._chunk_gated_delta_rule
    qwen._chunk_gated_delta_rule = delta_rule
    try:
        yield
    finally:
        qwen._chunk_gated_delta_rule = theirs


def model_of(options):
    """A layer whose outputs are its inputs after one linear attention."""
    layer = qwen.Qwen3_5GatedDeltaNet(
        hidden_size=options.heads * options.head_size,
        linear_num_key_heads=options.heads,
        linear_num_value_heads=options.heads,
        linear_key_head_dim=options.head_size,
        linear_value_head_dim=options.head_size,
    )
    inputs = keras.Input((options.steps, layer.hidden_size))
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def measured(model, inputs, repeats):
    """The outputs, and the seconds of a training step, the median."""
    outputs = model.predict_on_batch(inputs)
    model.train_on_batch(inputs, inputs)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        model.train_on_batch(inputs, inputs)
        times.append(time.perf_counter() - start)
    return outputs, float(np.median(times))


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_numbers(
        parser,
        ("batch-size", int, 1, "sequences"),
        ("steps", int, 1024, "steps of a sequence"),
        ("heads", int, 4, "heads"),
        ("head-size", int, 64, "numbers of a key and of a value"),
        ("repeats", int, 3, "training steps that are timed"),
    )
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(0)
    model = model_of(options)
    shape = options.batch_size, *model.input_shape[1:]
    inputs = np.random.default_rng(0).standard_normal(shape).astype("float32")
    theirs, seconds = measured(model, inputs, options.repeats)
    with by_matrix_scan():
        # Keras keeps what it has compiled for the model.
        again = model_of(options)
        again.set_weights(model.get_weights())
        ours, faster = measured(again, inputs, options.repeats)
    difference = np.abs(ours - theirs).max() / np.abs(theirs).max()
    print(f"difference, relative to the largest output: {difference:.1e}")
    print(f"a training step of KerasHub: {1e3 * seconds:.0f} ms")
    print(f"the same by ops.matrix_scan: {1e3 * faster:.0f} ms")
    return {"difference": difference, "theirs": seconds, "ours": faster}


if __name__ == "__main__":
    main()
