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
tokens; here with as many as a processor reads in half an hour, and with as many
expressions as there (RotRNN reads them six times, and begins to know them by
heart; more of them, made in 2 ms each, help it):

    python examples/list_operations.py --min-length 100 --max-length 500 \
        --train-size 96000 --minutes 30 --rounds 200 --steps 100
"""

import argparse
import random
import time

import numpy as np
from sequential_digits import choose_backend

choose_backend()

import keras
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
        ("train-size", int, 10000, "expressions to learn from"),
        ("test-size", int, 1000, "expressions to be tested on"),
        ("layers", int, 4, "layers of the model"),
        ("hidden-dim", int, 32, "features of a token"),
        ("batch-size", int, 32, "expressions in a training step"),
        ("steps", int, 50, "training steps in a round"),
        ("rounds", int, 60, "at most"),
        ("minutes", float, 2.0, "of training at most, for each model"),
        ("learning-rate", float, 4e-3, "the highest, of Muon"),
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
    """Token ids (count, max_length), and values (count,), short ones first."""
    # NumPy's takes ten times as long for single numbers.
    generator = random.Random(seed)
    made = []
    while len(made) < count:
        tokens, value = expression(generator, options)
        if options.min_length <= len(tokens) <= options.max_length:
            made.append((tokens, value))
    made.sort(key=lambda pair: len(pair[0]))
    token_ids = np.zeros((count, options.max_length), "int32")
    for row, (tokens, _) in enumerate(made):
        token_ids[row, : len(tokens)] = [IDS[token] for token in tokens]
    return token_ids, np.array([value for _, value in made], "int32")


def inputs(token_ids):
    """What models take, without the padding that no row needs."""
    mask = token_ids != IDS["<pad>"]
    longest = mask.sum(axis=1).max()
    # Few lengths: JAX compiles for each.
    length = min(token_ids.shape[1], -(-longest // 50) * 50)
    return {
        "token_ids": token_ids[:, :length],
        "padding_mask": mask[:, :length].astype("int32"),
    }


def draw(token_ids, values, seed, options):
    """Some expressions, of about one length."""
    generator = np.random.default_rng(seed)
    near = min(len(values), 16 * options.batch_size)
    first = generator.integers(len(values) - near + 1)
    rows = first + generator.integers(near, size=options.batch_size)
    return inputs(token_ids[rows]), values[rows]


# Models.


def build_classifier(options):
    keras.utils.set_random_seed(options.seed)
    width = options.hidden_dim
    arguments = {
        # Most heads for what stands near, where places matter; one for hundreds
        # of tokens.
        "rotrnn": {
            "state_size": 2 * width,
            "num_heads": max(1, width // 4),
            "gamma_max": 0.9995,
            "theta_max": 1.0,
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
        unit_arguments=arguments[options.unit],
        dropout=options.dropout,
    )
    return compiled(
        nlp.LinRecTextClassifier(backbone, num_classes=10, pooling="ends")
    )


def build_lstm(count, options):
    """The widest one of two directions and no more than `count` parameters."""
    layers, vocabulary = options.lstm_layers, len(TOKENS)

    def parameters(width):
        first = 8 * width * (vocabulary + width + 1)
        others = (layers - 1) * 8 * width * (3 * width + 1)
        return first + others + (2 * width + 1) * 10

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
        # The last gives what each direction has at its end.
        lstm = keras.layers.LSTM(
            width, return_sequences=layer < layers - 1, use_cudnn=use_cudnn
        )
        hidden = keras.layers.Bidirectional(lstm)(hidden, mask=mask)
    logits = keras.layers.Dense(10, name="logits")(hidden)
    return compiled(keras.Model(tokens, logits))


def compiled(model):
    # RotRNN learns from fewer expressions with it than with AdamW, the LSTM
    # from as many.
    optimizer = keras.optimizers.Muon(
        weight_decay=0.01,
        adam_weight_decay=0.01,
        adam_lr_ratio=0.5,
        global_clipnorm=1.0,
        exclude_layers=["logits"],
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


# Training.


def train(model, training, held_out, options):
    """Minutes of training, and the accuracy on what was held out."""
    minutes = accuracy = 0.0
    for round in range(options.rounds):
        begin = time.perf_counter()
        learned = []
        share = max(round / options.rounds, minutes / options.minutes)
        # It falls from the start: a sum over hundreds of tokens wants weights
        # that hold still.
        highest = options.learning_rate * (1.0 - share)
        for step in range(options.steps):
            done = round * options.steps + step + 1
            model.optimizer.learning_rate = highest * min(1.0, done / 100)
            batch = draw(*training, [options.seed, round, step], options)
            logs = model.train_on_batch(*batch, return_dict=True)
            learned.append(float(logs["accuracy"]))
        # The time of the test is nobody's.
        minutes += (time.perf_counter() - begin) / 60
        accuracy = accuracy_of(model, *held_out)
        print(
            f"round {round + 1:3}: {np.mean(learned):.1%} of what it learns "
            f"from, {accuracy:.1%} of what it has not seen, "
            f"{minutes:.1f} minutes",
            flush=True,
        )
        if minutes >= options.minutes:
            break
    return minutes, accuracy


def accuracy_of(model, token_ids, values):
    right = 0
    for first in range(0, len(values), 100):
        rows = slice(first, first + 100)
        logits = model.predict_on_batch(inputs(token_ids[rows]))
        right += (logits.argmax(axis=-1) == values[rows]).sum()
    return right / len(values)


if __name__ == "__main__":
    main()
