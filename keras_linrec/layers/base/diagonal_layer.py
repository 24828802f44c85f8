"""The base of the units whose recurrence is diagonal in complex coordinates."""

from typing import NamedTuple

import keras
from keras import ops

from keras_linrec import activations
from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import multiply_add
from keras_linrec.double_precision import activate
from keras_linrec.double_precision import product
from keras_linrec.initializers import FanInNormal
from keras_linrec.layers.base.precise_layer import serialized
from keras_linrec.layers.base.sequence_layer import SequenceLayer
from keras_linrec.ops.continuous_diagonal import diagonal_scan_irregular
from keras_linrec.ops.continuous_diagonal import discretise
from keras_linrec.ops.masks import packing
from keras_linrec.ops.scan import projected_scan


class IrregularSteps(NamedTuple):
    """How steps of different lengths take z on: see `discretise`.

    Attributes:
        eigenvalues: pair (channels,), lambda dt.
        time_deltas: tensor (batch, time), or (batch,) of a single step.
        method: the discretisation.
    """

    eigenvalues: tuple
    time_deltas: object
    method: str

    def run(self, inputs, input_kernel, state, reverse, resets, wanted):
        """The parts of z of all steps, side by side, and the final z.

        Args:
            wanted: whether the former are wanted. Else they have no channels.
        """
        batch, time, _ = ops.shape(inputs)
        channels = self.eigenvalues[0].shape[0]
        entering = product(inputs, ops.concatenate(input_kernel, axis=-1))
        # A channel is a feature of one state, with two outputs: its parts.
        one, none = (
            fill((1, 1, channels), entering.dtype)
            for fill in (ops.ones, ops.zeros)
        )
        parts = (
            ops.concatenate([one, none], axis=0),
            ops.concatenate([none, -one], axis=0),
        )
        every, state = diagonal_scan_irregular(
            tuple(part[None] for part in self.eigenvalues),
            parts if wanted else tuple(part[:0] for part in parts),
            self.time_deltas,
            ops.reshape(entering, (batch, time, 2, channels)),
            state and tuple(part[:, None] for part in state),
            reverse,
            resets,
            self.method,
        )
        count = 2 * channels if wanted else 0
        every = ops.reshape(every, (batch, time, count))
        return every, tuple(part[:, 0] for part in state)

    def factors(self):
        """What a single step multiplies z by, and what enters."""
        lengths = ops.expand_dims(self.time_deltas, -1)
        return discretise(self.eigenvalues, lengths, self.method)


class DiagonalSystem(NamedTuple):
    """A linear system with a diagonal transition, as a layer runs it.

        z_t = decay * z_{t-1} + u_t @ input_kernel
        y_t = Re(z_t @ output_kernel) + u_t D

    Complex numbers are `(real, imag)` pairs of tensors.

    Attributes:
        decay: pair (channels,), or (batch, time, channels); `None` if steps
            differ in length.
        input_kernel: pair (features, channels).
        output_kernel: pair (channels, units).
        feedthrough: D, a tensor (features,), which multiplies elementwise, or
            (count, units), which applies to the first `count` inputs.
            Defaults to `None`: no D.
        basis: the layer's own record of how its states relate to z.
        irregular: `IrregularSteps`, which multiply u_t @ input_kernel too.
            Defaults to `None`: all steps have one length.
    """

    decay: tuple | None
    input_kernel: tuple
    output_kernel: tuple
    feedthrough: object = None
    basis: object = None
    irregular: IrregularSteps | None = None

    def stopping_after(self, steps):
        """The system that keeps its state after the last step of each row."""
        # Behind its end, a row's steps last no time.
        if steps.lengths is None or self.irregular is not None:
            return self
        time = ops.shape(steps.inputs)[1]
        return self._replace(
            decay=packing.hold_after(self.decay, steps.lengths, time)
        )

    def run(self, steps, state, all_outputs, reverse=False):
        """Outputs of all steps, or of the last one, and the final z.

        The states of single steps are never stored, but for steps that differ
        in length and outputs of all of them.

        Args:
            steps: `Steps` without a mask.
            state: pair (batch, channels), z before the first step, or `None`:
                zeros.
            all_outputs: whether to return the outputs of all steps.
            reverse: whether the recurrence runs from the last step to the
                first. Defaults to `False`.
        """
        keep_all = all_outputs or steps.lengths is not None
        if self.irregular is not None:
            every, state = self.irregular.run(
                steps.inputs,
                self.input_kernel,
                state,
                reverse,
                steps.reset_mask,
                keep_all,
            )
            if not keep_all:
                return self._read(state, steps.inputs[:, -1]), state
            real, imag = self.output_kernel
            outputs = product(every, ops.concatenate([real, -imag], axis=0))
            if self.feedthrough is not None:
                outputs = outputs + fed_through(steps.inputs, self.feedthrough)
            return outputs if all_outputs else steps.last_of(outputs), state
        outputs, state = projected_scan(
            self.decay,
            steps.inputs,
            self.input_kernel,
            self.output_kernel,
            state,
            reverse=reverse,
            keep_all=keep_all,
            feedthrough=None if self._is_elementwise else self.feedthrough,
            reset_mask=steps.reset_mask,
        )
        if not keep_all:
            return self._read(state, steps.inputs[:, -1]), state
        if self._is_elementwise:
            outputs = outputs + steps.inputs * self.feedthrough
        return outputs if all_outputs else steps.last_of(outputs), state

    def step(self, inputs, state):
        """One time step: `(outputs, state)` from inputs (batch, features)."""
        entering = tuple(inputs @ part for part in self.input_kernel)
        decay = self.decay
        if self.irregular is not None:
            decay, gain = self.irregular.factors()
            entering = multiply(gain, entering)
        state = multiply_add(decay, state, entering)
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

    - `diagonal_system()`, the `DiagonalSystem` that its weights define, or,
      if the call takes arguments of its own, `_system_over(steps)`;
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

    def _system_over(self, steps):
        """The system of a call, or of a step without the axis of time."""
        return self.diagonal_system()

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

    def _add_feedthrough(self, features):
        """D: a vector if there are as many outputs as inputs, else a matrix."""
        units = self.output_units
        return self.add_parameter(
            "feedthrough",
            (features,) if units == features else (features, units),
            self.feedthrough_initializer,
        )

    # Running.

    def run(self, steps, states, wanted):
        system = self._system_over(steps)
        if wanted.states:
            system = system.stopping_after(steps)
        if states is not None:
            states = self.to_channels(states, system.basis)
        outputs, channels = system.run(steps, states, wanted.all_outputs)
        outputs = self.finished(outputs)
        if not wanted.states:
            return outputs, None
        return outputs, self.from_channels(channels, system.basis)

    def step_constants(self):
        return self.diagonal_system()

    def run_step(self, step, states, constants=None):
        system = constants
        if system is None or not step.is_plain:
            system = self._system_over(step)
        channels = self.to_channels(states, system.basis)
        outputs, channels = system.step(step.inputs, channels)
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
