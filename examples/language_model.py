r"""Train a byte-level language model, and an LSTM to compare with.

A `LinRecCausalLM` of RotRNN layers learns to predict the next byte of a text.
After every round of training, the script prints the bits per character on the
last tenth of the text, which is held out, and a few generated lines. Then an
LSTM with as many parameters trains for the same time:

    pip install ".[examples,jax,nlp]"    # or tensorflow, or torch
    python examples/language_model.py

With the thirteen sonnets of Shakespeare's in sonnets.txt, this takes about five
minutes on two cores: enough to see the model learn, but too little text for a
good model. With a text of your own of about a megabyte, and an hour for each
model:

    python examples/language_model.py --data tiny_shakespeare.txt \
        --hidden-dim 192 --dropout 0.2 --minutes 60 --rounds 200 \
        --iterations 75 --output plots

`--folder FOLDER` stores what is needed to resume after an interruption, even in
the middle of a round: run the same command again. With more `--rounds` or
`--minutes`, a finished training goes on.

A text of equally likely bytes has 8 bits per character; English has about one.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
from common import add_models
from common import add_numbers
from common import add_plot
from common import draw_dropout
from common import lstm
from common import make_folder
from common import prepare_backend
from common import require_same_run
from common import save_plot
from common import widest

prepare_backend()

import keras
import keras_hub

from keras_linrec import nlp
from keras_linrec.files import replacing
from keras_linrec.saving import BackupAndRestore

SONNETS = Path(__file__).parent / "sonnets.txt"
BYTES = 256
# The share of the text, at its end, that is held out for testing.
HELD_OUT = 0.1
TEST_LENGTH = 2048  # bytes of a row in testing


def main(arguments=None):
    options = parse(arguments)
    training, held_out = split(read(options.data), options)
    backbone = build_backbone(options)
    models = {options.unit: build_language_model(backbone, options)}
    if options.lstm:
        count = models[options.unit].count_params()
        models["lstm"] = build_lstm(count, options)
    print(
        f"{len(training)} bytes for training, {len(held_out)} for testing, "
        f"backend {keras.backend.backend()}."
    )
    curves = {}
    for name, model in models.items():
        print(f"\n{name}: {model.count_params()} parameters.")
        write = None
        if name != "lstm":
            write = Writer(backbone, options)
        curves[name] = train(name, model, training, held_out, write, options)
    print_result(curves, models)
    if options.output:
        plot(curves, options)
    return curves


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data",
        type=Path,
        default=SONNETS,
        metavar="FILE.txt",
        help="the text (default: sonnets.txt beside this file)",
    )
    add_models(parser)
    add_numbers(
        parser,
        ("layers", int, 4, "layers of the model"),
        ("hidden-dim", int, 96, "features of the model"),
        ("length", int, 256, "bytes of a row in training"),
        ("batch-size", int, 32, "rows per training step"),
        ("iterations", int, 20, "training steps per round"),
        ("rounds", int, 20, "maximum number of rounds"),
        ("minutes", float, 2.0, "maximum minutes of training for each model"),
        ("learning-rate", float, 4e-3, "peak learning rate of AdamW"),
        ("dropout", float, 0.1, "share of features dropped in training"),
        ("lstm-layers", int, 2, "layers of the LSTM"),
        ("seed", int, 0, "seed of rows and weights"),
        ("characters", int, 200, "characters generated after each round"),
    )
    parser.add_argument(
        "--prompt", default="O", help="beginning of the generated text"
    )
    parser.add_argument(
        "--folder", type=Path, help="store checkpoints here, to resume from"
    )
    add_plot(parser, "the bits per character against time")
    return parser.parse_args(arguments)


# Data.


def read(path):
    """The bytes of a text, as integers."""
    return np.frombuffer(path.read_bytes(), "uint8").astype("int32")


def split(text, options):
    """The parts of a text for training and for testing."""
    count = int(len(text) * (1 - HELD_OUT))
    if count <= options.length or len(text) - count < 2:
        raise SystemExit(
            f"--data should be a text of more than {options.length} bytes, the "
            f"--length of a row. Received: {options.data}, {len(text)} bytes"
        )
    return text[:count], text[count:]


def rows_of(text, length):
    """Rows of `length` bytes, and the byte that follows each.

    The last row overlaps the one before it, so that no byte is left out.
    """
    length = min(length, len(text) - 1)
    count = -(-(len(text) - 1) // length)
    first = np.minimum(np.arange(count) * length, len(text) - 1 - length)
    index = first[:, None] + np.arange(length)
    return inputs(text[index]), text[index + 1]


def inputs(token_ids):
    return {
        "token_ids": token_ids,
        "padding_mask": np.ones(token_ids.shape, "int32"),
    }


class Rows(keras.utils.PyDataset):
    """Rows from random places in a text, the same ones in every run.

    Attributes:
        round: integer, the round, which determines the rows.
    """

    def __init__(self, text, options):
        super().__init__()
        self.text = text
        self.options = options
        self.round = 0

    def __len__(self):
        return self.options.iterations

    def __getitem__(self, step):
        options = self.options
        generator = np.random.default_rng([options.seed, self.round, step])
        last = len(self.text) - options.length
        first = generator.integers(last, size=(options.batch_size, 1))
        index = first + np.arange(options.length)
        return inputs(self.text[index]), self.text[index + 1]


# Models.


def build_backbone(options):
    keras.utils.set_random_seed(options.seed)
    width = options.hidden_dim
    arguments = {
        "rotrnn": {"state_size": 2 * width, "num_heads": max(1, width // 4)},
        "lssl": {"state_size": 64, "dt_max": 0.5},
        "ldstack": {"state_size": 2 * width, "eigenvalues": "log_polar"},
    }
    return nlp.LinRecBackbone(
        vocabulary_size=nlp.LinRecByteTokenizer().vocabulary_size(),
        num_layers=options.layers,
        hidden_dim=width,
        intermediate_dim=2 * width,
        unit=options.unit,
        unit_arguments=arguments.get(options.unit),
        dropout=options.dropout,
    )


def build_language_model(backbone, options):
    # KerasHub's own `fit` does not accept a `PyDataset`.
    model = nlp.LinRecCausalLM(backbone)
    return compiled(
        keras.Model(model.input, model.output), options, weighted_metrics=[]
    )


def build_lstm(count, options):
    """The widest LSTM with at most `count` parameters."""
    layers = options.lstm_layers

    def parameters(width):
        embedding, head = BYTES * width, (width + 1) * BYTES
        return embedding + layers * (8 * width * width + 4 * width) + head

    width = widest(parameters, count)
    keras.utils.set_random_seed(options.seed)
    tokens = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("token_ids", "padding_mask")
    }
    hidden = keras.layers.Embedding(BYTES, width)(tokens["token_ids"])
    for _ in range(layers):
        hidden = keras.layers.Dropout(options.dropout)(hidden)
        hidden = lstm(width, return_sequences=True)(hidden)
    hidden = keras.layers.Dropout(options.dropout)(hidden)
    logits = keras.layers.Dense(BYTES)(hidden)
    return compiled(keras.Model(tokens, logits), options, weighted_metrics=[])


def compiled(model, options, **arguments):
    model.compile(
        keras.optimizers.AdamW(
            options.learning_rate, weight_decay=0.01, global_clipnorm=1.0
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **arguments,
    )
    return model


# Training.


def train(name, model, training, held_out, write, options):
    """Train; return the curve of `Progress`."""
    progress = Progress(Rows(training, options), held_out, write, options)
    callbacks = [progress]
    if options.folder:
        folder = options.folder / name
        progress.resume(folder)
        # Last: a round that was recorded and not backed up is trained again.
        callbacks.append(BackupAndRestore(folder, delete_checkpoint=False))
    if progress.is_finished():
        print("Finished before.")
        return progress.curve
    model.fit(
        progress.rows,
        epochs=options.rounds,
        # Shuffling would change the order after an interruption.
        shuffle=False,
        callbacks=callbacks,
        verbose=0,
    )
    return progress.curve


class Progress(keras.callbacks.Callback):
    """Print the progress after each round, and stop when time is up.

    Attributes:
        rows: `Rows`, the training data.
        curve: list of dictionaries, one for each round.
    """

    def __init__(self, rows, held_out, write, options):
        super().__init__()
        self.rows = rows
        self.test = rows_of(held_out, TEST_LENGTH)
        self.write = write
        self.options = options
        self.path = None
        self.curve = []

    def resume(self, folder):
        """Continue the curve of a folder, and keep it there from now on."""
        make_folder(folder)
        require_same_run(folder, what_determines(self.options))
        self.path = folder / "curve.json"
        if self.path.exists():
            self.curve = json.loads(self.path.read_text())

    def is_finished(self):
        out_of_time = self._minutes() >= self.options.minutes
        return out_of_time or len(self.curve) >= self.options.rounds

    def _minutes(self):
        """The time spent on training, without testing."""
        return self.curve[-1]["minutes"] if self.curve else 0.0

    def on_epoch_begin(self, epoch, logs=None):
        del self.curve[epoch:]
        self.rows.round = epoch
        options = self.options
        share = max(epoch / options.rounds, self._minutes() / options.minutes)
        rate = 0.5 + 0.5 * math.cos(math.pi * min(share, 1.0))
        # The first round is a warmup.
        rate = max(rate, 0.02) * (0.25 if epoch == 0 else 1.0)
        self.model.optimizer.learning_rate = rate * options.learning_rate
        draw_dropout(self.model, options.seed, epoch)
        self.begin = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        minutes = self._minutes() + (time.perf_counter() - self.begin) / 60
        bits = self.model.evaluate(*self.test, batch_size=4, verbose=0)
        bits /= math.log(2)
        loss = float(logs["loss"])
        point = {"round": epoch + 1, "loss": loss, "bits": bits}
        self.curve.append({**point, "minutes": minutes})
        if self.path:
            with replacing(self.path) as path:
                Path(path).write_text(json.dumps(self.curve))
        print(
            f"round {epoch + 1:3}: loss {loss:.4f}, {bits:.4f} bits per "
            f"character (held out), {minutes:.1f} minutes",
            flush=True,
        )
        if self.write is not None:
            print(f"    {self.write()}", flush=True)
        if self.is_finished():
            self.model.stop_training = True


# Those that another run in the same folder may have.
MAY_CHANGE = {"characters", "folder", "lstm", "minutes", "output", "prompt"}
MAY_CHANGE |= {"rounds"}


def what_determines(options):
    """The other options, as JSON would hold them."""
    kept = {k: v for k, v in vars(options).items() if k not in MAY_CHANGE}
    return {**kept, "data": str(kept["data"].resolve())}


class Writer:
    """Generates texts with a language model."""

    def __init__(self, backbone, options):
        preprocessor = nlp.LinRecCausalLMPreprocessor(
            nlp.LinRecByteTokenizer(), add_end_token=False
        )
        # This model shares the weights that are trained.
        self.model = nlp.LinRecCausalLM(backbone, preprocessor)
        self.model.compile(sampler=keras_hub.samplers.TopPSampler(p=0.9))
        self.options = options

    def __call__(self):
        prompt = self.options.prompt
        # The start token counts.
        length = 1 + len(prompt.encode()) + self.options.characters
        text = self.model.generate(
            prompt, max_length=length, stop_token_ids=None
        )
        # An untrained model generates control characters.
        text = "".join(c if c.isprintable() or c == "\n" else "." for c in text)
        return text.replace("\n", "\n    ")


# Results.


def print_result(curves, models):
    print("\n| model | parameters | minutes | bits per character |")
    print("|---|---|---|---|")
    for name, curve in curves.items():
        if not curve:
            continue
        best = min(point["bits"] for point in curve)
        print(
            f"| {name} | {models[name].count_params()} | "
            f"{curve[-1]['minutes']:.1f} | {curve[-1]['bits']:.3f} "
            f"(lowest {best:.3f}) |"
        )


def plot(curves, options):
    from pictures import new_figure

    figure, (axes,) = new_figure(height=3.6)
    for name, curve in curves.items():
        minutes = [point["minutes"] for point in curve]
        axes.plot(minutes, [point["bits"] for point in curve], label=name)
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("bits per character, held out")
    axes.legend()
    save_plot(figure, options, "language_model.png")


if __name__ == "__main__":
    main()
