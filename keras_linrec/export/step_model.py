"""The one-step streaming form of a model."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.export.step_graph import StepGraph
from keras_linrec.models.saved_whole import SavedWhole
from keras_linrec.ops.exportable import any_batch
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_bool


def export_step(
    model: Any,
    position_wise: type | Sequence[type] = (),
    drop_masks: bool = False,
) -> "StepModel":
    """Convert a sequence model into a model of one time step.

    The returned model takes one time step and the states before it. It
    returns what the original model would for the sequence up to this step,
    and the new states. It shares the original's weights, and can be called,
    saved and exported like any Keras model. Its cost does not depend on the
    length of the sequence.

    Layers with states run by their `step`: those of `keras_linrec.layers`,
    the models and the block of `keras_linrec.models`, `keras.layers.RNN` with
    any cell, `LSTM`, `GRU` and `SimpleRNN`, and any layer with the methods
    `get_initial_state(batch_size)` and `step(inputs, states)`. Position-wise
    layers run unchanged on sequences of length 1. Global average and maximum
    pooling become running means and maxima. `return_sequences=False` and
    `x[:, -1]` become the current step, so that the model has an output after
    every step: its output for the sequence that ends there.

    Args:
        model: a built functional or `Sequential` model, or a built model of
            `keras_linrec.models`. Models may be nested. Axis 1 of an input is
            time if the input has rank 3 or more, or if it has rank 2 and an
            integer dtype or an unknown length.
        position_wise: a class of layers that treat every time step alike, or
            several, in addition to the Keras layers known to do so. Defaults
            to `()`.
        drop_masks: whether to leave out `Masking` layers and the masks of
            `Embedding`, so that every step counts. A stream has no padding;
            skip a masked step, and the states stay as they are. Defaults to
            `False`, which raises for a model with masks.

    Returns:
        A `StepModel`, which is a `keras.Model`. Called with the list
        `[inputs, *states]`, where `inputs` is (batch, features), or (batch,)
        for tokens, it returns `[outputs, *states]` with the states after the
        step. Its method `initial_states(batch_size)` returns the states before
        the first step. If there are several inputs or outputs, they come in
        the order of `model.inputs` and `model.outputs`.

    Raises:
        ValueError: if a layer cannot run one step at a time (the message
            gives its name and the reason), if the model is not built, has no
            layer with states, or returns a mask though `drop_masks=True`, if
            `position_wise` is not a class or a tuple of classes, or if
            `drop_masks` is not a boolean.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_linrec
    >>> model = keras.Sequential(
    ...     [
    ...         keras.Input((None, 3)),
    ...         keras.layers.Dense(8),
    ...         keras_linrec.layers.LSSL(state_size=16),
    ...         keras.layers.Dense(2),
    ...     ]
    ... )
    >>> step = keras_linrec.export_step(model)
    >>> sequences = np.random.rand(4, 10, 3).astype("float32")
    >>> states = step.initial_states(batch_size=4)
    >>> for t in range(10):
    ...     outputs, *states = step([sequences[:, t], *states])
    >>> difference = keras.ops.abs(model(sequences)[:, -1] - outputs)
    >>> bool(keras.ops.max(difference) < 1e-4)
    True
    """
    if not model.built:
        raise ValueError(
            "`model` should be built: give it a `keras.Input`, or call it "
            f"once. Received: the model '{model.name}', built=False"
        )
    require_bool("drop_masks", drop_masks)
    graph = StepGraph(model.name, _classes(position_wise), drop_masks)
    inputs, outputs = graph.follow(model)
    if not graph.states:
        raise ValueError(
            "`model` should have a layer with states; a model without states "
            "can be called on sequences of one step. Received: the model "
            f"'{model.name}'"
        )
    step = StepModel(
        [*inputs, *graph.states],
        [*outputs, *graph.new_states],
        name=f"{model.name}_step",
    )
    step.state_count = len(graph.states)
    return step


@keras.saving.register_keras_serializable("keras_linrec")
class StepModel(SavedWhole, keras.Model):
    """The model that `keras_linrec.export_step` returns."""

    # With these arguments, Keras loads it from a file as a functional model.
    def __init__(self, inputs, outputs, name=None, **kwargs):
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        self.state_count = None

    @in_any_byte_order
    def __call__(self, inputs, **kwargs):
        # Keras does not accept a mixture of arrays and tensors.
        return super().__call__(
            keras.tree.map_structure(_as_tensor, inputs), **kwargs
        )

    def initial_states(self, batch_size: int) -> list[types.Tensor]:
        """The states before the first step: a list of zeros.

        Args:
            batch_size: integer, the number of rows.

        Raises:
            ValueError: in a copy by `keras.models.clone_model`, which does not
                know which of its inputs are states.
        """
        if self.state_count is None:
            raise ValueError(
                "`initial_states` needs a model from `export_step`, from a "
                "file or from a configuration. Received: the model "
                f"'{self.name}', which was made in another way"
            )
        return [
            ops.zeros((batch_size, *state.shape[1:]), dtype=state.dtype)
            for state in self.inputs[-self.state_count :]
        ]

    def export(self, filepath, format="tf_saved_model", **kwargs):
        """Export the step, as `keras.Model.export` does, for any batch.

        Args:
            filepath: string or path, as in Keras.
            format: as in Keras. In a `"torch"` program the batch is dynamic
                unless `dynamic_shapes` says otherwise.
            **kwargs: as in Keras.
        """
        sizes = [part.shape[0] for part in self.inputs]
        # Keras writes ONNX only of a model that has been called.
        self(
            [
                ops.zeros((size or 1, *part.shape[1:]), part.dtype)
                for size, part in zip(sizes, self.inputs)
            ]
        )
        if format == "torch" and None in sizes:
            batch = any_batch()
            shapes = [None if size else {0: batch} for size in sizes]
            kwargs.setdefault("dynamic_shapes", [(shapes,)])
        super().export(filepath, format=format, **kwargs)

    def get_config(self):
        return {**super().get_config(), "state_count": self.state_count}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        state_count = config.pop("state_count")
        model = super().from_config(config, custom_objects)
        model.state_count = state_count
        return model


def _classes(given):
    """Classes of layers as a tuple."""
    found = (given,) if isinstance(given, type) else given
    if not isinstance(found, (tuple, list)) or not all(
        isinstance(one, type) for one in found
    ):
        raise ValueError(
            "`position_wise` should be a class of layers, or a tuple of "
            f"classes. Received: position_wise={given}"
        )
    return tuple(found)


def _as_tensor(part):
    return ops.convert_to_tensor(part) if isinstance(part, np.ndarray) else part
