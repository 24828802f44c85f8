"""A classifier and its loss as pure functions of tensors."""

import inspect

import keras
import numpy as np
from keras import ops

from keras_linrec.double_precision import mean
from keras_linrec.validation import require_count

# Smaller probabilities are treated as this one, so that logarithms are finite.
_SMALLEST_PROBABILITY = 1e-7


class Classifier:
    """A model with one input and one output, and its loss.

    Args:
        model: a built Keras model with outputs (batch, classes), or (batch, 1)
            for two classes.
        loss: a Keras loss, its name, or a function of labels and outputs.
            Defaults to `None`: the one the model is compiled with.

    Raises:
        ValueError: if the model is not built or no loss is known.
    """

    def __init__(self, model, loss=None):
        if not model.built:
            raise ValueError(
                "`model` should be built: call it once, or give it an input "
                f"shape. Received: model={model.name}"
            )
        self.model = model
        self.loss = _loss(model, loss)
        self.from_logits = _from_logits(self.loss)

    def weights(self):
        """The trainable and the non-trainable tensors.

        They are valid until the next prediction, in which a program compiled
        by JAX may reuse the variables' buffers.
        """
        return tuple(
            [ops.convert_to_tensor(variable) for variable in variables]
            for variables in (
                self.model.trainable_variables,
                self.model.non_trainable_variables,
            )
        )

    def outputs(self, weights, inputs):
        """The outputs in inference mode, in float32 or wider."""
        outputs, _ = self.model.stateless_call(*weights, inputs, training=False)
        if len(outputs.shape) != 2:
            raise ValueError(
                "`model` should be a classifier, with outputs (batch, "
                f"classes). Received: outputs.shape={tuple(outputs.shape)}"
            )
        if keras.backend.standardize_dtype(outputs.dtype) == "float64":
            return outputs
        return ops.cast(outputs, "float32")

    def mean_loss(self, labels, outputs):
        """The loss averaged over examples, whatever its own reduction."""
        compute = self.loss
        if isinstance(compute, keras.losses.Loss):
            compute = compute.call
        if len(labels.shape) == 1 and outputs.shape[-1] == 1:
            labels = labels[:, None]
        return mean(compute(labels, outputs))

    def scores(self, outputs):
        """Scores (batch, classes) whose differences are log odds.

        If the loss has no `from_logits`, the scores are the outputs.
        """
        two_classes = outputs.shape[-1] == 1
        if self.from_logits is False:
            log = _log(outputs)
            outputs = log - _log(1.0 - outputs) if two_classes else log
        if two_classes:
            return ops.concatenate([ops.zeros_like(outputs), outputs], axis=-1)
        return outputs

    def predicted_scores(self, inputs, batch_size):
        """`scores` for arrays: the model predicts in batches."""
        outputs = self.model.predict(inputs, batch_size=batch_size, verbose=0)
        outputs = ops.convert_to_tensor(np.asarray(outputs, "float32"))
        return ops.convert_to_numpy(self.scores(outputs))

    def predict(self, inputs, batch_size):
        """The predicted class number of each example."""
        return self.predicted_scores(inputs, batch_size).argmax(axis=-1)


def classification_task(model, inputs, labels, loss, batch_size):
    """Check and convert the arguments that analyses of classifiers share.

    Returns:
        `(classifier, inputs, labels)`: a `Classifier` and float32 arrays.

    Raises:
        ValueError: as `Classifier`, or if inputs and labels differ in length
            or are empty, or if `batch_size` is not a positive integer.
    """
    require_count("batch_size", batch_size)
    classifier = Classifier(model, loss)
    inputs, labels = np.asarray(inputs, "float32"), np.asarray(labels)
    if not len(inputs) or len(inputs) != len(labels):
        raise ValueError(
            "`inputs` and `labels` should have the same length, of 1 or more. "
            f"Received: len(inputs)={len(inputs)}, len(labels)={len(labels)}"
        )
    return classifier, inputs, labels.astype("float32")


def class_numbers(labels):
    """Class numbers (examples,) from class numbers or one-hot rows."""
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] > 1:
        return labels.argmax(axis=-1)
    return labels.reshape(len(labels)).astype(int)


def batches(size, batch_size):
    """Slices of at most `batch_size` examples."""
    return [
        slice(start, min(start + batch_size, size))
        for start in range(0, size, batch_size)
    ]


def _loss(model, loss):
    if loss is None:
        loss = model.loss
    # By the names of outputs, and not the configuration of a loss.
    if isinstance(loss, dict) and "class_name" not in loss:
        loss = [*loss.values()]
    if isinstance(loss, (list, tuple)) and len(loss) == 1:
        (loss,) = loss
    if loss is None or isinstance(loss, (list, tuple)):
        raise ValueError(
            "`loss` should be given unless the model is compiled with a single "
            f"loss. Received: loss={loss}"
        )
    return keras.losses.get(loss)


def _from_logits(loss):
    """Whether a loss expects logits; `None` if it has no `from_logits`."""
    if isinstance(loss, keras.losses.Loss):
        return loss.get_config().get("from_logits")
    parameters = inspect.signature(loss).parameters
    if "from_logits" not in parameters:
        return None
    return parameters["from_logits"].default


def _log(probabilities):
    smallest = _SMALLEST_PROBABILITY
    return ops.log(ops.where(probabilities > smallest, probabilities, smallest))
