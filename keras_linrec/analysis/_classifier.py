"""A classifier and its loss as pure functions of tensors."""

import inspect

import keras
import numpy as np
from keras import ops

# Probabilities below this are rounding.
_SMALLEST = 1e-7


class Classifier:
    """What the analysis asks of a model with one input and one output.

    Args:
        model: a built Keras model with outputs (batch, classes), or (batch, 1)
            for two classes.
        loss: a Keras loss, its name, or a function of labels and outputs.
            Defaults to `None`: the one the model is compiled with.
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
        """The trainable tensors, and the others, until the next prediction.

        That, on JAX, hands what the variables hold to a compiled program.
        """
        return tuple(
            [ops.convert_to_tensor(variable) for variable in variables]
            for variables in (
                self.model.trainable_variables,
                self.model.non_trainable_variables,
            )
        )

    def outputs(self, weights, inputs):
        """The outputs for inference, in float32 or wider."""
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
        """The loss, averaged over the examples whatever its reduction."""
        compute = self.loss
        if isinstance(compute, keras.losses.Loss):
            compute = compute.call
        if len(labels.shape) == 1 and outputs.shape[-1] == 1:
            labels = labels[:, None]
        return ops.mean(compute(labels, outputs))

    def scores(self, outputs):
        """A tensor (batch, classes), differences of which are log odds.

        Where the loss has no `from_logits`, the outputs as they are.
        """
        two_classes = outputs.shape[-1] == 1
        if self.from_logits is False:
            log = _log(outputs)
            outputs = log - _log(1.0 - outputs) if two_classes else log
        if two_classes:
            return ops.concatenate([ops.zeros_like(outputs), outputs], axis=-1)
        return outputs

    def predicted_scores(self, inputs, batch_size):
        """`scores` for an array of any length, as an array."""
        outputs = self.model.predict(inputs, batch_size=batch_size, verbose=0)
        outputs = ops.convert_to_tensor(np.asarray(outputs, "float32"))
        return ops.convert_to_numpy(self.scores(outputs))

    def predict(self, inputs, batch_size):
        """The number of the class of each example."""
        return self.predicted_scores(inputs, batch_size).argmax(axis=-1)


def class_numbers(labels):
    """Labels as integers (examples,), from these or rows of ones and zeros."""
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] > 1:
        return labels.argmax(axis=-1)
    return labels.reshape(len(labels)).astype(int)


def arrays(inputs, labels):
    """Inputs and labels as float32 arrays of one length."""
    inputs, labels = np.asarray(inputs, "float32"), np.asarray(labels)
    if not len(inputs) or len(inputs) != len(labels):
        raise ValueError(
            "`inputs` and `labels` should have one length, of 1 or more. "
            f"Received: len(inputs)={len(inputs)}, len(labels)={len(labels)}"
        )
    return inputs, labels.astype("float32")


def batches(size, batch_size):
    """Slices of at most so many examples."""
    return [
        slice(start, min(start + batch_size, size))
        for start in range(0, size, batch_size)
    ]


def _loss(model, loss):
    if loss is None:
        loss = model.loss
    if isinstance(loss, (list, tuple)) and len(loss) == 1:
        loss = loss[0]
    if loss is None or isinstance(loss, (list, tuple)):
        raise ValueError(
            "`loss` should be given for a model that is not compiled with a "
            f"single one. Received: loss={loss}"
        )
    return keras.losses.get(loss)


def _from_logits(loss):
    """What a loss takes its outputs for, `None` if it does not say."""
    if isinstance(loss, keras.losses.Loss):
        return loss.get_config().get("from_logits")
    parameters = inspect.signature(loss).parameters
    if "from_logits" not in parameters:
        return None
    return parameters["from_logits"].default


def _log(probabilities):
    return ops.log(
        ops.where(probabilities > _SMALLEST, probabilities, _SMALLEST)
    )
