r"""Work out nested lists of digits, against an LSTM.

ListOps asks for the value, a digit, of expressions such as

    [MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]

in which lists stand within lists, up to ten deep (Nangia and Bowman 2018; here
with the operations and the rules of Long Range Arena, Tay et al. 2021):
largest, smallest, median, and sum modulo 10. What counts may stand anywhere in
hundreds of tokens:

    pip install "keras-linrec[examples,jax,nlp]"    # or tensorflow, or torch
    python examples/list_operations.py

Expressions of 30 to 120 tokens are made and learned from for two minutes, by a
`LinRecTextClassifier` and by an LSTM of as many parameters. Always to answer
the most frequent digit gives some 17%. Long Range Arena's own have 500 to 2,000
tokens; here with as many as a processor reads in half an hour:

    python examples/list_operations.py --min-length 100 --max-length 500 \
        --train-size 40000 --minutes 30 --rounds 100 --steps 100
"""

import argparse
import math
import random
import time

import numpy as np
from sequential_digits import choose_backend

choose_backend()

import keras
from language_model import Draws
from language_model import compiled
from language_model import widest

from keras_linrec import nlp

OPERATIONS = {
    "[MAX": max,
    "[MIN": min,
    "[MED": lambda values: int(np.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
END = "]"
# The probability that a list holds a list in a place, and not a digit.
NESTED = 0.25
TOKENS = ("<pad>", *map(str, range(10)), *OPERATIONS, END)
IDS = {token: index for index, token in enumerate(TOKENS)}


def main(arguments=None):
    options = parse(arguments)
    training = make_set(options.train_size, f"{options.seed} train", options)
    held_out = make_set(options.test_size, f"{options.seed} test", options)
    frequent = np.bincount(training[1], minlength=10).max() / len(training[1])
    print(
        f"{len(training[1])} expressions of {options.min_length} to "
        f"{options.max_length} tokens, backend {keras.backend.backend()}. "
        f"Always the same digit: {frequent:.1%}."
    )
    model = build_classifier(options)
    models = {options.unit: model}
    if options.lstm:
        models["lstm"] = build_lstm(model.count_params(), options)
    results = {}
    for name, model in models.items():
        print(f"\n{name}: {model.count_params()} parameters.")
        results[name] = train(model, training, held_out, options)
    print("\n| model | parameters | minutes | accuracy |")
    print("|---|---|---|---|")
    for name, (minutes, accuracy) in results.items():
        count = models[name].count_params()
        print(f"| {name} | {count} | {minutes:.1f} | {accuracy:.1%} |")
    return results


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--unit",
        choices=("rotrnn", "lssl", "ldstack"),
        default="rotrnn",
        help="what the layers are made of (default: %(default)s)",
    )
    for name, kind, default, text in (
        ("min-length", int, 30, "tokens of an expression at least"),
        ("max-length", int, 120, "tokens of an expression at most"),
        ("max-depth", int, 10, "lists within lists"),
        ("max-arguments", int, 10, "entries of a list"),
        ("train-size", int, 4000, "expressions to learn from"),
        ("test-size", int, 1000, "expressions to be tested on"),
        ("layers", int, 4, "layers of the model"),
        ("hidden-dim", int, 64, "features of a token"),
        ("batch-size", int, 32, "expressions in a training step"),
        ("steps", int, 50, "training steps in a round"),
        ("rounds", int, 60, "at most"),
        ("minutes", float, 2.0, "of training at most, for each model"),
        ("learning-rate", float, 1e-3, "the highest, of AdamW"),
        ("dropout", float, 0.0, "share of features dropped in training"),
        ("lstm-layers", int, 2, "layers of the LSTM"),
        ("seed", int, 0, "of the expressions and the weights"),
    ):
        parser.add_argument(
            f"--{name}",
            type=kind,
            default=default,
            help=f"{text} (default: %(default)s)",
        )
    parser.add_argument(
        "--no-lstm", dest="lstm", action="store_false", help="leave it out"
    )
    return parser.parse_args(arguments)


# Expressions.


def expression(generator, options, depth=1):
    """The tokens of an expression, and its value."""
    is_list = depth < options.max_depth and generator.random() < NESTED
    if depth > 1 and not is_list:
        digit = generator.randrange(10)
        return [str(digit)], digit
    operation = generator.choice(list(OPERATIONS))
    count = generator.randint(2, options.max_arguments)
    tokens, values = [operation], []
    for _ in range(count):
        entry, value = expression(generator, options, depth + 1)
        tokens += entry
        values.append(value)
        if len(tokens) > options.max_length:
            # Too long already: what follows would be thrown away.
            return tokens, 0
    return [*tokens, END], OPERATIONS[operation](values)


def make_set(count, seed, options):
    """Token ids (count, max_length), and values (count,).

    Expressions stand from their end to their beginning: a list's entries come
    before what is to be done with them, and the outermost operation, which
    says most of the value, is the last that is read.
    """
    # NumPy's takes ten times as long for single numbers.
    generator = random.Random(seed)
    token_ids = np.zeros((count, options.max_length), "int32")
    values = np.zeros(count, "int32")
    made = 0
    while made < count:
        tokens, value = expression(generator, options)
        if options.min_length <= len(tokens) <= options.max_length:
            ids = [IDS[token] for token in reversed(tokens)]
            token_ids[made, : len(tokens)] = ids
            values[made] = value
            made += 1
    return token_ids, values


def inputs(token_ids):
    mask = token_ids != IDS["<pad>"]
    return {"token_ids": token_ids, "padding_mask": mask.astype("int32")}


def draws_of(token_ids, values, options):
    """Any expressions of a set."""

    def draw(generator):
        rows = generator.integers(len(values), size=options.batch_size)
        return inputs(token_ids[rows]), values[rows]

    return Draws(draw, options)


# Models.


def build_classifier(options):
    keras.utils.set_random_seed(options.seed)
    width = options.hidden_dim
    arguments = {
        # Angles as in the paper: to count brackets, states must not turn.
        "rotrnn": {
            "state_size": 2 * width,
            "num_heads": max(1, width // 2),
            "theta_max": math.pi / 100,
        },
        "lssl": {"state_size": 64, "dt_max": 0.5},
        "ldstack": {"state_size": 2 * width, "eigenvalues": "log_polar"},
    }
    backbone = nlp.LinRecBackbone(
        vocabulary_size=len(TOKENS),
        num_layers=options.layers,
        hidden_dim=width,
        intermediate_dim=2 * width,
        unit=options.unit,
        unit_arguments=arguments[options.unit],
        dropout=options.dropout,
    )
    model = nlp.LinRecTextClassifier(backbone, num_classes=10, pooling="last")
    # KerasHub's own `fit` takes texts and arrays, and no dataset of Keras.
    return compiled(
        keras.Model(model.input, model.output), options, metrics=["accuracy"]
    )


def build_lstm(count, options):
    """The widest one of no more than `count` parameters."""
    layers, vocabulary = options.lstm_layers, len(TOKENS)

    def parameters(width):
        first = 4 * width * (vocabulary + width + 1)
        others = (layers - 1) * 4 * width * (2 * width + 1)
        return first + others + (width + 1) * 10

    width = widest(parameters, count)
    keras.utils.set_random_seed(options.seed)
    # What PyTorch does on a processor with cuDNN's form takes minutes a step.
    use_cudnn = False if keras.backend.backend() == "torch" else "auto"
    tokens = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("token_ids", "padding_mask")
    }
    hidden = keras.ops.one_hot(tokens["token_ids"], vocabulary)
    mask = keras.ops.cast(tokens["padding_mask"], "bool")
    for layer in range(layers):
        last = layer == layers - 1
        hidden = keras.layers.LSTM(
            width, return_sequences=not last, use_cudnn=use_cudnn
        )(hidden, mask=mask)
    logits = keras.layers.Dense(10)(hidden)
    return compiled(keras.Model(tokens, logits), options, metrics=["accuracy"])


# Training.


def train(model, training, held_out, options):
    """Minutes of training, and the accuracy on what was held out."""
    progress = Progress(draws_of(*training, options), held_out, options)
    model.fit(
        progress.rows,
        epochs=options.rounds,
        shuffle=False,
        callbacks=[progress],
        verbose=0,
    )
    return progress.minutes, progress.accuracy


class Progress(keras.callbacks.Callback):
    """Says after each round how far it is, and ends when the time is over."""

    def __init__(self, rows, held_out, options):
        super().__init__()
        self.rows = rows
        self.held_out = held_out
        self.options = options
        self.minutes = self.accuracy = 0.0

    def on_train_begin(self, logs=None):
        self.begin = time.perf_counter()

    def on_epoch_begin(self, epoch, logs=None):
        self.rows.round = epoch
        share = max(
            epoch / self.options.rounds, self.minutes / self.options.minutes
        )
        # It falls over the second half.
        rate = min(1.0, 2.05 - 2.0 * min(share, 1.0))
        self.model.optimizer.learning_rate = rate * self.options.learning_rate

    def on_epoch_end(self, epoch, logs=None):
        begin = time.perf_counter()
        self.minutes = (begin - self.begin) / 60
        token_ids, values = self.held_out
        _, self.accuracy = self.model.evaluate(
            inputs(token_ids), values, batch_size=100, verbose=0
        )
        print(
            f"round {epoch + 1:3}: {float(logs['accuracy']):.1%} of what it "
            f"learns from, {self.accuracy:.1%} of what it has not seen, "
            f"{self.minutes:.1f} minutes",
            flush=True,
        )
        # The time of the test is nobody's.
        self.begin += time.perf_counter() - begin
        if self.minutes >= self.options.minutes:
            self.model.stop_training = True


if __name__ == "__main__":
    main()
