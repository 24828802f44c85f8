"""Train a language model of bytes on Python's own library.

The guide docs/guides/tasks/text.md explains the code. Its picture:

    pip install ".[examples,torch,nlp]"    # or jax, or tensorflow
    export KERAS_BACKEND=torch
    python examples/write_text.py --output docs/images/tasks
"""

import email
import os
from pathlib import Path

import numpy as np
import tensorflow as tf
from common import prepare_backend
from task_guides import Record
from task_guides import lstm
from task_guides import lstm_name
from task_guides import run

prepare_backend()

import keras

from keras_linrec import nlp

SIZES = (
    ("epochs", int, 4, "over the text"),
    ("pieces", int, 2400, "of text to train on, at most"),
)

LENGTH = 256  # bytes of a piece


def pieces_of_text(folder):
    """The source files of a folder, cut into pieces."""
    files = sorted(Path(folder).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)
    cuts = range(0, len(text) - LENGTH, LENGTH)
    # A letter of several bytes that a cut divides is left out.
    return [text[i : i + LENGTH].decode("utf-8", "ignore") for i in cuts]


def batches(preprocessor, pieces, shuffled=False):
    """Tokens, the token after each, and which of them count, in batches."""
    data = tf.data.Dataset.from_tensor_slices(preprocessor(pieces))
    if shuffled:
        data = data.shuffle(len(pieces), seed=0)
    return data.batch(16, drop_remainder=True).prefetch(2)


def build_model():
    backbone = nlp.LinRecBackbone(
        vocabulary_size=259,  # 256 bytes, and start, end, padding
        num_layers=2,
        hidden_dim=96,
        intermediate_dim=192,
        unit="rotrnn",
        unit_arguments={"state_size": 96},
    )
    preprocessor = nlp.LinRecCausalLMPreprocessor(
        nlp.LinRecByteTokenizer(), sequence_length=LENGTH
    )
    return nlp.LinRecCausalLM(backbone, preprocessor)


def train(model, training, validation, epochs, rate=4e-3):
    model.compile(
        keras.optimizers.AdamW(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model.fit(
        training,
        validation_data=validation,
        epochs=epochs,
        shuffle=False,  # `batches` shuffles
        verbose=2,
    )


def build_lstm():
    tokens = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(259, 96)(tokens)
    hidden = lstm(128, return_sequences=True)(hidden)
    return keras.Model(tokens, keras.layers.Dense(259)(hidden))


def build_for_tokens():
    """The model without its preprocessor, whose work is done once."""
    model = build_model()
    model.preprocessor = None
    return model


def measure(options):
    record = Record("bits per byte of validation text", 1 / np.log(2))
    models = {"RotRNN": build_for_tokens, lstm_name(): build_lstm}
    pieces = pieces_of_text(os.path.dirname(email.__file__))
    preprocessor = build_model().preprocessor
    for seed in range(options.seeds):
        order = np.random.default_rng(seed).permutation(len(pieces))
        held_out = len(pieces) // 20
        chosen = [
            pieces[index] for index in order[: 2 * held_out + options.pieces]
        ]
        sets = [
            batches(preprocessor, chosen[2 * held_out :], shuffled=True),
            batches(preprocessor, chosen[:held_out]),
            batches(preprocessor, chosen[held_out : 2 * held_out]),
        ]
        for name, build in models.items():
            if build is build_lstm:
                sets = [tokens_alone(data) for data in sets]
            training, validation, new = sets
            data = training, validation, options.epochs
            model = record.train(name, seed, build, train, data, "val_loss")
            losses = model.evaluate(new, verbose=0, return_dict=True)
            record.figure(name, bits=losses["loss"] / np.log(2))
    return record.result()


def tokens_alone(data):
    return data.map(lambda inputs, *others: (inputs["token_ids"], *others))


def main(arguments=None):
    return run("text", __doc__, measure, SIZES, arguments)


if __name__ == "__main__":
    main()
