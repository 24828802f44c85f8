"""Layers that run one time step of a layer with states."""

import keras
from keras import ops

from keras_linrec.models.pooling import initial_states
from keras_linrec.models.pooling import pool_step
from keras_linrec.models.units import serialize_unbuilt


@keras.saving.register_keras_serializable("keras_linrec")
class OneStep(keras.layers.Layer):
    """One time step of a layer with states, as a layer without states.

    Args:
        layer: the layer.
        **kwargs: `name`.

    Call arguments:
        inputs: (batch, 1, features).
        states: list of tensors, the flattened states.
        time_deltas: (batch, 1), if the layer takes them.
        step_rescale: float, if the layer takes it.

    Output: a list of the layer's output for a sequence of one step, followed
    by the new states, flattened.
    """

    def __init__(self, layer, **kwargs):
        # The wrapped layer casts its inputs itself.
        super().__init__(autocast=False, **kwargs)
        self.layer = layer

    def build(
        self,
        inputs_shape,
        states_shape=None,
        time_deltas_shape=None,
        step_rescale_shape=None,
    ):
        if not self.layer.built:
            self.layer.build(inputs_shape)

    def compute_output_spec(self, inputs, states, *args, **kwargs):
        outputs = self.layer.compute_output_spec(inputs)
        return [
            keras.tree.flatten(outputs)[0],
            *(keras.KerasTensor(state.shape, state.dtype) for state in states),
        ]

    def call(self, inputs, states, time_deltas=None, step_rescale=None):
        options = {}
        if time_deltas is not None:
            options["time_deltas"] = time_deltas[:, 0]
        if step_rescale is not None:
            options["step_rescale"] = step_rescale
        layer = self.layer
        states = keras.tree.pack_sequence_as(
            layer.get_initial_state(1), list(states)
        )
        # Keras' cells are called directly and take no options.
        step = layer.cell if is_keras_rnn(layer) else layer.step
        outputs, states = step(inputs[:, 0], states, **options)
        if keeps_time(layer, inputs.shape):
            outputs = ops.expand_dims(outputs, 1)
        return [outputs, *keras.tree.flatten(states)]

    def get_config(self):
        config = serialize_unbuilt(self.layer)
        if config["config"].get("stateful"):
            # The call passes the states; states of the layer's own would need
            # a fixed batch size.
            config["config"]["stateful"] = False
        return {**super().get_config(), "layer": config}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        layer = keras.saving.deserialize_keras_object(
            config.pop("layer"), custom_objects=custom_objects
        )
        return cls(layer, **config)


@keras.saving.register_keras_serializable("keras_linrec")
class Renamed(keras.layers.Layer):
    """A layer or another operation under a name of its own.

    Args:
        operation: the layer, which is built, or the operation.
        **kwargs: `name`.
    """

    def __init__(self, operation, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.operation = operation
        self.built = True

    def compute_output_spec(self, *args, **kwargs):
        return self.operation.compute_output_spec(*args, **kwargs)

    def call(self, *args, **kwargs):
        return self.operation(*args, **kwargs)

    def get_config(self):
        operation = keras.saving.serialize_keras_object(self.operation)
        return {**super().get_config(), "operation": operation}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        operation = keras.saving.deserialize_keras_object(
            config.pop("operation"), custom_objects=custom_objects
        )
        return cls(operation, **config)


@keras.saving.register_keras_serializable("keras_linrec")
class RunningPool(keras.layers.Layer):
    """Global pooling over the steps up to the present.

    Args:
        kind: `"mean"` or `"max"`.
        **kwargs: `name`, `dtype`.
    """

    def __init__(self, kind, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.kind = kind
        self.features = None

    def build(self, inputs_shape):
        self.features = inputs_shape[-1]

    def compute_output_spec(self, inputs):
        shape = (inputs.shape[0], inputs.shape[-1])
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_initial_state(self, batch_size):
        """Zeros: nothing is pooled yet."""
        return initial_states(
            self.kind, batch_size, self.features, self.variable_dtype
        )

    def step(self, inputs, states):
        """One time step."""
        inputs = ops.cast(inputs, self.variable_dtype)
        states = pool_step(self.kind, inputs, states)
        return ops.cast(states[0], self.compute_dtype), states

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}


def is_keras_rnn(layer):
    """Whether a layer runs step by step through its cell."""
    return isinstance(layer, keras.layers.RNN)


def has_states(layer):
    """Whether a layer can run step by step, by its `step` or by its cell."""
    return is_keras_rnn(layer) or all(
        callable(getattr(layer, name, None))
        for name in ("get_initial_state", "step")
    )


def keeps_time(layer, shape):
    """Whether a layer's output has a time axis."""
    keeps = getattr(layer, "return_sequences", None)
    if keeps is not None:
        return keeps
    output = layer.compute_output_spec(keras.KerasTensor((None, *shape[1:])))
    return len(keras.tree.flatten(output)[0].shape) > 2
