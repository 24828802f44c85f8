"""The model that takes one time step and the states before it."""

import keras
import numpy as np
from keras import ops

from keras_linrec.export.step_graph import StepGraph


def export_step(model, position_wise=()):
    """The one-step streaming form of a model of sequences.

    The model that is returned takes one time step and the states before it,
    and gives what the model says of the sequence up to this step, and the new
    states. Its weights are those of the model, not copies of them. It is a
    Keras model of its own, to call, to save and to `export`: no length is in
    it, and its cost does not grow with the time passed.

    Layers with states run by their `step`. These are the ones of
    `keras_linrec.layers`, the models and the block of `keras_linrec.models`,
    `keras.layers.RNN` with any cell, `LSTM`, `GRU` and `SimpleRNN`, and any
    layer with the methods `get_initial_state(batch_size)` and `step(inputs,
    states)`. What treats every step alike runs as it is, at a length of one.
    Global average and maximum pooling run on as means and maxima of the steps
    so far, and `return_sequences=False` and `x[:, -1]` stand for the step
    taken last: behind them the model has an output after each step, which is
    what it gives for the sequence that ends there.

    Args:
        model: a functional or `Sequential` model, or one of
            `keras_linrec.models`; built. Models may be nested. An input has a
            time axis, its second, if it is of rank 3 and more, or of rank 2
            and of integers or an unknown length.
        position_wise: classes of layers that treat every step alike, beside
            those of Keras that are known to. Defaults to `()`.

    Returns:
        A `keras.Model`. Called with the list `[inputs, *states]`, where
        `inputs` is (batch, features), it returns `[outputs, *states]`, with
        the states after the step. Its method `initial_states(batch_size)`
        gives the list of those before the first step. Several inputs and
        outputs come one after another, in the order of `model.inputs` and
        `model.outputs`.

    Raises:
        ValueError: for a layer that cannot run one step at a time, with its
            name and the reason; for a model that is not built, or has no
            layer with states.

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
    graph = StepGraph(model.name, tuple(position_wise))
    inputs, outputs = graph.follow(model)
    if not graph.states:
        raise ValueError(
            "`model` should have a layer with states; without one, it runs a "
            f"step as a sequence of one. Received: the model '{model.name}'"
        )
    step = StepModel(
        [*inputs, *graph.states],
        [*outputs, *graph.new_states],
        name=f"{model.name}_step",
    )
    step.state_count = len(graph.states)
    return step


@keras.saving.register_keras_serializable("keras_linrec")
class StepModel(keras.Model):
    """What `keras_linrec.export_step` returns."""

    # These arguments, so that Keras reads it from a file as a functional one.
    def __init__(self, inputs, outputs, name=None, **kwargs):
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        self.state_count = 0

    def __call__(self, inputs, **kwargs):
        # Keras takes no arrays beside tensors.
        return super().__call__(
            keras.tree.map_structure(_as_tensor, inputs), **kwargs
        )

    def initial_states(self, batch_size):
        """The states before the first step: a list of zeros.

        Args:
            batch_size: integer, the number of rows.
        """
        return [
            ops.zeros((batch_size, *state.shape[1:]), dtype=state.dtype)
            for state in self.inputs[-self.state_count :]
        ]

    def get_config(self):
        return {**super().get_config(), "state_count": self.state_count}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        state_count = config.pop("state_count")
        model = super().from_config(config, custom_objects)
        model.state_count = state_count
        return model


def _as_tensor(part):
    return ops.convert_to_tensor(part) if isinstance(part, np.ndarray) else part
