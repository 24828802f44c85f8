r"""Evaluate nested lists of digits (ListOps), and compare with an LSTM.

The task is to compute the value, a digit, of expressions such as

    [MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]

with lists nested up to ten deep (Nangia and Bowman 2018; here with the
operations and rules of Long Range Arena, Tay et al. 2021): maximum, minimum,
median, and sum modulo 10. The tokens that determine the value may be anywhere
among hundreds:

    pip install ".[examples,jax,nlp]"    # or tensorflow, or torch
    python examples/list_operations.py

The script generates expressions of 30 to 120 tokens and trains a
`LinRecTextClassifier` and an LSTM with as many parameters for two minutes each.
`--output DIR` plots their accuracy against time.
Always answering the most frequent digit gives about 17%. The expressions of
Long Range Arena have 500 to 2,000 tokens. The following command uses 100 to 500
tokens, which a CPU can process in ten minutes for each model, and more
expressions than either model reads in that time, so that none can be memorised:

    python examples/list_operations.py --min-length 100 --max-length 500 \
        --train-size 300000 --minutes 10 --rounds 200 --iterations 100

docs/guides/language_models.md has the results. They depend on the backend: a
step of Keras' LSTM takes twice as long on TensorFlow as on JAX, a step of
RotRNN half as long.
"""

import argparse
import math
import time
from typing import NamedTuple

import numpy as np
from common import add_models
from common import add_numbers
from common import add_plot
from common import lstm
from common import prepare_backend
from common import save_plot
from common import widest
from recipes.recipe import muon

prepare_backend()

import keras

from keras_linrec import nlp

OPERATIONS = ("[MAX", "[MIN", "[MED", "[SM")
END = "]"
# The probability that an entry of a list is a list and not a digit.
NESTED = 0.25
TOKENS = ("<pad>", *map(str, range(10)), *OPERATIONS, END)
IDS = {token: index for index, token in enumerate(TOKENS)}


def main(arguments=None):
    options = parse(arguments)
    training = make_set(options.train_size, [options.seed, 0], options)
    held_out = make_set(options.test_size, [options.seed, 1], options)
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
    curves = {}
    for name, model in models.items():
        print(f"\n{name}: {model.count_params()} parameters.")
        falls_from = FALLS_FROM.get(name, 0.0)
        curves[name] = train(model, training, held_out, options, falls_from)
    print("\n| model | parameters | minutes | accuracy |")
    print("|---|---|---|---|")
    for name, curve in curves.items():
        minutes, accuracy = curve[-1]
        count = models[name].count_params()
        print(f"| {name} | {count} | {minutes:.1f} | {accuracy:.1%} |")
    if options.output:
        plot(curves, frequent, options)
    return curves


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_models(parser)
    add_numbers(
        parser,
        ("min-length", int, 30, "minimum tokens of an expression"),
        ("max-length", int, 120, "maximum tokens of an expression"),
        ("max-depth", int, 10, "maximum depth of nested lists"),
        ("max-arguments", int, 10, "maximum entries of a list"),
        ("train-size", int, 100000, "training expressions"),
        ("test-size", int, 1000, "test expressions"),
        ("layers", int, 4, "layers of the model"),
        ("hidden-dim", int, 32, "features of the model"),
        ("batch-size", int, 32, "expressions per training step"),
        ("iterations", int, 50, "training steps per round"),
        ("rounds", int, 200, "maximum number of rounds"),
        ("minutes", float, 2.0, "maximum minutes of training for each model"),
        ("learning-rate", float, 4e-3, "peak learning rate of Muon"),
        ("dropout", float, 0.0, "share of features dropped in training"),
        ("lstm-layers", int, 2, "layers of the LSTM"),
        ("seed", int, 0, "seed of expressions and weights"),
    )
    add_plot(parser, "the accuracy against time")
    options = parser.parse_args(arguments)
    if options.min_length > options.max_length:
        parser.error("--min-length should be at most --max-length")
    for name in ("max_depth", "max_arguments"):
        if getattr(options, name) < 2:
            parser.error(f"--{name.replace('_', '-')} should be at least 2")
    return options


# Expressions. Thousands are generated at once, level by level of nesting. One
# in plain Python takes 2 ms, nearly as long as training on it.


class Level(NamedTuple):
    """The lists at one depth of nesting, of all expressions.

    Attributes:
        owner: (lists,), the index of the expression.
        operation: (lists,), an index of OPERATIONS.
        exists: (lists, max_arguments), whether the list has this entry.
        is_list: same shape, whether the entry is a list of the next level.
        values: same shape, the digit, or the value of that list.
        sizes: same shape, the number of tokens of the entry.
    """

    owner: np.ndarray
    operation: np.ndarray
    exists: np.ndarray
    is_list: np.ndarray
    values: np.ndarray
    sizes: np.ndarray


def grow(count, generator, options):
    """The levels of random expressions, without the values of nested lists."""
    levels = []
    owner = np.arange(count)
    length = np.ones(count, "int64")
    for depth in range(1, options.max_depth):
        arguments = generator.integers(
            2, options.max_arguments + 1, size=len(owner)
        )
        # A list of n entries and two delimiters replaces one token.
        np.add.at(length, owner, arguments + 1)
        exists = np.arange(options.max_arguments) < arguments[:, None]
        is_list = exists & (generator.random(exists.shape) < NESTED)
        # The deepest lists hold digits; expressions too long stop growing.
        deeper = depth + 1 < options.max_depth
        is_list &= deeper & (length[owner] <= options.max_length)[:, None]
        levels.append(
            Level(
                owner,
                generator.integers(len(OPERATIONS), size=len(owner)),
                exists,
                is_list,
                generator.integers(10, size=exists.shape),
                exists.astype("int64"),
            )
        )
        owner = np.repeat(owner, is_list.sum(axis=1))
    return levels


def outcomes(level):
    """The value of every list of a level."""
    rows = np.arange(len(level.owner))
    count = level.exists.sum(axis=1)
    # Missing entries sort last.
    ordered = np.sort(np.where(level.exists, level.values, 10), axis=1)
    middle = ordered[rows, (count - 1) // 2] + ordered[rows, count // 2]
    total = (level.values * level.exists).sum(axis=1)
    results = {
        "[MAX": ordered[rows, count - 1],
        "[MIN": ordered[:, 0],
        "[MED": middle // 2,
        "[SM": total % 10,
    }
    return np.choose(level.operation, [results[name] for name in OPERATIONS])


def expressions(count, generator, options):
    """Token ids (number, max_length) and values, of `count` those that fit."""
    levels = grow(count, generator, options)
    for level, inner in zip(levels[-2::-1], levels[:0:-1]):
        level.values[level.is_list] = outcomes(inner)
        level.sizes[level.is_list] = lengths(inner)
    token_ids = np.zeros((count, options.max_length), "int8")

    def write(owner, place, token):
        fits = place < options.max_length
        token_ids[owner[fits], place[fits]] = token[fits]

    begin = np.zeros(count, "int64")
    for level in levels:
        write(level.owner, begin, IDS[OPERATIONS[0]] + level.operation)
        end = begin + lengths(level) - 1
        write(level.owner, end, np.full_like(end, IDS[END]))
        before = np.cumsum(level.sizes, axis=1) - level.sizes
        begins = begin[:, None] + 1 + before
        rows, entries = np.nonzero(level.exists & ~level.is_list)
        digits = IDS["0"] + level.values[rows, entries]
        write(level.owner[rows], begins[rows, entries], digits)
        begin = begins[level.is_list]
    length = lengths(levels[0])
    fits = (options.min_length <= length) & (length <= options.max_length)
    return token_ids[fits], outcomes(levels[0])[fits]


def lengths(level):
    """The number of tokens of every list of a level."""
    return level.sizes.sum(axis=1) + 2


def make_set(count, seed, options):
    """Token ids (count, max_length) and values (count,), sorted by length."""
    generator = np.random.default_rng(seed)
    token_ids, values, made = [], [], 0
    while made < count:
        new_token_ids, new_values = expressions(1000, generator, options)
        token_ids.append(new_token_ids)
        values.append(new_values)
        made += len(new_values)
        if not made and len(values) == 20:
            raise SystemExit(
                "--min-length, --max-length: expected lengths that "
                "expressions have. Received: lengths from "
                f"{options.min_length} to {options.max_length}, which none of "
                "20,000 expressions has"
            )
    token_ids = np.concatenate(token_ids)[:count]
    values = np.concatenate(values)[:count]
    order = np.argsort((token_ids > 0).sum(axis=1), kind="stable")
    return token_ids[order], values[order].astype("int32")


def inputs(token_ids):
    """The inputs of the models, without unnecessary padding."""
    mask = token_ids != IDS["<pad>"]
    longest = mask.sum(axis=1).max()
    # Use few different lengths: JAX compiles for each.
    length = min(token_ids.shape[1], -(-longest // 50) * 50)
    return {
        "token_ids": token_ids[:, :length].astype("int32"),
        "padding_mask": mask[:, :length].astype("int32"),
    }


def draw(token_ids, values, seed, options):
    """A batch of expressions of similar length."""
    generator = np.random.default_rng(seed)
    near = min(len(values), 16 * options.batch_size)
    first = generator.integers(len(values) - near + 1)
    rows = first + generator.integers(near, size=options.batch_size)
    return inputs(token_ids[rows]), values[rows]


# Models.


def build_classifier(options):
    keras.utils.set_random_seed(options.seed)
    width = options.hidden_dim
    heads = max(1, width // 2)
    arguments = {
        # Memories from two tokens to thousands, and small angles, as in the
        # paper for this task.
        "rotrnn": {
            "state_size": 4 * heads,
            "num_heads": heads,
            "gamma_max": 0.9995,
            "theta_max": math.pi / 100,
            "bidirectional": True,
        },
        "lssl": {"state_size": 64, "dt_max": 0.5},
        "ldstack": {"state_size": 2 * width, "eigenvalues": "log_polar"},
    }
    backbone = nlp.LinRecBackbone(
        vocabulary_size=len(TOKENS),
        num_layers=options.layers,
        hidden_dim=width,
        intermediate_dim=3 * width // 2,
        unit=options.unit,
        unit_arguments=arguments.get(options.unit),
        dropout=options.dropout,
    )
    # The maximum and the minimum of the outermost list depend on whether a
    # digit occurs in it at all. Maximum pooling answers that; a linear unit's
    # sums would have to count. The LSTM does not learn faster with it.
    return compiled(
        nlp.LinRecTextClassifier(backbone, num_classes=10, pooling="max")
    )


def build_lstm(count, options):
    """The widest bidirectional LSTM with at most `count` parameters."""
    layers, vocabulary = options.lstm_layers, len(TOKENS)

    def parameters(width):
        first = 8 * width * (vocabulary + width + 1)
        others = (layers - 1) * 8 * width * (3 * width + 1)
        return first + others + (2 * width + 1) * 10

    width = widest(parameters, count)
    keras.utils.set_random_seed(options.seed)
    tokens = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("token_ids", "padding_mask")
    }
    hidden = keras.ops.one_hot(tokens["token_ids"], vocabulary)
    mask = keras.ops.cast(tokens["padding_mask"], "bool")
    for layer in range(layers):
        # The last layer returns the final output of each direction.
        direction = lstm(width, return_sequences=layer < layers - 1)
        hidden = keras.layers.Bidirectional(direction)(hidden, mask=mask)
    logits = keras.layers.Dense(10, name="logits")(hidden)
    return compiled(keras.Model(tokens, logits))


def compiled(model):
    # With Muon, RotRNN needs fewer expressions than with AdamW, the LSTM as
    # many.
    name, arguments = muon("logits")
    optimizer = getattr(keras.optimizers, name)(**arguments)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


# Training.


# The share of training after which the learning rate falls; RotRNN's falls from
# the start. In ten minutes on TensorFlow, the LSTM reaches 46.7% with half of
# the training at the peak rate, and 44.5% otherwise.
FALLS_FROM = {"lstm": 0.5}


def train(model, training, held_out, options, falls_from=0.0):
    """Train; the minutes and accuracy on held-out expressions, by round."""
    minutes, curve = 0.0, []
    for round in range(options.rounds):
        begin = time.perf_counter()
        accuracies = []
        share = max(round / options.rounds, minutes / options.minutes)
        left = min(1.0, (1.0 - share) / (1.0 - falls_from))
        highest = options.learning_rate * left
        for step in range(options.iterations):
            done = round * options.iterations + step + 1
            model.optimizer.learning_rate = highest * min(1.0, done / 100)
            batch = draw(*training, [options.seed, round, step], options)
            logs = model.train_on_batch(*batch, return_dict=True)
            accuracies.append(float(logs["accuracy"]))
        # Testing does not count.
        minutes += (time.perf_counter() - begin) / 60
        accuracy = accuracy_of(model, *held_out)
        curve.append((minutes, accuracy))
        print(
            f"round {round + 1:3}: accuracy {np.mean(accuracies):.1%} in "
            f"training, {accuracy:.1%} held out, {minutes:.1f} minutes",
            flush=True,
        )
        if minutes >= options.minutes:
            break
    return curve


def accuracy_of(model, token_ids, values):
    right = 0
    for first in range(0, len(values), 100):
        rows = slice(first, first + 100)
        logits = model.predict_on_batch(inputs(token_ids[rows]))
        right += (logits.argmax(axis=-1) == values[rows]).sum()
    return right / len(values)


def plot(curves, frequent, options):
    from pictures import new_figure

    figure, (axes,) = new_figure(height=3.6)
    for name, curve in curves.items():
        axes.plot(*zip(*curve), ".-", label=name)
    axes.axhline(frequent, color="gray", ls="--", label="always the same digit")
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("accuracy on held-out expressions")
    axes.legend()
    save_plot(figure, options, "list_operations.png")


if __name__ == "__main__":
    main()
