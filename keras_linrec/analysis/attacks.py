"""How a classifier answers to attacks that know it."""

from dataclasses import dataclass

import numpy as np
from keras import ops

from keras_linrec.analysis._classifier import Classifier
from keras_linrec.analysis._classifier import arrays
from keras_linrec.analysis._classifier import batches
from keras_linrec.analysis._classifier import class_numbers
from keras_linrec.ops import differentiation
from keras_linrec.validation import require_count


@dataclass(frozen=True)
class AdversarialExamples:
    """What an attack made of a set of examples, and what came of it.

    Attributes:
        inputs: array like the clean inputs.
        predictions, clean_predictions: integer arrays (examples,), the number
            of the predicted class after and before the attack.
        labels: integer array (examples,).
        l2_norms, linf_norms: arrays (examples,), of the perturbations.
    """

    inputs: np.ndarray
    predictions: np.ndarray
    clean_predictions: np.ndarray
    labels: np.ndarray
    l2_norms: np.ndarray
    linf_norms: np.ndarray

    @property
    def accuracy(self):
        """The share of right answers under the attack."""
        return float(np.mean(self.predictions == self.labels))

    @property
    def clean_accuracy(self):
        """The share of right answers without it."""
        return float(np.mean(self.clean_predictions == self.labels))


def pgd(
    model,
    inputs,
    labels,
    radius=None,
    step_size=0.01,
    iterations=7,
    clip=None,
    loss=None,
    batch_size=128,
):
    """Projected gradient ascent on the loss, in the maximum norm.

        x <- project(x + step_size sign(grad_x loss(x, y)))

    Args:
        model: a built Keras classifier with one input of floats and outputs
            (batch, classes), or (batch, 1) for two classes.
        inputs: array (examples, ...).
        labels: array (examples, ...), as the loss takes them: class numbers
            or one-hot rows.
        radius: float, how far an entry may move. Defaults to `None`: as far
            as the steps take it.
        step_size: float. Defaults to 0.01, as in the paper.
        iterations: integer. Defaults to 7, as in the paper.
        clip: pair of floats, the range of valid inputs. Defaults to `None`.
        loss: a Keras loss, its name, or a function of labels and outputs.
            Defaults to `None`: the one the model is compiled with.
        batch_size: integer. Defaults to 128.

    Returns:
        `AdversarialExamples`.

    Raises:
        ValueError: for a model that is not built, inputs and labels of
            different lengths, no loss, or an argument out of its range.

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), section 7, table 3.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_linrec.analysis import pgd
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    >>> model.set_weights([np.eye(2), np.zeros(2)])
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> inputs = np.array([[1.0, 0.9], [1.0, 0.0]])
    >>> attacked = pgd(model, inputs, np.array([0, 0]), loss=loss)
    >>> attacked.clean_accuracy, attacked.accuracy
    (1.0, 0.5)
    """
    _require_attack(radius, step_size, iterations, clip, batch_size)
    classifier = Classifier(model, loss)
    inputs, labels = arrays(inputs, labels)

    def mean_loss(tensors, constants):
        weights, labels = constants
        outputs = classifier.outputs(weights, tensors[0])
        return classifier.mean_loss(labels, outputs)

    slope = differentiation.gradient(mean_loss)
    results = []
    for part in batches(len(inputs), batch_size):
        clean = moved = inputs[part]
        constants = classifier.weights(), ops.convert_to_tensor(labels[part])
        for _ in range(iterations):
            step = step_size * np.sign(_slope(slope, moved, constants))
            moved = _confine(moved + step, clean, radius, np.inf, clip)
        results.append(moved)
    return _examples(classifier, results, inputs, labels, batch_size)


def deepfool(
    model,
    inputs,
    labels,
    norm=2,
    radius=None,
    iterations=7,
    overshoot=0.02,
    max_classes=10,
    clip=None,
    loss=None,
    batch_size=128,
):
    """DeepFool: steps to the nearest boundary of the linearised classifier.

    Of the classes k other than the predicted one, 0, each step takes the one
    whose boundary is nearest, with w_k = grad (f_k - f_0):

        norm 2:        r = |f_k - f_0| / |w_k|_2^2 w_k
        maximum norm:  r = |f_k - f_0| / |w_k|_1 sign(w_k)

    An example whose class has changed is left alone. The labels are used for
    the accuracies only.

    Args:
        model: a built Keras classifier with one input of floats and outputs
            (batch, classes), or (batch, 1) for two classes.
        inputs: array (examples, ...).
        labels: array (examples, ...): class numbers or one-hot rows.
        norm: 2, the default, or `numpy.inf`.
        radius: float, the largest norm of a perturbation. Defaults to
            `None`: whatever it takes.
        iterations: integer, of steps at most. Defaults to 7, as in the paper.
        overshoot: float, by which share to go beyond the boundary. Defaults
            to 0.02.
        max_classes: integer, how many classes of the highest scores to look
            at, each of which costs a gradient a step. Defaults to 10.
        clip: pair of floats, the range of valid inputs. Defaults to `None`.
        loss: tells logits from probabilities by its `from_logits`; f is the
            logits, or the logarithms of the probabilities. Where the loss has
            no such argument, f is the outputs. Defaults to `None`: the one
            the model is compiled with.
        batch_size: integer. Defaults to 128.

    Returns:
        `AdversarialExamples`.

    Raises:
        ValueError: for a model that is not built, inputs and labels of
            different lengths, no loss, or an argument out of its range.

    Reference:
        [DeepFool](https://arxiv.org/abs/1511.04599), algorithm 2 and section
        3.3; [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), section 7, table 3.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_linrec.analysis import deepfool
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    >>> model.set_weights([np.eye(2), np.zeros(2)])
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> attacked = deepfool(model, [[3.0, 1.0]], [0], loss=loss)
    >>> attacked.accuracy, round(float(attacked.l2_norms[0]), 2)
    (0.0, 1.44)
    """
    _require_attack(radius, 1.0, iterations, clip, batch_size)
    require_count("max_classes", max_classes)
    if norm not in (2, np.inf):
        raise ValueError(
            f"`norm` should be 2 or numpy.inf. Received: norm={norm}"
        )
    classifier = Classifier(model, loss)
    inputs, labels = arrays(inputs, labels)

    def chosen_score(tensors, constants):
        weights, choice = constants
        outputs = classifier.outputs(weights, tensors[0])
        return ops.sum(classifier.scores(outputs) * choice)

    slope = differentiation.gradient(chosen_score)
    results = []
    for part in batches(len(inputs), batch_size):
        clean = moved = inputs[part]
        total = np.zeros_like(clean)
        scores = classifier.predicted_scores(clean, batch_size)
        ranking = np.argsort(-scores, axis=-1)[:, :max_classes]
        for _ in range(iterations):
            same = scores.argmax(axis=-1) == ranking[:, 0]
            if not same.any():
                break
            step = _step_to_boundary(
                slope, moved, classifier.weights(), scores, ranking, norm
            )
            total += _like(same, total) * step
            beyond = clean + (1 + overshoot) * total
            moved = _confine(beyond, clean, radius, norm, clip)
            # What was cut off would otherwise be waited for in later steps.
            total = (moved - clean) / (1 + overshoot)
            scores = classifier.predicted_scores(moved, batch_size)
        results.append(moved)
    return _examples(classifier, results, inputs, labels, batch_size)


def _step_to_boundary(slope, moved, weights, scores, ranking, norm):
    """The shortest of the steps to the boundaries of the ranked classes."""
    best = np.zeros_like(moved)
    shortest = np.full(len(moved), np.inf)
    identity = np.eye(scores.shape[-1], dtype="float32")
    for rank in range(1, ranking.shape[1]):
        choice = identity[ranking[:, rank]] - identity[ranking[:, 0]]
        constants = weights, ops.convert_to_tensor(choice)
        direction = _slope(slope, moved, constants)
        # On the boundary itself a step would have no length.
        gap = np.abs(np.sum(scores * choice, axis=-1)) + 1e-4
        dual = _norms(direction, 2 if norm == 2 else 1)
        reachable = dual > 0
        distance = np.where(
            reachable, gap / np.where(reachable, dual, 1), np.inf
        )
        nearer = distance < shortest
        shortest = np.where(nearer, distance, shortest)
        if norm == 2:
            direction = direction / _like(np.where(reachable, dual, 1), moved)
        else:
            direction = np.sign(direction)
        length = _like(np.where(nearer, distance, 0), moved)
        best = np.where(_like(nearer, moved), length * direction, best)
    return best


def _slope(slope, inputs, constants):
    (tensor,) = slope([ops.convert_to_tensor(inputs)], constants)
    return ops.convert_to_numpy(tensor)


def _confine(moved, clean, radius, norm, clip):
    """The nearest inputs within the radius, then within the valid range."""
    if radius is not None and norm == np.inf:
        moved = np.clip(moved, clean - radius, clean + radius)
    elif radius is not None:
        norms = _norms(moved - clean, 2)
        scale = radius / np.where(norms > radius, norms, radius)
        moved = clean + _like(scale, clean) * (moved - clean)
    if clip is not None:
        moved = np.clip(moved, *clip)
    return moved.astype("float32")


def _examples(classifier, results, inputs, labels, batch_size):
    moved = np.concatenate(results)
    return AdversarialExamples(
        moved,
        classifier.predict(moved, batch_size),
        classifier.predict(inputs, batch_size),
        class_numbers(labels),
        _norms(moved - inputs, 2),
        _norms(moved - inputs, np.inf),
    )


def _norms(arrays, order):
    return np.linalg.norm(arrays.reshape(len(arrays), -1), order, axis=-1)


def _like(values, arrays):
    """One value an example, to multiply arrays of more axes with."""
    return np.reshape(values, (-1,) + (1,) * (arrays.ndim - 1)).astype(
        arrays.dtype
    )


def _require_attack(radius, step_size, iterations, clip, batch_size):
    require_count("iterations", iterations)
    require_count("batch_size", batch_size)
    for name, value in (("radius", radius), ("step_size", step_size)):
        if value is not None and not value > 0:
            raise ValueError(
                f"`{name}` should be positive. Received: {name}={value}"
            )
    if clip is not None and (np.shape(clip) != (2,) or clip[0] >= clip[1]):
        raise ValueError(
            f"`clip` should be a pair (low, high). Received: clip={clip}"
        )
