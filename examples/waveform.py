"""Train small recurrent networks to reproduce a recording from memory.

The sound of a plucked string, 90 ms at 44.1 kHz, is cut into pieces of 800
samples. For each piece, a network receives a single impulse and must then
generate the piece (Mhammedi et al. 2017, section 5.1). The paper uses a song;
the string here is synthetic: a few decaying harmonics, vibrato, and noise.

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/waveform.py

This takes some minutes on two cores. It compares an `OrthogonalRNN` that has as
many reflections as units with Keras' LSTM and SimpleRNN of about as many
parameters, by the lowest error during training, relative to the variance of
the piece (NMSE; silence has 1). `--output DIR` plots the output of each
network for the first piece. The paper trains five times as long:

    python examples/waveform.py --iterations 5000
"""

import argparse
import time

import numpy as np
from common import add_numbers
from common import add_plot
from common import lstm
from common import prepare_backend
from common import real_number
from common import save_plot
from pictures import legend_below
from pictures import new_figure

prepare_backend()

import keras

from keras_linrec.layers import OrthogonalRNN

RATE = 44_100  # samples per second
PIECE = 800  # samples
KINDS = ("OrthogonalRNN", "LSTM", "SimpleRNN")


def main(arguments=None):
    options = parse(arguments)
    pieces = recording(options.pieces, options.samples)
    print(
        f"{options.pieces} pieces of {options.samples} samples, backend "
        f"{keras.backend.backend()}."
    )
    table, played = [], {}
    for kind in KINDS:
        units = units_for(kind, options.parameters)
        errors, begin = [], time.perf_counter()
        for number, piece in enumerate(pieces):
            keras.utils.set_random_seed(options.seed + number)
            best = train(build_model(kind, units, options), piece, options)
            errors.append(best.error)
            played.setdefault(kind, best.played)
            print(f"{kind}, piece {number + 1}: {best.error:.4f}", flush=True)
        seconds = time.perf_counter() - begin
        table.append((kind, units, errors, seconds))
    print("\n| layer | units | parameters | median NMSE | lowest | seconds |")
    print("|---|---|---|---|---|---|")
    for kind, units, errors, seconds in table:
        print(
            f"| {kind} | {units} | {parameters(kind, units)} | "
            f"{np.median(errors):.4f} | {min(errors):.4f} | {seconds:.0f} |"
        )
    if options.output:
        plot(pieces[0], played, options)
    return table


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_numbers(
        parser,
        ("pieces", int, 5, "number of pieces, each with its own networks"),
        ("samples", int, PIECE, "samples of a piece"),
        ("iterations", int, 1000, "training steps per piece"),
        ("parameters", int, 500, "approximate parameters of a network"),
        ("seed", int, 0, "seed of the weights"),
    )
    parser.add_argument(
        "--learning-rate",
        type=real_number(may_be_zero=False),
        default=1e-3,
        help="learning rate of Adam (default: %(default)s)",
    )
    parser.add_argument(
        "--activation",
        help="activation of OrthogonalRNN (default: the layer's own)",
    )
    add_plot(parser, "each network's output for the first piece")
    return parser.parse_args(arguments)


def recording(pieces, samples):
    """The sound of a plucked string, (pieces, samples), of variance 1."""
    generator = np.random.default_rng(0)
    seconds = np.arange(pieces * samples) / RATE
    vibrato = 0.004 * np.sin(2 * np.pi * 30 * seconds)
    sound = np.zeros_like(seconds)
    for harmonic in range(1, 7):
        phase = 2 * np.pi * 330 * harmonic * (seconds + vibrato / 30)
        fading = np.exp(-5 * harmonic * seconds)
        start = generator.uniform(0, 2 * np.pi)
        sound += fading * np.sin(phase + start) / harmonic
    sound += 0.01 * generator.standard_normal(sound.shape)
    cut = sound.reshape(pieces, samples).astype("float32")
    cut = cut - cut.mean(axis=1, keepdims=True)
    return cut / cut.std(axis=1, keepdims=True)


def parameters(kind, units):
    """The number of free parameters of a network with its Dense layer."""
    inputs_and_bias, dense = 2 * units, units + 1
    if kind == "LSTM":
        return 4 * (units**2 + inputs_and_bias) + dense
    if kind == "SimpleRNN":
        return units**2 + inputs_and_bias + dense
    # Reflectors are zero above the diagonal, and the last one is a sign.
    return units * (units + 1) // 2 + inputs_and_bias + dense


def units_for(kind, wanted):
    """The units that bring the number of parameters closest to `wanted`."""
    return min(
        range(2, 1000), key=lambda units: abs(parameters(kind, units) - wanted)
    )


def build_model(kind, units, options):
    model = keras.Sequential(
        [
            keras.Input((options.samples, 1)),
            build_layer(kind, units, options),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        keras.optimizers.Adam(options.learning_rate, global_clipnorm=1.0),
        "mean_squared_error",
    )
    return model


def build_layer(kind, units, options):
    if kind == "LSTM":
        return lstm(
            units,
            return_sequences=True,
            unit_forget_bias=False,
            bias_initializer=remembering,
        )
    if kind == "SimpleRNN":
        return keras.layers.SimpleRNN(units, return_sequences=True)
    given = {"activation": options.activation} if options.activation else {}
    return OrthogonalRNN(
        units,
        reflections=units,
        # A sound needs rotations by all angles rather than the identity.
        reflector_initializer=keras.initializers.RandomUniform(-1, 1),
        return_sequences=True,
        **given,
    )


def remembering(shape, dtype=None):
    """The paper's biases of the LSTM: 5 for the forget gate, otherwise 0."""
    values = np.zeros(shape, "float32")
    units = shape[0] // 4
    values[units : 2 * units] = 5
    return keras.ops.convert_to_tensor(values, dtype)


def train(model, piece, options):
    click = np.zeros((1, options.samples, 1), "float32")
    click[0, 0] = 1
    best = Best(click)
    model.fit(
        click,
        piece[None, :, None],
        epochs=options.iterations,
        callbacks=[best],
        verbose=0,
    )
    return best


class Best(keras.callbacks.Callback):
    """Record the lowest error, and the output with its weights.

    Attributes:
        error: float, the lowest error so far.
        played: array (samples,), the output; `None` until training ends.
    """

    def __init__(self, click):
        super().__init__()
        self.click = click
        self.error = np.inf
        self.played = None

    def on_epoch_begin(self, epoch, logs=None):
        self.before = self.model.get_weights()

    def on_epoch_end(self, epoch, logs=None):
        # The loss belongs to the weights before this step.
        if float(logs["loss"]) < self.error:
            self.error = float(logs["loss"])
            self.weights = self.before

    def on_train_end(self, logs=None):
        self.model.set_weights(self.weights)
        self.played = self.model.predict(self.click, verbose=0)[0, :, 0]


def plot(piece, played, options):
    figure, panels = new_figure(len(played), height=1.9, sharex=True)
    milliseconds = 1000 * np.arange(len(piece)) / RATE
    for axes, kind in zip(panels, played):
        axes.plot(milliseconds, piece, color="0.6", label="the recording")
        axes.plot(milliseconds, played[kind], label="played by the network")
        error = np.mean((piece - played[kind]) ** 2) / np.var(piece)
        axes.set_title(f"{kind}: error {error:.0%}", fontsize="medium")
        axes.set_yticks([])
    axes.set_xlabel("ms")
    legend_below(figure, panels[0])
    save_plot(figure, options, "waveform.png")


if __name__ == "__main__":
    main()
