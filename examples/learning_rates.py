"""Which learning rates each unit takes, beside an LSTM's.

Models that tell three tones in noise apart are trained with Adam at several
learning rates. A unit with a nonlinear state is a model's only recurrent layer,
as an LSTM would be; of the others there are two, each followed by
`Dense(gelu)`. The table (and the plot with --output) shows the share of new
tones recognised after the last epoch, the mean over the seeds:

    python examples/learning_rates.py --output docs/images

`--plot-only` draws the plot again from the JSON file beside it.
"""

import argparse
import json

import numpy as np
from common import BACKENDS
from common import add_numbers
from common import add_output
from common import lstm
from common import make_folder
from common import prepare_backend
from common import real_number

prepare_backend()

import keras

from keras_linrec.models.units import UNITS

RADIANS_PER_STEP = np.array([0.05, 0.1, 0.15])
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
# Units with a nonlinear state return the last output, as LSTM does.
NONLINEAR = ("orthogonal_rnn", "lipschitz_rnn", "antisymmetric_rnn")
FILE = "learning_rates.json"


def main(arguments=None):
    options = parse(arguments)
    make_folder(options.output)
    path = options.output / FILE
    if options.plot_only:
        draw(json.loads(path.read_text()), path.with_suffix(".png"))
        return
    shares = {name: [] for name in options.units}
    rates = options.rates
    print(f"| | {' | '.join(f'{rate:g}' for rate in rates)} |")
    print("|---" * (len(rates) + 1) + "|")
    for name in options.units:
        for rate in rates:
            runs = [
                trained(name, rate, s, options) for s in range(options.seeds)
            ]
            shares[name].append(float(np.mean(runs)))
        cells = " | ".join(f"{share:.1%}" for share in shares[name])
        print(f"| {name} | {cells} |", flush=True)
    result = {
        "backend": keras.backend.backend(),
        "steps": options.steps,
        "epochs": options.epochs,
        "seeds": options.seeds,
        "rates": rates,
        "shares": shares,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
    draw(result, path.with_suffix(".png"))


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=BACKENDS
    )
    parser.add_argument(
        "--units",
        nargs="+",
        choices=("lstm", *UNITS),
        default=("lstm", *UNITS),
        metavar="UNIT",
        help="the recurrent layers to compare (default: all)",
    )
    parser.add_argument(
        "--rates",
        nargs="+",
        type=real_number(may_be_zero=False),
        default=list(RATES),
        metavar="RATE",
        help=f"of Adam (default: {' '.join(f'{rate:g}' for rate in RATES)})",
    )
    add_numbers(
        parser,
        ("epochs", int, 9, "over the tones"),
        ("steps", int, 200, "of a tone"),
        ("tones", int, 1000, "to train on; half as many are new"),
        ("seeds", int, 2, "of weights and tones"),
    )
    parser.add_argument(
        "--plot-only", action="store_true", help=f"draw from {FILE} again"
    )
    add_output(parser, f"{FILE} and its plot")
    return parser.parse_args(arguments)


def tones(count, steps, generator):
    """Tones of random phase in noise, (count, steps, 1), and which they are."""
    labels = generator.integers(len(RADIANS_PER_STEP), size=count)
    phases = generator.uniform(0, 2 * np.pi, size=(count, 1))
    angles = RADIANS_PER_STEP[labels, None] * np.arange(steps) + phases
    noise = generator.normal(0, 0.5, size=angles.shape)
    return (np.sin(angles) + noise).astype("float32")[:, :, None], labels


def trained(name, rate, seed, options):
    """The share of new tones that a trained model recognises."""
    generator = np.random.default_rng(seed)
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [*layers_of(name), keras.layers.Dense(3, activation="softmax")]
    )
    model.compile(
        keras.optimizers.Adam(rate),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(
        *tones(options.tones, options.steps, generator),
        epochs=options.epochs,
        verbose=0,
    )
    new = tones(options.tones // 2, options.steps, generator)
    return model.evaluate(*new, verbose=0)[1]


def layers_of(name):
    if name == "lstm":
        return [lstm(64)]
    if name in NONLINEAR:
        return [UNITS[name](64)]
    return [
        UNITS[name](32),
        keras.layers.Dense(32, activation="gelu"),
        UNITS[name](32),
        keras.layers.Dense(32, activation="gelu"),
        keras.layers.GlobalAveragePooling1D(),
    ]


def draw(result, path):
    """Draw the shares as the colours of a table."""
    from pictures import class_name
    from pictures import new_figure
    from pictures import save

    rates, shares = result["rates"], result["shares"]
    figure, (axes,) = new_figure(height=0.9 + 0.28 * len(shares))
    colors = axes.imshow(
        list(shares.values()), vmin=0, vmax=1, cmap="viridis", aspect="auto"
    )
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axes.set_yticks(range(len(shares)), map(class_name, shares))
    axes.grid(False)
    axes.set_xlabel("learning rate of Adam")
    bar = figure.colorbar(colors)
    bar.set_label(f"recognised after {result['epochs']} epochs")
    save(figure, path)


if __name__ == "__main__":
    main()
