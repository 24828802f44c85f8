"""The base of the units whose recurrence is diagonal in complex coordinates."""

from typing import NamedTuple

import keras
from keras import ops

from keras_linrec import activations
from keras_linrec.complex_pairs import multiply_add
from keras_linrec.double_precision import activate
from keras_linrec.double_precision import product
from keras_linrec.initializers import FanInNormal
from keras_linrec.layers.precise_layer import drawn_apart
from keras_linrec.layers.precise_layer import serialized
from keras_linrec.layers.sequence_layer import SequenceLayer
from keras_linrec.ops import packing
from keras_linrec.ops.scan import projected_scan


class DiagonalSystem(NamedTuple):
    """A linear system with a diagonal transition, as a layer runs it.

        z_t = decay * z_{t-1} + u_t @ input_kernel
        y_t = Re(z_t @ output_kernel) + u_t D

    Complex numbers are `(real, imag)` pairs of tensors.

    Attributes:
        decay: pair (channels,), or (batch, time, channels).
        input_kernel: pair (features, channels).
        output_kernel: pair (channels, units).
        feedthrough: D, a tensor (features,), which multiplies elementwise, or
            (count, units), which applies to the first `count` inputs.
            Defaults to `None`: no D.
        basis: the layer's own record of how its states relate to z.
    """

    decay: tuple
    input_kernel: tuple
    output_kernel: tuple
    feedthrough: object = None
    basis: object = None

    def stopping_after(self, lengths, time):
        """The system that keeps its state after `lengths` steps of each row."""
        return self._replace(
            decay=packing.hold_after(self.decay, lengths, time)
        )

    def run(self, inputs, state=None, keep_all=True, **options):
        """Outputs of all steps, or of the last one, and the final z.

        Args:
            inputs: (batch, time, features).
            state: pair (batch, channels), z before the first step. Defaults
                to `None`, zeros.
            keep_all: whether to return the outputs of all steps. The states of
                single steps are never stored. Defaults to `True`.
            **options: `reverse` and `reset_mask` of `ops.projected_scan`.
        """
        outputs, state = projected_scan(
            self.decay,
            inputs,
            self.input_kernel,
            self.output_kernel,
            state,
            keep_all=keep_all,
            feedthrough=None if self._is_elementwise else self.feedthrough,
            **options,
        )
        if not keep_all:
            return self._read(state, inputs[:, -1]), state
        if self._is_elementwise:
            outputs = outputs + inputs * self.feedthrough
        return outputs, state

    def step(self, inputs, state):
        """One time step: `(outputs, state)` from inputs (batch, features)."""
        entering = tuple(inputs @ part for part in self.input_kernel)
        state = multiply_add(self.decay, state, entering)
        return self._read(state, inputs), state

    def _read(self, state, inputs):
        real, imag = self.output_kernel
        outputs = state[0] @ real - state[1] @ imag
        if self.feedthrough is None:
            return outputs
        return outputs + fed_through(inputs, self.feedthrough)

    @property
    def _is_elementwise(self):
        return self.feedthrough is not None and len(self.feedthrough.shape) == 1


def fed_through(inputs, feedthrough):
    """The part D u of the outputs, see `DiagonalSystem`."""
    if len(feedthrough.shape) == 1:
        return inputs * feedthrough
    return product(inputs[..., : feedthrough.shape[0]], feedthrough)


class DiagonalLayer(SequenceLayer):
    """The base of linear units that run where their transition is diagonal.

    It holds what these units share: whole sequences, last outputs and single
    steps, masks and resets, the feedthrough D, and the arguments below. A
    unit supplies `build_unit`, `state_shapes_of` and

    - `diagonal_system()`, the `DiagonalSystem` that its weights define;
    - `to_channels(states, basis)` and `from_channels(channels, basis)`, which
      convert its states to z and back, unless they are z itself;
    - `finished(outputs)`, if more than the activation follows the system.

    Args:
        units: integer, the number of output features, or `None` for as many
            as the input has.
        activation: name or function, applied to the outputs. Defaults to
            `None`, no activation.
        kernel_initializer: for the weights from `add_kernel`. Defaults to
            `"glorot_normal"`.
        feedthrough_initializer: for D. Defaults to `None`, normal numbers that
            keep the variance.
        kernel_regularizer, kernel_constraint: for the weights from
            `add_kernel`. Default to `None`.
        **kwargs: those of `SequenceLayer`.
    """

    def __init__(
        self,
        units=None,
        activation=None,
        kernel_initializer="glorot_normal",
        feedthrough_initializer=None,
        kernel_regularizer=None,
        kernel_constraint=None,
        **kwargs,
    ):
        super().__init__(units, **kwargs)
        self.activation = activation
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.feedthrough_initializer = keras.initializers.get(
            feedthrough_initializer or FanInNormal()
        )
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)

    def _accept_activation(self, name, value):
        return activations.get_unary(value)

    @property
    def is_linear(self):
        return self.activation is keras.activations.linear

    # What a unit supplies.

    def diagonal_system(self):
        """The `DiagonalSystem` that the weights define."""
        raise NotImplementedError

    def to_channels(self, states, basis):
        """The states as one complex number a channel, a pair of tensors."""
        return tuple(states)

    def from_channels(self, channels, basis):
        """The list of states of one complex number a channel."""
        return list(channels)

    def finished(self, outputs):
        """The outputs of the layer from those of its system."""
        return activate(self.activation, outputs)

    # Weights.

    def add_kernel(self, name, shape, initializer=None):
        """A weight with the layer's kernel regulariser and constraint.

        Args:
            name: string.
            shape: tuple of integers.
            initializer: defaults to `None`, the layer's `kernel_initializer`.
        """
        return self.add_parameter(
            name,
            shape,
            drawn_apart(initializer or self.kernel_initializer, name),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )

    def add_feedthrough(self, features):
        """D: a vector if there are as many outputs as inputs, else a matrix."""
        units = self.output_units
        return self.add_parameter(
            "feedthrough",
            (features,) if units == features else (features, units),
            self.feedthrough_initializer,
        )

    # Running.

    def run(self, sequences, states, lengths, wants_states, resets=None):
        return self.respond(
            sequences, states, wants_states, lengths=lengths, resets=resets
        )

    def run_last(self, sequences, states, wants_states, resets=None):
        return self.respond(
            sequences, states, wants_states, keep_all=False, resets=resets
        )

    def respond(
        self,
        sequences,
        states,
        wants_states,
        keep_all=True,
        lengths=None,
        resets=None,
    ):
        """The outputs, all or the last, and the final states; see `run`."""
        system = self.diagonal_system()
        if lengths is not None and wants_states:
            system = system.stopping_after(lengths, ops.shape(sequences)[1])
        outputs, channels = system.run(
            sequences,
            None if states is None else self.to_channels(states, system.basis),
            keep_all,
            reset_mask=resets,
        )
        final_states = self.from_channels(channels, system.basis)
        return self.finished(outputs), final_states

    def step_constants(self):
        return self.diagonal_system()

    def run_step(self, inputs, states, constants=None):
        system = constants or self.diagonal_system()
        channels = self.to_channels(states, system.basis)
        outputs, channels = system.step(inputs, channels)
        final_states = self.from_channels(channels, system.basis)
        return self.finished(outputs), final_states

    def get_config(self):
        return {
            **super().get_config(),
            "activation": activations.serialize(self.activation),
            **serialized(
                self,
                "kernel_initializer",
                "feedthrough_initializer",
                "kernel_regularizer",
                "kernel_constraint",
            ),
        }
