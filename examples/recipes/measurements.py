"""What is measured of a trained model beside its test.

Each function of `MEASUREMENTS` and `WATCHED` takes a model and its task, and
returns figures by name.
"""

from functools import partial

import keras
import numpy as np
import robustness
import state_norms
from recipes.group_words import LENGTHS
from recipes.sounds import interpolated
from recipes.sounds import low_passed
from recipes.sounds import oversampled
from recipes.tasks import FixedTask

from keras_linrec.models import SequenceClassifier


def sampling_rates(model, task):
    """The accuracy at half and a quarter of the rate.

    The recordings are low-pass filtered and downsampled. The same weights
    classify them with timescales and averages for that rate, without, and
    after as many steps as before have been interpolated.
    """
    classifier = classifier_of(model)
    figures = {}
    for name, factor in (("half", 2), ("quarter", 4)):
        thinned = slower(task, factor)
        scaled = classifier.with_step_rescale(factor)
        figures[f"{name} rate"] = accuracy(scaled, thinned)
        figures[f"{name} rate, unscaled"] = accuracy(classifier, thinned)
        resampled = with_test(thinned, partial(interpolated, factor=factor))
        figures[f"{name} rate, resampled"] = accuracy(classifier, resampled)
    return figures


def slower(task, factor):
    """The task with a `factor`-th of the samples a second."""
    oversampling = task.oversampling

    def change(sequence):
        samples = low_passed(sequence[::oversampling], factor)[::factor]
        return oversampled(samples, oversampling)

    return with_test(task, change)


def with_test(task, change):
    """The task with a changed test."""
    sequences, labels = task.test
    changed = [change(sequence) for sequence in sequences]
    return FixedTask(
        task.train,
        (changed, labels),
        task.multiple,
        oversampling=task.oversampling,
    )


def accuracy(classifier, task):
    """The share of the test that is right."""
    right = count = 0
    for inputs, labels in task.tests():
        scores = classifier(inputs["sequences"], mask=inputs["mask"])
        scores = keras.ops.convert_to_numpy(scores)
        right += np.sum(scores.argmax(axis=-1) == labels)
        count += len(labels)
    return float(right / count)


def under_attack(model, task):
    """The robustness of section 7 of Erichson et al. 2021."""
    options = robustness.parse([])
    # Attacks give sequences, where the recipe's model takes them by name.
    model = keras.Model(model.inputs[0], model.outputs[0])
    model.compile(loss=task.loss, metrics=list(task.metrics))
    values = robustness.measure(model, options, task.train, task.test)
    # The first is the accuracy without an attack, which is the figure.
    return dict(zip(robustness.COLUMNS[1:], map(float, values[1:])))


def longer_words(model, task):
    """The share of the products that are right at the last letters of words.

    A word is as long as in training, or shorter or longer.
    """
    figures = {}
    for steps in LENGTHS:
        right = count = 0
        for inputs, products in task.of_length(steps).tests():
            scores = model.predict_on_batch(inputs)[:, -1]
            right += np.sum(scores.argmax(axis=-1) == products[:, -1])
            count += len(products)
        figures[f"{steps} letters"] = float(right / count)
    return figures


def norms(model, task):
    """The mean norm of the state of each layer of a deep model.

    It is measured on the first sequences of the test.
    """
    classifier = classifier_of(model)
    inputs, _ = next(iter(task.tests()))
    inputs = {n: v[: state_norms.MEASURED_ON] for n, v in inputs.items()}
    # What the layers before the classifier give it.
    features = keras.tree.flatten(classifier.input)[0]
    before = keras.Model(model.inputs, features)
    found = state_norms.state_norms(
        classifier, before(inputs), inputs.get("mask")
    )
    return {
        f"layer {number}": float(norm) for number, norm in enumerate(found, 1)
    }


def classifier_of(model):
    (found,) = (
        layer for layer in model.layers if isinstance(layer, SequenceClassifier)
    )
    return found


# By name, what is measured of a trained model, and of one in training.
MEASUREMENTS = {
    "longer_words": longer_words,
    "sampling_rates": sampling_rates,
    "under_attack": under_attack,
}
WATCHED = {"norms": norms}
