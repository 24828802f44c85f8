"""The base of the units whose recurrence is nonlinear in the state."""

import operator

from keras import ops

from keras_linrec import activations
from keras_linrec import types
from keras_linrec.layers.base.input_weights import InputWeights
from keras_linrec.layers.base.precise_layer import NumberedWeights
from keras_linrec.layers.base.precise_layer import PreciseLayer
from keras_linrec.layers.base.sequence_layer import SequenceLayer
from keras_linrec.ops.scan import nonlinear_scan
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_count


class NonlinearUnit(InputWeights):
    """A unit whose one state is its output: the base of layers and cells.

    A unit supplies `build_recurrence(features)`, which creates its own weights,
    and `recurrence()`, its arguments for `keras_linrec.ops.nonlinear_scan` by
    name.

    Args:
        units: integer, the number of output features.
        activation: a name, a function or a configuration, see
            `keras_linrec.activations.get`.
        **kwargs: those of `InputWeights` and of the layer or the cell.
    """

    def __init__(
        self,
        units: int,
        activation: types.Identifier,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        super().__init__(units=units, **kwargs)
        require_count("units", units)
        self.activation = activation

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
        self.kernel, self.bias = self._add_input_weights((features, self.units))
        self.build_recurrence(features)

    def _scan_arguments(self, recurrence=None):
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
        # It refuses a lambda, before Keras warns of one in an initializer.
        activation = activations.serialize(self.activation)
        return {
            **super().get_config(),
            "units": self.units,
            "activation": activation,
        }


class NonlinearLayer(NonlinearUnit, SequenceLayer):
    """A nonlinear unit that maps whole sequences."""

    def state_shapes_of(self, features):
        return [(self.units,)]

    def run(self, steps, states, wanted):
        outputs, final_state = self._scan(steps, states, wanted.all_outputs)
        final_state = self._checked_state(final_state, steps, states)
        return outputs if wanted.all_outputs else final_state, [final_state]

    def _checked_state(self, final_state, steps, states):
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

    def _scan_arguments_for(self, steps, constants=None):
        """The arguments of `nonlinear_scan` for these steps, by name.

        Args:
            steps: `Steps` without a mask.
            constants: from `step_constants`, or `None` to compute them here.
        """
        return {
            "inputs": steps.inputs,
            "reset_mask": steps.reset_mask,
            **self._scan_arguments(constants),
        }

    def _scan(self, steps, states, all_outputs, constants=None):
        """All outputs if they are needed, and the state after each row."""
        keep_all = all_outputs or steps.lengths is not None
        outputs, state = nonlinear_scan(
            **self._scan_arguments_for(steps, constants),
            initial_state=states and states[0],
            keep_all=keep_all,
        )
        before = None if states is None else states[0]
        return outputs, steps.state_after(outputs, state, before)


class _Cell(NumberedWeights, PreciseLayer):
    def __init__(
        self, units: int, **kwargs: types.Unpack[types.LayerArguments]
    ):
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
            **self._scan_arguments(),
        )
        # Keras' loop needs the state in the dtype in which it came.
        return (
            ops.cast(final_state, self.compute_dtype),
            [ops.cast(final_state, state.dtype)],
        )
