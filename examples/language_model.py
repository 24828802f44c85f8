r"""Learn to write as a text does, byte by byte, and against an LSTM.

A `LinRecCausalLM` of RotRNN layers reads a text and learns which byte comes
next. After every round of training it says how well, in bits per character of
the last tenth of the text, which it is never shown, and writes a few lines of
its own. Then an LSTM of as many parameters does the same, as long:

    pip install "keras-linrec[examples,jax,nlp]"    # or tensorflow, or torch
    python examples/language_model.py

That takes some five minutes on two cores, with thirteen of Shakespeare's
sonnets that lie beside this file: enough to see it learn, and too little to
learn from.
With a text of your own, of a megabyte or so, and an hour for each model:

    python examples/language_model.py --data tiny_shakespeare.txt \
        --hidden-dim 192 --dropout 0.2 --minutes 60 --rounds 200 --steps 75 \
        --figure curve.png

`--folder FOLDER` keeps what is needed to go on after an interruption, even in
the middle of a round: run the same line again, and it ends where it would have
ended. `--minutes` then counts from the new start.

What is learned is a power of two to some bits: text in which every byte was as
likely as any other would take 8 bits a character, English needs about one.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
from common import add_figure
from common import add_models
from common import add_numbers
from common import choose_backend
from common import lstm
from common import widest

choose_backend()

import keras
import keras_hub

from keras_linrec import nlp

SONNETS = Path(__file__).parent / "sonnets.txt"
BYTES = 256
# Held out, of the end of the text; and how much of it is read at a time.
HELD_OUT = 0.1
READ_AT_A_TIME = 2048


def main(arguments=None):
    options = parse(arguments)
    training, held_out = split(read(options.data), options)
    backbone = build_backbone(options)
    models = {options.unit: build_language_model(backbone, options)}
    if options.lstm:
        count = models[options.unit].count_params()
        models["lstm"] = build_lstm(count, options)
    print(
        f"{len(training)} bytes to learn from and {len(held_out)} to be tested "
        f"on, backend {keras.backend.backend()}."
    )
    curves = {}
    for name, model in models.items():
        print(f"\n{name}: {model.count_params()} parameters.")
        write = None
        if name != "lstm":
            write = Writer(backbone, options)
        curves[name] = train(name, model, training, held_out, write, options)
    print_result(curves, models)
    if options.figure:
        plot(curves, options.figure)
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
        ("hidden-dim", int, 96, "features of a byte"),
        ("length", int, 256, "bytes of a row in training"),
        ("batch-size", int, 32, "rows in a training step"),
        ("steps", int, 20, "training steps in a round"),
        ("rounds", int, 20, "rounds at most"),
        ("minutes", float, 2.0, "of training at most, for each model"),
        ("learning-rate", float, 4e-3, "the highest, of AdamW"),
        ("dropout", float, 0.1, "share of features dropped in training"),
        ("lstm-layers", int, 2, "layers of the LSTM"),
        ("seed", int, 0, "of the rows and the weights"),
        ("characters", int, 200, "written after each round"),
    )
    parser.add_argument(
        "--prompt", default="O", help="what is written begins so"
    )
    parser.add_argument(
        "--folder", type=Path, help="where an interrupted training goes on from"
    )
    add_figure(parser, "the bits per character over time")
    return parser.parse_args(arguments)


# Data.


def read(path):
    """The bytes of a text, as integers."""
    return np.frombuffer(path.read_bytes(), "uint8").astype("int32")


def split(text, options):
    """What is learned from, and the end, which is tested on."""
    count = int(len(text) * (1 - HELD_OUT))
    if count <= options.length or len(text) - count < 2:
        raise SystemExit(
            f"--data should be a text of more than {options.length} bytes, the "
            f"--length of a row. Received: {options.data}, {len(text)} bytes"
        )
    return text[:count], text[count:]


def rows_of(text, length):
    """Rows of `length` bytes, and what follows each byte.

    The last row goes back into the one before it: no byte is left out.
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
    """Rows from anywhere in a text, the same in every run.

    Attributes:
        round: integer; each has rows of its own.
    """

    def __init__(self, text, options):
        super().__init__()
        self.text = text
        self.options = options
        self.round = 0

    def __len__(self):
        return self.options.steps

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
        unit_arguments=arguments[options.unit],
        dropout=options.dropout,
    )


def build_language_model(backbone, options):
    # KerasHub's own `fit` takes texts and arrays, and no `PyDataset`.
    model = nlp.LinRecCausalLM(backbone)
    return compiled(
        keras.Model(model.input, model.output), options, weighted_metrics=[]
    )


def build_lstm(count, options):
    """The widest one of no more than `count` parameters."""
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
    """The curve: a dictionary for each round."""
    progress = Progress(Rows(training, options), held_out, write, options)
    callbacks = [progress]
    if options.folder:
        folder = options.folder / name
        # First: what it restores is what the others begin with.
        backup = keras.callbacks.BackupAndRestore(
            folder, double_checkpoint=True
        )
        callbacks = [backup, progress]
    model.fit(
        progress.rows,
        epochs=options.rounds,
        # Keras would draw the order anew after an interruption.
        shuffle=False,
        callbacks=callbacks,
        verbose=0,
    )
    return progress.curve


class Progress(keras.callbacks.Callback):
    """Says after each round how far it is, and ends when the time is over.

    Attributes:
        rows: what is trained on.
        curve: list of dictionaries, one for each round.
    """

    def __init__(self, rows, held_out, write, options):
        super().__init__()
        self.rows = rows
        self.test = rows_of(held_out, READ_AT_A_TIME)
        self.write = write
        self.options = options
        self.curve = []

    def on_train_begin(self, logs=None):
        self.begin = time.perf_counter()
        self.tested = 0.0

    def _minutes(self):
        """Of training alone."""
        return (time.perf_counter() - self.begin - self.tested) / 60

    def on_epoch_begin(self, epoch, logs=None):
        self.rows.round = epoch
        options = self.options
        share = max(epoch / options.rounds, self._minutes() / options.minutes)
        rate = 0.5 + 0.5 * math.cos(math.pi * min(share, 1.0))
        # The first round is to find the scale of things.
        rate = max(rate, 0.02) * (0.25 if epoch == 0 else 1.0)
        self.model.optimizer.learning_rate = rate * options.learning_rate
        # What is dropped hangs on the round alone, whatever came before.
        for variable in self.model.non_trainable_variables:
            if variable.name == "seed_generator_state":
                variable.assign([options.seed, epoch])

    def on_epoch_end(self, epoch, logs=None):
        minutes = self._minutes()
        begin = time.perf_counter()
        bits = self.model.evaluate(*self.test, batch_size=4, verbose=0)
        bits /= math.log(2)
        loss = float(logs["loss"])
        point = {"round": epoch + 1, "loss": loss, "bits": bits}
        self.curve.append({**point, "minutes": minutes})
        print(
            f"round {epoch + 1:3}: loss {loss:.4f}, {bits:.4f} bits per "
            f"character held out, {minutes:.1f} minutes",
            flush=True,
        )
        if self.write is not None:
            print(f"    {self.write()}", flush=True)
        self.tested += time.perf_counter() - begin
        if minutes >= self.options.minutes:
            self.model.stop_training = True


class Writer:
    """Texts of a language model, as strings."""

    def __init__(self, backbone, options):
        preprocessor = nlp.LinRecCausalLMPreprocessor(
            nlp.LinRecByteTokenizer(), add_end_token=False
        )
        # It has the weights that are trained.
        self.model = nlp.LinRecCausalLM(backbone, preprocessor)
        # From what makes up nine tenths of the probability.
        self.model.compile(sampler=keras_hub.samplers.TopPSampler(p=0.9))
        self.options = options

    def __call__(self):
        prompt = self.options.prompt
        # The start token counts.
        length = 1 + len(prompt.encode()) + self.options.characters
        text = self.model.generate(
            prompt, max_length=length, stop_token_ids=None
        )
        # What is not yet a letter might ring a terminal's bell.
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
            f"(at best {best:.3f}) |"
        )


def plot(curves, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        minutes = [point["minutes"] for point in curve]
        axes.plot(minutes, [point["bits"] for point in curve], label=name)
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("bits per character, held out")
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
