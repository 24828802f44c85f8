"""The base of the units whose heads have a matrix for a state."""

import math
from itertools import accumulate
from typing import NamedTuple

import keras
from keras import ops

from keras_linrec.double_precision import activate
from keras_linrec.double_precision import mean
from keras_linrec.double_precision import product
from keras_linrec.layers.base.input_weights import InputWeights
from keras_linrec.layers.base.sequence_layer import SequenceLayer
from keras_linrec.ops.masks import packing
from keras_linrec.ops.matrix_scan import matrix_scan
from keras_linrec.ops.short_convolution import require_taps
from keras_linrec.ops.short_convolution import short_convolution
from keras_linrec.ops.short_convolution import short_convolution_step
from keras_linrec.validation import require_between
from keras_linrec.validation import require_count
from keras_linrec.validation import require_ordered

_EPSILON = 1e-5


class MatrixSteps(NamedTuple):
    """What enters the matrices of states: arguments of `matrix_scan`.

    Attributes:
        queries, keys, values, log_decay, erase, write: those of `matrix_scan`.
    """

    queries: object
    keys: object
    values: object
    log_decay: object = None
    erase: object = None
    write: object = None

    def scanned(self, initial_state, reset_mask=None):
        """`(outputs, final_state)`."""
        return matrix_scan(
            **self._asdict(), initial_state=initial_state, reset_mask=reset_mask
        )

    def with_time(self):
        """A single step as sequences of one."""
        return self._make(
            part if part is None else ops.expand_dims(part, 1) for part in self
        )

    def held_after(self, lengths):
        """The same, where steps behind the end of a row keep its state.

        Args:
            lengths: integers (batch,).
        """
        mask = packing.mask_of_lengths(lengths, ops.shape(self.queries)[1])
        changes = {
            name: packing.zero_masked(getattr(self, name), mask)
            for name in ("log_decay", "erase", "write")
            if getattr(self, name) is not None
        }
        return self._replace(**changes)


class MatrixStateLayer(InputWeights, SequenceLayer):
    """A unit whose heads have a matrix for a state, behind a convolution.

    One product of the inputs gives what enters the convolution and what stands
    beside it; what the convolution gives, behind a SiLU, are the queries, keys
    and values of `keras_linrec.ops.matrix_scan`. A unit supplies `build_unit`,
    which calls `_add_convolution` and `_add_timescale`, and

    - `_convolved_features(features)`, how many features enter the convolution;
    - `_matrix_shape`, `(heads, key_dim, value_dim)` for inputs of so many
      features;
    - `_input_kernels()`, those of the one product as one;
    - `_widths()`, the features that this product gives: those that enter the
      convolution, and those of each thing beside it;
    - `_entering(mixed, beside, decay_rate)`, the `MatrixSteps`; `decay_rate` is
      -A, and `None` without `_add_timescale`;
    - `_read_out(outputs, values, beside)`, the outputs of the layer.

    Args:
        units: integer, the number of output features, or `None` for as many
            as the input has.
        num_heads: integer, or `None` for a unit that finds it.
        kernel_size: integer, 2 or more, the taps of the convolution.
        dt_min, dt_max: floats, the range of the initial lengths of a step.
        **kwargs: those of `InputWeights` and `SequenceLayer`.
    """

    def __init__(
        self,
        units=None,
        num_heads=None,
        kernel_size=4,
        dt_min=1e-3,
        dt_max=0.1,
        **kwargs,
    ):
        super().__init__(units=units, **kwargs)
        require_count("num_heads", num_heads, optional=True)
        require_taps(kernel_size)
        require_between("dt_min", dt_min, 0, math.inf, "()")
        require_between("dt_max", dt_max, 0, math.inf, "()")
        require_ordered("dt_min", dt_min, "dt_max", dt_max)
        self.num_heads = num_heads
        self.kernel_size = kernel_size
        self.dt_min = dt_min
        self.dt_max = dt_max
        self.log_transition = None

    # What a unit supplies.

    def _convolved_features(self, features):
        """The number of features that enter the convolution."""
        raise NotImplementedError

    def _matrix_shape(self, features):
        """`(heads, key_dim, value_dim)`."""
        raise NotImplementedError

    def _input_kernels(self):
        """All kernels of the inputs side by side."""
        raise NotImplementedError

    def _widths(self):
        """The numbers of features of the convolution, and beside it."""
        raise NotImplementedError

    def _entering(self, mixed, beside, decay_rate):
        """The `MatrixSteps`."""
        raise NotImplementedError

    def _read_out(self, outputs, values, beside):
        """The outputs of the layer, from those of the heads."""
        raise NotImplementedError

    # Weights.

    def state_shapes_of(self, features):
        before = self.kernel_size - 1, self._convolved_features(features)
        return [before, self._matrix_shape(features)]

    def _add_convolution(self, features):
        """`convolution_kernel` and `convolution_bias`."""
        self.convolution_kernel, self.convolution_bias = (
            self._add_input_weights(
                (self.kernel_size, self._convolved_features(features)),
                "convolution_",
            )
        )

    def _add_timescale(self, heads, smallest_rate):
        """`log_transition`, log A, and `timescale_bias`, b of a step's length.

        Args:
            heads: integer, the size of both.
            smallest_rate: float, the smallest initial A; the largest is 16.
        """
        uniform = keras.initializers.RandomUniform(smallest_rate, 16.0)
        self.log_transition = self.add_parameter(
            "log_transition",
            (heads,),
            lambda shape, dtype=None: ops.log(uniform(shape, dtype)),
        )
        self.timescale_bias = self.add_parameter(
            "timescale_bias", (heads,), self._initial_timescale
        )

    def _initial_timescale(self, shape, dtype=None):
        """Of which the softplus is dt, log-uniform."""
        drawn = keras.initializers.RandomUniform(
            math.log(self.dt_min), math.log(self.dt_max)
        )
        # log(exp(dt) - 1)
        return ops.log(ops.expm1(ops.exp(drawn(shape, dtype))))

    def _timescale(self, numbers):
        """dt of every step, (..., heads), from what the inputs give."""
        numbers = numbers + self.timescale_bias
        return activate(keras.activations.softplus, numbers)

    # Whole sequences, and single steps.

    def run(self, steps, states, wanted):
        before, matrix = (None, None) if states is None else states
        kernels, decay_rate = self.step_constants()
        inputs, *beside = self._projected(steps.inputs, kernels)
        mixed, last = short_convolution(steps, inputs, before, *self._taps())
        entering = self._entering(mixed, beside, decay_rate)
        if wanted.states and steps.lengths is not None:
            entering = entering.held_after(steps.lengths)
        outputs, matrix = entering.scanned(matrix, steps.reset_mask)
        values = entering.values
        if not wanted.all_outputs:
            outputs, values, *beside = (
                steps.last_of(part) for part in (outputs, values, *beside)
            )
        outputs = self._read_out(outputs, values, beside)
        return outputs, [last(), matrix] if wanted.states else None

    def step_constants(self):
        decay_rate = None
        if self.log_transition is not None:
            decay_rate = -ops.exp(self.log_transition)
        return self._input_kernels(), decay_rate

    def run_step(self, step, states, constants=None):
        before, matrix = states
        kernels, decay_rate = constants or self.step_constants()
        inputs, *beside = self._projected(step.inputs, kernels)
        mixed, after = short_convolution_step(inputs, before, *self._taps())
        entering = self._entering(mixed, beside, decay_rate)
        outputs, matrix = entering.with_time().scanned(matrix)
        outputs = self._read_out(outputs[:, 0], entering.values, beside)
        return outputs, [after, matrix]

    def _projected(self, inputs, kernels):
        return split_last(product(inputs, kernels), *self._widths())

    def _taps(self):
        return (
            self.convolution_kernel,
            self.convolution_bias,
            keras.activations.silu,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "kernel_size": self.kernel_size,
            "dt_min": self.dt_min,
            "dt_max": self.dt_max,
        }


def split_last(numbers, *sizes):
    """The parts of the last axis, of these sizes."""
    return ops.split(numbers, [*accumulate(sizes[:-1])], axis=-1)


def in_heads(numbers, *shape):
    """The last axis as several."""
    return ops.reshape(numbers, (*ops.shape(numbers)[:-1], *shape))


def joined(numbers):
    """The last two axes as one, the inverse of `in_heads`."""
    *shape, heads, size = ops.shape(numbers)
    return ops.reshape(numbers, (*shape, heads * size))


def normalised(numbers, scale):
    """Numbers over the root of their mean square, times a scale."""
    square = mean(ops.square(numbers), axis=-1)
    root = ops.sqrt(ops.expand_dims(square, -1) + _EPSILON)
    return numbers / root * scale
