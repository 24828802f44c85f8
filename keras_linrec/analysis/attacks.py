"""White-box adversarial attacks on classifiers."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.analysis._classifier import batches
from keras_linrec.analysis._classifier import class_numbers
from keras_linrec.analysis._classifier import classification_task
from keras_linrec.ops import differentiation
from keras_linrec.validation import plain
from keras_linrec.validation import require_between
from keras_linrec.validation import require_count


@dataclass(frozen=True)
class AdversarialExamples:
    """The result of an attack on a set of examples.

    Attributes:
        inputs: array of the shape of the clean inputs, the adversarial ones.
        predictions, clean_predictions: integer arrays (examples,), the
            predicted class numbers after and before the attack.
        labels: integer array (examples,).
        l2_norms, linf_norms: arrays (examples,), the norms of the
            perturbations.
    """

    inputs: np.ndarray
    predictions: np.ndarray
    clean_predictions: np.ndarray
    labels: np.ndarray
    l2_norms: np.ndarray
    linf_norms: np.ndarray

    @property
    def accuracy(self):
        """The share of correct predictions under attack."""
        return float(np.mean(self.predictions == self.labels))

    @property
    def clean_accuracy(self):
        """The share of correct predictions on the clean inputs."""
        return float(np.mean(self.clean_predictions == self.labels))


def pgd(
    model: Any,
    inputs: types.Tensor,
    labels: types.Tensor,
    radius: float | None = None,
    step_size: float = 0.01,
    iterations: int = 7,
    clip: types.Numbers | None = None,
    loss: types.Loss = None,
    batch_size: int = 128,
) -> AdversarialExamples:
    """Projected gradient ascent on the loss (PGD), in the maximum norm.

        x <- project(x + step_size sign(grad_x loss(x, y)))

    Args:
        model: a built Keras classifier with one float input and outputs
            (batch, classes), or (batch, 1) for two classes.
        inputs: array (examples, ...).
        labels: array (examples, ...), in the form that the loss takes: class
            numbers or one-hot rows.
        radius: float, the largest change of an entry. Defaults to `None`:
            unlimited.
        step_size: positive float, by how much an iteration changes an entry.
            Defaults to 0.01, as in the paper.
        iterations: integer, the number of steps. Defaults to 7, as in the
            paper.
        clip: pair of floats, the range of valid inputs. Defaults to `None`.
        loss: a Keras loss, its name, or a function of labels and outputs.
            Defaults to `None`: the one the model is compiled with.
        batch_size: integer. Defaults to 128.

    Returns:
        `AdversarialExamples`.

    Raises:
        ValueError: if the model is not built or not a classifier, inputs and
            labels differ in length or are empty, the loss is unknown, or an
            argument is out of its range.

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
    _require_attack(radius, iterations, clip)
    require_between("step_size", plain(step_size), 0, math.inf, "()")
    classifier, inputs, labels = classification_task(
        model, inputs, labels, loss, batch_size
    )

    def mean_loss(tensors, constants):
        weights, labels = constants
        outputs = classifier.outputs(weights, tensors[0])
        return classifier.mean_loss(labels, outputs)

    gradient = differentiation.gradient(mean_loss)
    results = []
    for part in batches(len(inputs), batch_size):
        clean = perturbed = inputs[part]
        constants = classifier.weights(), ops.convert_to_tensor(labels[part])
        for _ in range(iterations):
            direction = np.sign(_gradient(gradient, perturbed, constants))
            perturbed = _project(
                perturbed + step_size * direction, clean, radius, np.inf, clip
            )
        results.append(perturbed)
    return _examples(classifier, results, inputs, labels, batch_size)


def deepfool(
    model: Any,
    inputs: types.Tensor,
    labels: types.Tensor,
    norm: float = 2,
    radius: float | None = None,
    iterations: int = 7,
    overshoot: float = 0.02,
    max_classes: int = 10,
    clip: types.Numbers | None = None,
    loss: types.Loss = None,
    batch_size: int = 128,
) -> AdversarialExamples:
    """DeepFool: steps to the nearest boundary of the linearised classifier.

    With the predicted class 0 and w_k = grad (f_k - f_0) for the classes k
    other than 0, each step moves across the nearest boundary, by

        norm 2:        r = |f_k - f_0| / |w_k|_2^2 w_k
        maximum norm:  r = |f_k - f_0| / |w_k|_1 sign(w_k)

    An example stops moving when its predicted class has changed. Labels are
    used for the accuracies only.

    Args:
        model: a built Keras classifier with one float input and outputs
            (batch, classes), or (batch, 1) for two classes.
        inputs: array (examples, ...).
        labels: array (examples, ...): class numbers or one-hot rows.
        norm: 2 or `numpy.inf`. Defaults to 2.
        radius: float, the largest norm of a perturbation. Defaults to
            `None`: unlimited.
        iterations: integer, the maximum number of steps. Defaults to 7, as in
            the paper.
        overshoot: float, the relative distance to go beyond the boundary.
            Defaults to 0.02.
        max_classes: integer, the number of classes to consider, in order of
            their scores; each costs one gradient per step. Defaults to 10.
        clip: pair of floats, the range of valid inputs. Defaults to `None`.
        loss: a Keras loss, its name, or a function of labels and outputs. Its
            `from_logits` tells whether f are the outputs or their logarithms;
            without that argument, f are the outputs. Defaults to `None`: the
            one the model is compiled with.
        batch_size: integer. Defaults to 128.

    Returns:
        `AdversarialExamples`.

    Raises:
        ValueError: if the model is not built, inputs and labels differ in
            length, the loss is unknown, or an argument is out of its range.

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
    _require_attack(radius, iterations, clip)
    require_between("overshoot", plain(overshoot), 0, math.inf, "[)")
    require_count("max_classes", max_classes)
    if max_classes < 2:
        raise ValueError(
            "`max_classes` should be 2 or more: the predicted class is one of "
            f"them. Received: max_classes={max_classes}"
        )
    if norm not in (2, np.inf):
        raise ValueError(
            f"`norm` should be 2 or numpy.inf. Received: norm={norm}"
        )
    classifier, inputs, labels = classification_task(
        model, inputs, labels, loss, batch_size
    )

    def chosen_score(tensors, constants):
        weights, choice = constants
        outputs = classifier.outputs(weights, tensors[0])
        return ops.sum(classifier.scores(outputs) * choice)

    gradient = differentiation.gradient(chosen_score)
    results = []
    for part in batches(len(inputs), batch_size):
        clean = perturbed = inputs[part]
        total = np.zeros_like(clean)
        scores = classifier.predicted_scores(clean, batch_size)
        ranking = np.argsort(-scores, axis=-1)[:, :max_classes]
        for _ in range(iterations):
            unchanged = scores.argmax(axis=-1) == ranking[:, 0]
            if not unchanged.any():
                break
            step = _step_to_boundary(
                gradient, perturbed, classifier.weights(), scores, ranking, norm
            )
            total += _like(unchanged, total) * step
            beyond = clean + (1 + overshoot) * total
            perturbed = _project(beyond, clean, radius, norm, clip)
            # Later steps must start from the projected point.
            total = (perturbed - clean) / (1 + overshoot)
            scores = classifier.predicted_scores(perturbed, batch_size)
        results.append(perturbed)
    return _examples(classifier, results, inputs, labels, batch_size)


def _step_to_boundary(gradient, perturbed, weights, scores, ranking, norm):
    """The shortest of the steps to the boundaries of the ranked classes."""
    best = np.zeros_like(perturbed)
    shortest = np.full(len(perturbed), np.inf)
    identity = np.eye(scores.shape[-1], dtype="float32")
    for rank in range(1, ranking.shape[1]):
        choice = identity[ranking[:, rank]] - identity[ranking[:, 0]]
        constants = weights, ops.convert_to_tensor(choice)
        direction = _gradient(gradient, perturbed, constants)
        # On the boundary itself, the step would have length zero.
        gap = np.abs(np.sum(scores * choice, axis=-1)) + 1e-4
        dual = _norms(direction, 2 if norm == 2 else 1)
        reachable = dual > 0
        distance = np.where(
            reachable, gap / np.where(reachable, dual, 1), np.inf
        )
        nearer = distance < shortest
        shortest = np.where(nearer, distance, shortest)
        if norm == 2:
            norms = np.where(reachable, dual, 1)
            direction = direction / _like(norms, perturbed)
        else:
            direction = np.sign(direction)
        length = _like(np.where(nearer, distance, 0), perturbed)
        best = np.where(_like(nearer, perturbed), length * direction, best)
    return best


def _gradient(gradient, inputs, constants):
    (tensor,) = gradient([ops.convert_to_tensor(inputs)], constants)
    return ops.convert_to_numpy(tensor)


def _project(perturbed, clean, radius, norm, clip):
    """Project into the ball around the clean inputs, then clip."""
    if radius is not None and norm == np.inf:
        perturbed = np.clip(perturbed, clean - radius, clean + radius)
    elif radius is not None:
        norms = _norms(perturbed - clean, 2)
        scale = radius / np.where(norms > radius, norms, radius)
        perturbed = clean + _like(scale, clean) * (perturbed - clean)
    if clip is not None:
        perturbed = np.clip(perturbed, *clip)
    return perturbed.astype("float32")


def _examples(classifier, results, inputs, labels, batch_size):
    perturbed = np.concatenate(results)
    return AdversarialExamples(
        perturbed,
        classifier.predict(perturbed, batch_size),
        classifier.predict(inputs, batch_size),
        class_numbers(labels),
        _norms(perturbed - inputs, 2),
        _norms(perturbed - inputs, np.inf),
    )


def _norms(arrays, order):
    return np.linalg.norm(arrays.reshape(len(arrays), -1), order, axis=-1)


def _like(values, arrays):
    """Reshape one value per example to broadcast with `arrays`."""
    return np.reshape(values, (-1,) + (1,) * (arrays.ndim - 1)).astype(
        arrays.dtype
    )


def _require_attack(radius, iterations, clip):
    require_count("iterations", iterations)
    if radius is not None:
        require_between("radius", plain(radius), 0, math.inf, "()")
    if clip is not None and (np.shape(clip) != (2,) or clip[0] >= clip[1]):
        raise ValueError(
            f"`clip` should be a pair (low, high). Received: clip={clip}"
        )
