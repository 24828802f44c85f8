"""The recurrent block of Griffin: a gate beside a convolution and a unit."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_linrec import activations
from keras_linrec import types
from keras_linrec.double_precision import activate
from keras_linrec.double_precision import product
from keras_linrec.layers.base.input_weights import InputWeights
from keras_linrec.layers.base.input_weights import projected
from keras_linrec.layers.base.input_weights import side_by_side
from keras_linrec.layers.base.sequence_layer import SequenceLayer
from keras_linrec.layers.base.set_later import SetLater
from keras_linrec.layers.base.set_later import for_bases
from keras_linrec.layers.causal_convolution import CausalConvolution
from keras_linrec.models.frozen_parts import freeze
from keras_linrec.models.frozen_parts import freeze_all
from keras_linrec.models.frozen_parts import frozen_config
from keras_linrec.models.units import make_unit
from keras_linrec.models.units import serialize_unbuilt
from keras_linrec.models.units import with_unit
from keras_linrec.ops.masks.steps import Wanted
from keras_linrec.validation import require_count


@keras.saving.register_keras_serializable("keras_linrec")
class RecurrentBlock(InputWeights, SequenceLayer):
    """The recurrent block of Hawk and Griffin - De et al. 2024.

    A unit behind a short convolution, multiplied by a gate:

        v_t = W_v u_t + b_v
        h_t = unit(convolution(v_t))
        y_t = W_o (activation(W_g u_t + b_g) * h_t) + b_o

    The block takes and gives what every unit does: masks, states, resets,
    single steps; not the `time_deltas` of some. Within `ResidualBlock`, as
    `unit=RecurrentBlock(...)`, it is the first half of the paper's residual
    block.

    | weight | shape | meaning |
    |---|---|---|
    | `gate_kernel`, `gate_bias` | (features, width), (width,) | W_g^T, b_g |
    | `input_kernel`, `input_bias` | (features, width), (width,) | W_v^T, b_v |
    | `output_kernel`, `output_bias` | (width, units), (units,) | W_o^T, b_o |

    beside those of `convolution`, a `keras_linrec.layers.CausalConvolution`,
    and of `unit`.

    Args:
        units: integer, the number of output features. Defaults to `None`, as
            many as the input has.
        width: integer, the number of features within the two branches.
            Defaults to `None`, as many as the input has. The paper's models
            have a third more.
        unit: the name of a unit, as in `ResidualBlock`, or a layer of
            `keras_linrec.layers` that returns sequences, with as many
            features out as in; the block owns that layer from then on.
            Defaults to `"rglru"`.
        unit_arguments: dictionary of constructor arguments for a unit given by
            name. The nonlinear units need `units`, the width. Defaults to
            `None`.
        kernel_size: integer, 2 or more, that of the convolution. Defaults to
            4.
        activation: of the gate. Defaults to `"gelu"`.
        use_bias: whether the three projections have biases. Defaults to
            `True`.
        kernel_initializer: for the three projections. Defaults to
            `"lecun_normal"`.
        bias_initializer: for the biases. Defaults to `"zeros"`.
        kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: for the kernels and the biases. Default to `None`.
        dropout: float in [0, 1), the share of input features to drop during
            training, the same ones at every time step. Defaults to 0.
        seed: integer, the seed of the dropout. Defaults to `None`.
        return_sequences: whether to return the outputs of all time steps or
            only the last. Defaults to `True`.
        return_state: whether to return the final states too. Defaults to
            `False`.
        go_backwards: whether to read the sequence from its end; the outputs
            come in the order of reading. Defaults to `False`.
        stateful: whether each batch starts from the final states of the last
            one. Needs a fixed batch size. Defaults to `False`.
        zero_output_for_mask: whether masked steps give zeros instead of
            repeating the previous output. Defaults to `False`.
        **kwargs: `name`, `dtype`, `trainable`, `activity_regularizer`.

    Call arguments:
        initial_state: list of tensors, the state of the convolution (batch,
            kernel_size - 1, width), then those of the unit. Defaults to
            `None`: zeros, or the states of the previous batch if `stateful`.
        See `call` of the units for `mask`, `reset_mask` and the others.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final states.

    Raises:
        ValueError: at construction, for an argument out of its range and for a
            unit that is not one of `keras_linrec.layers`, or that reads from
            the end, keeps its states, drops inputs or returns other than
            sequences; when built, for a unit that changes the number of
            features.

    Reference:
        [Griffin: Mixing Gated Linear Recurrences with Local Attention for
        Efficient Language Models](https://arxiv.org/abs/2402.19427), section
        2.3.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> block = keras_linrec.models.RecurrentBlock(width=12)
    >>> sequences = np.random.rand(2, 100, 8).astype("float32")
    >>> tuple(block(sequences).shape)
    (2, 100, 8)

    The same, one step at a time:

    >>> states = block.get_initial_state(batch_size=2)
    >>> output, states = block.step(sequences[:, 0], states)
    >>> tuple(output.shape)
    (2, 8)
    """

    def __init__(
        self,
        units: int | None = None,
        width: int | None = None,
        unit: types.Unit = "rglru",
        unit_arguments: Mapping[str, Any] | None = None,
        kernel_size: int = 4,
        activation: types.Identifier = "gelu",
        use_bias: bool = True,
        kernel_initializer: types.Identifier = "lecun_normal",
        bias_initializer: types.Identifier = "zeros",
        kernel_regularizer: types.Identifier = None,
        bias_regularizer: types.Identifier = None,
        kernel_constraint: types.Identifier = None,
        bias_constraint: types.Identifier = None,
        dropout: float = 0.0,
        seed: types.Seed = None,
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**for_bases(RecurrentBlock, locals()))
        require_count("width", width, optional=True)
        unit = make_unit(unit, unit_arguments, dtype=self.dtype_policy)
        _check_unit(unit)
        self.width = width
        self.unit = unit
        self.activation = activation
        self.convolution = CausalConvolution(
            kernel_size=kernel_size, name="convolution", dtype=self.dtype_policy
        )
        self.kernel_size = kernel_size
        if not self.trainable:
            freeze_all(self._parts())

    _accept_unit_arguments = SetLater._refuse

    def _accept_activation(self, name, value):
        return activations.get_unary(value)

    def _parts(self):
        """The layers that have weights, by name."""
        return {"convolution": self.convolution, "unit": self.unit}

    def state_shapes_of(self, features):
        width = self.width or features
        return [
            *self.convolution.state_shapes_of(width),
            *self.unit.state_shapes_of(width),
        ]

    def trained_states(self, batch_size):
        states = self.unit.trained_states(batch_size)
        if states is None:
            return None
        return [*self.convolution.get_initial_state(batch_size), *states]

    def build_unit(self, features):
        width = self.width or features
        self.gate_kernel, self.gate_bias = self._add_input_weights(
            (features, width), "gate_"
        )
        self.input_kernel, self.input_bias = self._add_input_weights(
            (features, width), "input_"
        )
        self.output_kernel, self.output_bias = self._add_input_weights(
            (width, self.output_units), "output_"
        )
        shape = (None, None, width)
        for part in self._parts().values():
            if not part.built:
                part.build(shape)
        given = self.unit.compute_output_shape(shape)[-1]
        if given != width:
            raise ValueError(
                f"The unit '{self.unit.name}' of a recurrent block should give "
                f"as many features as it is given, {width}. "
                f"Received: {given} features"
            )

    def run(self, steps, states, wanted):
        gate, hidden = projected(steps.inputs, self._projections(), 2)
        before, of_unit = _split(states)
        hidden, read = self.convolution.run(
            steps.with_inputs(hidden), before, Wanted(True, wanted.states)
        )
        hidden, of_unit = self.unit.run(
            steps.with_inputs(hidden), of_unit, wanted
        )
        if not wanted.all_outputs:
            gate = steps.last_of(gate)
        outputs = self._joined(gate, hidden)
        return outputs, [*read, *of_unit] if wanted.states else None

    def step_constants(self):
        return [
            self._projections(),
            self.convolution.step_constants(),
            self.unit.step_constants(),
        ]

    def _projections(self):
        return side_by_side(
            (self.gate_kernel, self.gate_bias),
            (self.input_kernel, self.input_bias),
        )

    def run_step(self, step, states, constants=None):
        own, *of_parts = constants or self.step_constants()
        gate, hidden = projected(step.inputs, own, 2)
        before, of_unit = _split(states)
        hidden, read = self.convolution.run_step(
            step._replace(inputs=hidden), before, of_parts[0]
        )
        hidden, of_unit = self.unit.run_step(
            step._replace(inputs=hidden), of_unit, of_parts[1]
        )
        return self._joined(gate, hidden), [*read, *of_unit]

    def _joined(self, gate, hidden):
        """The outputs, from both branches."""
        outputs = activate(self.activation, gate) * hidden
        outputs = product(outputs, self.output_kernel)
        return outputs + self.output_bias if self.use_bias else outputs

    def get_config(self):
        return {
            **super().get_config(),
            "width": self.width,
            "unit": serialize_unbuilt(self.unit),
            "kernel_size": self.kernel_size,
            "activation": activations.serialize(self.activation),
            **frozen_config(self, self._parts()),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = with_unit(config, custom_objects)
        frozen = config.pop("frozen", None)
        block = cls(**config)
        if frozen is not None:
            freeze(block._parts(), frozen)
        return block


def _split(states):
    """The states of the convolution, and those of the unit."""
    return (states[:1], states[1:]) if states else (None, None)


def _check_unit(unit):
    if not isinstance(unit, SequenceLayer):
        raise ValueError(
            "`unit` should be a layer of keras_linrec.layers. "
            f"Received: unit={unit.name}, {type(unit).__name__}"
        )
    for name, wanted in (
        ("return_sequences", True),
        ("return_state", False),
        ("go_backwards", False),
        ("stateful", False),
        ("bidirectional", False),
        ("dropout", 0.0),
    ):
        given = getattr(unit, name, wanted)
        if given != wanted:
            raise ValueError(
                f"`unit` should have {name}={wanted}. Received: unit with "
                f"{name}={given}"
            )
