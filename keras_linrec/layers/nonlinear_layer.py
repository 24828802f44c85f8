"""The base of the units whose recurrence is nonlinear in the state."""

import operator

import keras
from keras import ops

from keras_linrec import activations
from keras_linrec.layers.precise_layer import NumberedWeights
from keras_linrec.layers.precise_layer import PreciseLayer
from keras_linrec.layers.precise_layer import drawn_apart
from keras_linrec.layers.precise_layer import serialized
from keras_linrec.layers.sequence_layer import SequenceLayer
from keras_linrec.ops.scan import nonlinear_scan
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_count


class NonlinearUnit:
    """A unit whose one state is its output: the base of layers and cells.

    A unit supplies `build_recurrence(features)`, which creates its own weights,
    and `recurrence()`, its arguments for `keras_linrec.ops.nonlinear_scan` by
    name.

    Args:
        units: integer, the number of output features.
        activation: a name, a function or a configuration, see
            `keras_linrec.activations.get`.
        use_bias, kernel_initializer, bias_initializer, kernel_regularizer,
            bias_regularizer, kernel_constraint, bias_constraint: as in Keras'
            recurrent layers.
        **kwargs: those of the layer or the cell.
    """

    def __init__(
        self,
        units,
        activation,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(units=units, **kwargs)
        require_count("units", units)
        require_bool("use_bias", use_bias)
        self.activation = activation
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def _accept_activation(self, name, value):
        activation = activations.get(value)
        activations.require_even_units(activation, self.units)
        # It has a weight of its own.
        has_bias = activation is activations.modrelu
        if self.built and has_bias != (self.activation is activations.modrelu):
            raise self._cannot_change(name, value)
        return activation

    def build_recurrence(self, features):
        """Create the weights other than those of the inputs."""
        raise NotImplementedError

    def recurrence(self):
        """The unit's own arguments for `nonlinear_scan`, by name."""
        raise NotImplementedError

    def build_unit(self, features):
        self.kernel, self.bias = self.add_input_weights(features)
        self.build_recurrence(features)

    def add_input_weights(self, features, prefix=""):
        """A kernel, and a bias or `None`."""
        kernel = self.add_parameter(
            f"{prefix}kernel",
            (features, self.units),
            drawn_apart(self.kernel_initializer, f"{prefix}kernel"),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        if not self.use_bias:
            return kernel, None
        return kernel, self.add_parameter(
            f"{prefix}bias",
            (self.units,),
            drawn_apart(self.bias_initializer, f"{prefix}bias"),
            regularizer=self.bias_regularizer,
            constraint=self.bias_constraint,
        )

    def arguments(self, recurrence=None):
        """The arguments of `nonlinear_scan` other than inputs and states.

        Args:
            recurrence: the result of `recurrence()`, or `None` to call it.
        """
        return {
            "input_kernel": self.kernel,
            "bias": self.bias,
            "activation": self.activation,
            **(recurrence or self.recurrence()),
        }

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            **serialized(
                self,
                "kernel_initializer",
                "kernel_regularizer",
                "kernel_constraint",
                "bias_initializer",
                "bias_regularizer",
                "bias_constraint",
            ),
        }


class NonlinearLayer(NonlinearUnit, SequenceLayer):
    """A nonlinear unit that maps whole sequences."""

    def state_shapes_of(self, features):
        return [(self.units,)]

    def run(self, steps, states, wanted):
        outputs, final_state = self._scan(steps, states, wanted.all_outputs)
        final_state = self.checked(final_state, steps, states)
        return outputs if wanted.all_outputs else final_state, [final_state]

    def checked(self, final_state, steps, states):
        """The final state; a unit may complain of it.

        Args:
            final_state: tensor (batch, units).
            steps, states: what it follows from, as `run` has them.
        """
        return final_state

    def step_constants(self):
        return self.recurrence()

    def run_step(self, step, states, constants=None):
        _, state = self._scan(step.with_time(), states, False, constants)
        return state, [state]

    def arguments_for(self, steps, constants=None):
        """The arguments of `nonlinear_scan` for these steps, by name.

        Args:
            steps: `Steps` without a mask.
            constants: from `step_constants`, or `None` to compute them here.
        """
        return {
            "inputs": steps.inputs,
            "reset_mask": steps.reset_mask,
            **self.arguments(constants),
        }

    def _scan(self, steps, states, all_outputs, constants=None):
        """All outputs if they are needed, and the state after each row."""
        keep_all = all_outputs or steps.lengths is not None
        outputs, state = nonlinear_scan(
            **self.arguments_for(steps, constants),
            initial_state=states and states[0],
            keep_all=keep_all,
        )
        if steps.lengths is None:
            return outputs, state
        before = 0.0 if states is None else states[0]
        has_steps = (steps.lengths > 0)[:, None]
        return outputs, ops.where(has_steps, steps.last_of(outputs), before)


class _Cell(NumberedWeights, PreciseLayer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        require_count("units", units)
        self.units = units
        # Keras takes no NumPy integer.
        self.state_size = self.output_size = operator.index(units)

    @in_any_byte_order
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


class NonlinearCell(NonlinearUnit, _Cell):
    """A nonlinear unit for `layers.RNN`, one step a call."""

    def build(self, inputs_shape):
        self.build_unit(inputs_shape[-1])

    def call(self, inputs, states, training=False):
        (state,) = states
        _, final_state = nonlinear_scan(
            ops.cast(inputs, self.recurrence_dtype)[:, None],
            initial_state=ops.cast(state, self.recurrence_dtype),
            keep_all=False,
            **self.arguments(),
        )
        # Keras' loop needs the state in the dtype in which it came.
        return (
            ops.cast(final_state, self.compute_dtype),
            [ops.cast(final_state, state.dtype)],
        )
