"""One backend's part in `test_files_across_backends`.

Saves models and what they predict in the folder given, waits for the files of
the other backends, loads them all, and prints the largest differences between
what they predict here and there as JSON.
"""

import json
import sys
import time
from pathlib import Path

import keras
import numpy as np
from support.units import array
from support.units import randomise
from support.units import saved_layers

from keras_linrec import nlp
from keras_linrec.layers import LipschitzRNNCell
from keras_linrec.layers.base.matrix_state_layer import MatrixStateLayer

BACKENDS = ("jax", "tensorflow", "torch")
TEXTS = ["To be", "or not to be"]


def build():
    """Every layer, one after another; beside them those with matrices.

    These magnify the rounding of layers before them, since they divide by the
    size of what they read.
    """
    layers = {True: [], False: []}
    for layer in saved_layers():
        layers[isinstance(layer, MatrixStateLayer)].append(layer)
    cell = keras.layers.RNN(LipschitzRNNCell(4), return_sequences=True)
    row = keras.Sequential([*layers[False], cell])
    inputs = keras.Input((None, 3))
    outputs = [layer(inputs) for layer in (row, *layers[True])]
    outputs = keras.layers.Concatenate()(outputs)
    return keras.Model(inputs, keras.layers.Dense(2)(outputs))


def build_text_models():
    """A language model, and a classifier on a backbone of its own."""
    tokenizer = nlp.LinRecByteTokenizer()
    backbones = [
        nlp.LinRecBackbone(
            259, 1, 6, 8, unit="rotrnn", unit_arguments={"state_size": 64}
        ),
        nlp.LinRecBackbone(259, 1, 6, 8, unit="lssl", normalization="layer"),
    ]
    return {
        "language": nlp.LinRecCausalLM(
            backbones[0],
            nlp.LinRecCausalLMPreprocessor(tokenizer, sequence_length=12),
        ),
        "classes": nlp.LinRecTextClassifier(
            backbones[1],
            num_classes=3,
            preprocessor=nlp.LinRecTextClassifierPreprocessor(
                tokenizer, sequence_length=12
            ),
        ),
    }


def save_sequence_model(folder, backend):
    inputs = sequences()
    model = build()
    # So that no weight has its initial value.
    randomise(model)
    model.save(folder / f"{backend}.keras")
    model.save_weights(folder / f"{backend}.weights.h5")
    # Not `predict`: for a file each it would compile a program.
    np.save(folder / f"{backend}.npy", array(model(inputs)))


def sequences():
    inputs = np.random.default_rng(0).standard_normal((4, 50, 3))
    return inputs.astype("float32")


def load_sequence_model(folder, name):
    loaded = keras.models.load_model(folder / f"{name}.keras")
    # And the weights alone.
    other = keras.models.clone_model(loaded)
    other.load_weights(folder / f"{name}.weights.h5")
    expected = np.load(folder / f"{name}.npy")
    return max(
        difference(array(model(sequences())), expected)
        for model in (loaded, other)
    )


def save_text_models(folder, backend):
    for kind, model in build_text_models().items():
        model.save_to_preset(str(folder / f"{backend}-{kind}"))
        predicted = model.predict(TEXTS, verbose=0)
        np.save(folder / f"{backend}-{kind}.npy", predicted)


def load_text_model(folder, name, kind):
    cls = {
        "language": nlp.LinRecCausalLM,
        "classes": nlp.LinRecTextClassifier,
    }[kind]
    loaded = cls.from_preset(str(folder / f"{name}-{kind}"))
    expected = np.load(folder / f"{name}-{kind}.npy")
    return difference(loaded.predict(TEXTS, verbose=0), expected)


def difference(got, expected):
    return float(np.abs(got - expected).max())


def main(folder):
    backend = keras.backend.backend()
    save_sequence_model(folder, backend)
    save_text_models(folder, backend)
    (folder / f"{backend}.done").touch()

    deadline = time.monotonic() + 240
    while not all((folder / f"{name}.done").exists() for name in BACKENDS):
        if time.monotonic() > deadline:
            sys.exit("The other backends did not save their models in time.")
        time.sleep(0.2)
    differences = {
        name: {
            "sequences": load_sequence_model(folder, name),
            "language": load_text_model(folder, name, "language"),
            "classes": load_text_model(folder, name, "classes"),
        }
        for name in BACKENDS
    }
    print(json.dumps(differences))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
