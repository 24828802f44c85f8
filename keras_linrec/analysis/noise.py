"""The accuracy of classifiers under noise."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_linrec import types
from keras_linrec.analysis._classifier import class_numbers
from keras_linrec.analysis._classifier import classification_task
from keras_linrec.validation import checked_seed
from keras_linrec.validation import plain
from keras_linrec.validation import require_finite


@dataclass(frozen=True)
class ResponseCurve:
    """Accuracy as a function of the noise level.

    Attributes:
        levels: array (count,).
        accuracies: array (count,).
    """

    levels: np.ndarray
    accuracies: np.ndarray


def white_noise_response(
    model: Any,
    inputs: types.Tensor,
    labels: types.Tensor,
    levels: types.Numbers,
    seed: types.Seed = None,
    loss: types.Loss = None,
    batch_size: int = 128,
) -> ResponseCurve:
    """Accuracy under white noise of given standard deviations (figure 2a).

    Args:
        model: a built Keras classifier with one float input and outputs
            (batch, classes), or (batch, 1) for two classes.
        inputs: array (examples, ...).
        labels: array (examples, ...): class numbers or one-hot rows.
        levels: floats, the standard deviations.
        seed: integer. The same noise, scaled, is added at every level.
            Defaults to `None`: random.
        loss: a Keras loss, its name, or a function of labels and outputs. Only
            its `from_logits` counts, and only for outputs (batch, 1).
            Defaults to `None`: the one the model is compiled with.
        batch_size: integer. Defaults to 128.

    Returns:
        `ResponseCurve`.

    Raises:
        ValueError: if the model is not built, inputs and labels differ in
            length or are empty, the loss is unknown, or a level is negative.

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), section 7, figure 2.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_linrec.analysis import white_noise_response
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    >>> model.set_weights([np.eye(2), np.zeros(2)])
    >>> model.compile(loss="sparse_categorical_crossentropy")
    >>> curve = white_noise_response(model, np.eye(2), [0, 1], [0, 1e-3])
    >>> [float(accuracy) for accuracy in curve.accuracies]
    [1.0, 1.0]
    """

    def perturb(inputs, level, generator):
        noise = generator.standard_normal(inputs.shape, "float32")
        return inputs + np.float32(level) * noise

    _require_levels(levels, np.inf)
    return _response(
        model, inputs, labels, levels, perturb, seed, loss, batch_size
    )


def salt_and_pepper_response(
    model: Any,
    inputs: types.Tensor,
    labels: types.Tensor,
    levels: types.Numbers,
    low: float | None = None,
    high: float | None = None,
    seed: types.Seed = None,
    loss: types.Loss = None,
    batch_size: int = 128,
) -> ResponseCurve:
    """Accuracy under salt-and-pepper noise of given density (figure 2b).

    Args:
        model: a built Keras classifier with one float input and outputs
            (batch, classes), or (batch, 1) for two classes.
        inputs: array (examples, ...).
        labels: array (examples, ...): class numbers or one-hot rows.
        levels: floats in [0, 1], the probability that an entry is replaced;
            `low` and `high` are equally likely.
        low, high: floats. Default to `None`: the smallest and the largest
            number in `inputs`.
        seed: integer. Entries replaced at one level are also replaced at every
            higher level. Defaults to `None`: random.
        loss: a Keras loss, its name, or a function of labels and outputs. Only
            its `from_logits` counts, and only for models with one output.
            Defaults to `None`: the one the model is compiled with.
        batch_size: integer. Defaults to 128.

    Returns:
        `ResponseCurve`.

    Raises:
        ValueError: if the model is not built, inputs and labels differ in
            length, the loss is unknown, or a level is not in [0, 1].

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), section 7, figure 2.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_linrec.analysis import salt_and_pepper_response
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    >>> model.set_weights([np.eye(2), np.zeros(2)])
    >>> model.compile(loss="sparse_categorical_crossentropy")
    >>> curve = salt_and_pepper_response(model, np.eye(2), [0, 1], [0.0])
    >>> [float(accuracy) for accuracy in curve.accuracies]
    [1.0]
    """
    for name, value in (("low", low), ("high", high)):
        if value is not None:
            require_finite(name, plain(value))

    def perturb(inputs, level, generator):
        least = np.min(inputs) if low is None else low
        most = np.max(inputs) if high is None else high
        replaced = generator.random(inputs.shape, "float32") < level
        salt = generator.random(inputs.shape, "float32") < 0.5
        grains = np.where(salt, np.float32(most), np.float32(least))
        return np.where(replaced, grains, inputs)

    _require_levels(levels, 1)
    return _response(
        model, inputs, labels, levels, perturb, seed, loss, batch_size
    )


def _response(model, inputs, labels, levels, perturb, seed, loss, batch_size):
    classifier, inputs, labels = classification_task(
        model, inputs, labels, loss, batch_size
    )
    labels = class_numbers(labels)
    seed = checked_seed(seed)
    if seed is None:
        seed = np.random.SeedSequence().entropy
    accuracies = []
    for level in levels:
        noisy = perturb(inputs, level, np.random.default_rng(seed))
        predictions = classifier.predict(noisy, batch_size)
        accuracies.append(np.mean(predictions == labels))
    return ResponseCurve(np.asarray(levels), np.array(accuracies))


def _require_levels(levels, highest):
    levels = np.asarray(levels)
    if levels.ndim != 1 or not ((levels >= 0) & (levels <= highest)).all():
        raise ValueError(
            f"`levels` should be numbers in [0, {highest}]. "
            f"Received: levels={levels}"
        )
