"""Compare three continuous-time units under attacks and noise.

`LipschitzRNN`, the neural-ODE RNN and `AntisymmetricRNN` learn to classify
digits from eight pixels per step, by stochastic gradient descent with momentum.
They are then evaluated as in section 7 of Erichson et al. 2021:

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/robustness.py

With scikit-learn's 8x8 digits, this takes some minutes on two cores. It prints
the paper's table 3: the accuracy on clean test images and under white-box
attacks, and properties of the Hessian of the training loss. A second table
corresponds to figure 2, the accuracy under increasing noise; `--output DIR`
plots it. For MNIST (see sequential_digits.py for the file):

    python examples/robustness.py --data ~/.keras/datasets/mnist.npz

Pixels are standardised, so the sizes of attacks and noise are in standard
deviations, and attacks may leave the range of valid pixels. The condition
number is the largest eigenvalue divided by the smallest. Away from a minimum
the smallest is negative, and the magnitude of the ratio compares upward with
downward curvature.
"""

import argparse
import math
import sys
import time

import numpy as np
from common import add_numbers
from common import add_plot
from common import cosine_schedule
from common import prepare_backend
from common import save_plot
from digits import TEST_BATCH_SIZE
from digits import add_data
from digits import first
from digits import read_task
from pictures import legend_below
from pictures import new_figure

prepare_backend()

import keras

from keras_linrec.analysis import Hessian
from keras_linrec.analysis import deepfool
from keras_linrec.analysis import pgd
from keras_linrec.analysis import salt_and_pepper_response
from keras_linrec.analysis import white_noise_response
from keras_linrec.layers import AntisymmetricRNN
from keras_linrec.layers import LipschitzRNN

LAYERS = ("LipschitzRNN", "neural-ODE RNN", "AntisymmetricRNN")
WHITE_NOISE = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SALT_AND_PEPPER = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
COLUMNS = (
    "accuracy",
    "PGD",
    "DeepFool l2",
    "DeepFool l_inf",
    "largest eigenvalue",
    "trace",
    "condition number",
)


def main(arguments=None):
    options = parse(arguments)
    train, test, classes = read_task(options.data, "eight-pixels")
    train = first(options.train_size, train, "--train-size", "training")
    mean, deviation = train[0].mean(), train[0].std()
    train, test = (
        ((sequences - mean) / deviation, labels)
        for sequences, labels in (train, test)
    )
    print(
        f"{len(train[0])} training images, {len(test[0])} test images, "
        f"backend {keras.backend.backend()}."
    )
    rows, curves = {}, {}
    for name in LAYERS:
        keras.utils.set_random_seed(options.seed)
        model = build_model(name, options, train[0], classes)
        begin = time.perf_counter()
        loss = fit(model, options, train)
        trained = time.perf_counter()
        print(
            f"{name}: training loss {loss:.4f} after {trained - begin:.0f} s",
            flush=True,
        )
        rows[name] = measure(model, options, train, test)
        curves[name] = respond(model, options, test)
        seconds = time.perf_counter() - trained
        print(f"{name}: measured in {seconds:.0f} s", flush=True)
    print_table(rows)
    print_curves(curves)
    if options.output:
        plot(curves, options)
    return rows


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data(parser)
    add_plot(parser, "the accuracy under noise")
    add_numbers(
        parser,
        ("units", int, 128, "units of the layer"),
        ("beta", float, 0.65, "beta of LipschitzRNN"),
        ("gamma", float, 1e-3, "gamma of LipschitzRNN and AntisymmetricRNN"),
        ("step-size", float, 0.1, "step size of the solver"),
        ("epochs", int, None, "training epochs (60; --data: 10)"),
        ("batch-size", int, None, "images per training step (32; --data: 64)"),
        ("learning-rate", float, 0.1, "peak learning rate of SGD"),
        ("momentum", float, 0.9, "momentum of SGD"),
        ("pgd-step", float, 0.01, "change of a pixel in each of 7 PGD steps"),
        ("l2-radius", float, 1.0, "DeepFool's radius in the l2 norm"),
        ("linf-radius", float, 0.1, "DeepFool's radius in the maximum norm"),
        ("train-size", int, None, "number of training images (all)"),
        ("test-size", int, 1000, "maximum test images for attacks and noise"),
        ("hessian-size", int, 1000, "maximum training images for the Hessian"),
        ("products", int, 50, "Hessian products for the eigenvalues"),
        ("samples", int, 30, "Hessian products for the trace"),
        ("seed", int, 0, "seed of weights and noise"),
    )
    options = parser.parse_args(arguments)
    if options.epochs is None:
        options.epochs = 10 if options.data else 60
    if options.batch_size is None:
        options.batch_size = 64 if options.data else 32
    return options


def build_layer(name, options):
    step = {"step_size": options.step_size}
    if name == "AntisymmetricRNN":
        return AntisymmetricRNN(options.units, gamma=options.gamma, **step)
    beta, gamma, alpha = options.beta, options.gamma, 1.0
    if name == "neural-ODE RNN":
        # No linear part, and an unconstrained matrix.
        beta, gamma, alpha = 0.5, 0.0, 0.0
    return LipschitzRNN(
        options.units, beta=beta, gamma=gamma, alpha=alpha, **step
    )


def build_model(name, options, sequences, classes):
    return keras.Sequential(
        [
            keras.Input(sequences.shape[1:]),
            build_layer(name, options),
            # Logits: attacks find no gradient in probabilities close to 1.
            keras.layers.Dense(classes),
        ]
    )


def fit(model, options, train):
    """Train; return the loss of the last epoch."""
    steps = options.epochs * math.ceil(len(train[0]) / options.batch_size)
    model.compile(
        keras.optimizers.SGD(
            cosine_schedule(options.learning_rate, steps),
            momentum=options.momentum,
            global_clipnorm=1.0,
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        *train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        verbose=0,
    )
    loss = history.history["loss"][-1]
    if not math.isfinite(loss):
        sys.exit(
            f"The training of {model.layers[-2].name} diverged: choose a "
            f"--learning-rate below {options.learning_rate}."
        )
    return loss


def measure(model, options, train, test):
    """The values of `COLUMNS`."""
    _, accuracy = model.evaluate(*test, batch_size=TEST_BATCH_SIZE, verbose=0)
    attacked = [part[: options.test_size] for part in test]
    attacks = (
        pgd(model, *attacked, step_size=options.pgd_step),
        deepfool(model, *attacked, radius=options.l2_radius),
        deepfool(
            model,
            *attacked,
            norm=np.inf,
            radius=options.linf_radius,
        ),
    )
    hessian = Hessian(model, *(part[: options.hessian_size] for part in train))
    summary = hessian.summary(
        options.products, samples=options.samples, seed=options.seed
    )
    return (
        accuracy,
        *(attack.accuracy for attack in attacks),
        summary.eigenvalues.largest,
        summary.trace.value,
        summary.eigenvalues.condition_number,
    )


def respond(model, options, test):
    """The response curves under white noise and salt-and-pepper noise."""
    noisy = [part[: options.test_size] for part in test]
    return (
        white_noise_response(model, *noisy, WHITE_NOISE, options.seed),
        salt_and_pepper_response(
            model, *noisy, SALT_AND_PEPPER, seed=options.seed
        ),
    )


def print_table(rows):
    print(f"\n| layer | {' | '.join(COLUMNS)} |")
    print("|---" * (1 + len(COLUMNS)) + "|")
    for name, numbers in rows.items():
        shown = [f"{share:.1%}" for share in numbers[:4]]
        shown += [f"{number:.3g}" for number in numbers[4:]]
        print(f"| {name} | {' | '.join(shown)} |")


def print_curves(curves):
    print(f"\n| noise | {' | '.join(curves)} |")
    print("|---" * (1 + len(curves)) + "|")
    for number, kind in enumerate(("white", "salt and pepper")):
        of_kind = [pair[number] for pair in curves.values()]
        for row, level in enumerate(of_kind[0].levels):
            shown = [f"{curve.accuracies[row]:.1%}" for curve in of_kind]
            print(f"| {kind}, {level:g} | {' | '.join(shown)} |")


def plot(curves, options):
    figure, panels = new_figure(2, height=2.6, sharey=True)
    labels = ("standard deviation of white noise", "share of salt and pepper")
    for number, axes in enumerate(panels):
        for name, pair in curves.items():
            curve = pair[number]
            axes.plot(curve.levels, curve.accuracies, ".-", label=name)
        axes.set_xlabel(labels[number])
        axes.set_ylabel("accuracy")
    legend_below(figure, panels[0])
    save_plot(figure, options, "robustness.png")


if __name__ == "__main__":
    main()
