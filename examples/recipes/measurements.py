"""What is measured of a trained model beside its test.

Each function of `MEASUREMENTS` takes a model and its task, and returns figures
by name.
"""

import keras
import numpy as np
from recipes.tasks import FixedTask

from keras_linrec.models import SequenceClassifier

# Taps of the filter before steps are left out.
TAPS = 65


def sampling_rates(model, task):
    """The accuracy at half and a quarter of the rate.

    The recordings are low-pass filtered and thinned out. The same weights
    classify them, once with `step_rescale` and once without.
    """
    (classifier,) = (
        layer for layer in model.layers if isinstance(layer, SequenceClassifier)
    )
    figures = {}
    for name, factor in (("half", 2), ("quarter", 4)):
        thinned = slower(task, factor)
        for kind, rescale in ((" rate", factor), (" rate, unscaled", 1)):
            classifier.step_rescale = float(rescale)
            figures[name + kind] = accuracy(model, thinned)
    classifier.step_rescale = 1.0
    return figures


def slower(task, factor):
    """The task with a `factor`-th of the steps a second."""
    places = np.arange(TAPS) - TAPS // 2
    low_pass = np.sinc(places / factor) * np.hamming(TAPS)
    low_pass /= low_pass.sum()
    sequences, labels = task.test
    thinned = [
        np.convolve(sequence[:, 0], low_pass, "same")[::factor, None]
        for sequence in sequences
    ]
    return FixedTask(task.train, (thinned, labels), task.multiple)


def accuracy(model, task):
    """The share of the test that is right, called eagerly.

    A compiled model would keep the earlier `step_rescale`.
    """
    right = count = 0
    for inputs, labels in task.tests():
        scores = keras.ops.convert_to_numpy(model(inputs))
        right += np.sum(scores.argmax(axis=-1) == labels)
        count += len(labels)
    return float(right / count)


MEASUREMENTS = {"sampling_rates": sampling_rates}
