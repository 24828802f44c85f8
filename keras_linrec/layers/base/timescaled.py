"""What units of a continuous system share: how long a step lasts."""

import math

import keras
from keras import ops

from keras_linrec.layers.base.precise_layer import given_values
from keras_linrec.ops.concrete_values import values_of
from keras_linrec.validation import require_array
from keras_linrec.validation import require_between
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_ordered


class Timescaled:
    """A mixin for units whose steps last dt, a number for each of their parts.

    `build_unit` calls `_add_log_timescale`. dt is multiplied by the layer's
    `step_rescale` and by that of a call, and each step by its `time_deltas`.

    Args:
        dt_min, dt_max: floats, the range of the initial dt, whose logarithms
            are uniform.
        trainable_timescale: whether dt is trained.
        step_rescale: float, the factor of dt.
        **kwargs: those of the layer.
    """

    call_arguments = ("time_deltas", "step_rescale")

    def __init__(
        self,
        units=None,
        dt_min=1e-3,
        dt_max=1e-1,
        trainable_timescale=True,
        step_rescale=1.0,
        **kwargs,
    ):
        super().__init__(units, **kwargs)
        require_between("dt_min", dt_min, 0, math.inf, "()")
        require_between("dt_max", dt_max, 0, math.inf, "()")
        require_ordered("dt_min", dt_min, "dt_max", dt_max)
        require_between("step_rescale", step_rescale, 0, math.inf, "()")
        require_bool("trainable_timescale", trainable_timescale)
        self.dt_min = dt_min
        self.dt_max = dt_max
        self.trainable_timescale = trainable_timescale
        self._step_rescale = float(step_rescale)
        self._step_rescale_variable = None

    def build(self, sequences_shape, initial_state_shape=None):
        super().build(sequences_shape, initial_state_shape)
        self._step_rescale_variable = self.add_parameter(
            "step_rescale",
            (),
            given_values(self._step_rescale),
            trainable=False,
        )

    def _add_log_timescale(self, shape):
        """Create the weight `log_timescale`, log dt."""
        self.log_timescale = self.add_parameter(
            "log_timescale",
            shape,
            keras.initializers.RandomUniform(
                math.log(self.dt_min), math.log(self.dt_max)
            ),
            trainable=self.trainable_timescale,
        )

    def _run_time_variables(self):
        scale = self._step_rescale_variable
        return [
            *super()._run_time_variables(),
            *([] if scale is None else [scale]),
        ]

    @property
    def step_rescale(self):
        """The factor of dt: a float, which may be set outside of `fit`."""
        return self._step_rescale

    @step_rescale.setter
    def step_rescale(self, value):
        require_between("step_rescale", value, 0, math.inf, "()")
        self._step_rescale = float(value)
        if self._step_rescale_variable is not None:
            self._step_rescale_variable.assign(self._step_rescale)

    def _timescale(self, scale=None):
        """dt of every part.

        Args:
            scale: the call's `step_rescale`, or `None`.
        """
        timescale = ops.exp(self.log_timescale) * self._step_rescale_variable
        if scale is None:
            return timescale
        if isinstance(scale, (int, float, str)):
            require_between("step_rescale", scale, 0, math.inf, "()")
        else:
            require_array("step_rescale", scale)
        # `ops.cast` would convert a float by way of float32.
        if isinstance(scale, (int, float)):
            scale = ops.convert_to_tensor(scale, self.recurrence_dtype)
        scale = ops.cast(scale, self.recurrence_dtype)
        if len(scale.shape):
            raise ValueError(
                "`step_rescale` should be a number or a scalar tensor. "
                f"Received: step_rescale.shape={tuple(scale.shape)}"
            )
        value = values_of(scale)
        if value is not None:
            require_between("step_rescale", float(value), 0, math.inf, "()")
        return timescale * scale

    def _timescale_of(self, steps):
        """dt of a call, (parts,), whatever the lengths of its steps."""
        return self._timescale(steps.options.get("step_rescale"))

    def _timescale_over(self, steps):
        """dt times the lengths of steps, (..., parts), or dt, (parts,).

        Args:
            steps: `Steps`, or a single one without the axis of time.
        """
        timescale = self._timescale_of(steps)
        if steps.time_deltas is None:
            return timescale
        return ops.expand_dims(steps.time_deltas, -1) * timescale

    def get_config(self):
        return {
            **super().get_config(),
            "dt_min": self.dt_min,
            "dt_max": self.dt_max,
            "trainable_timescale": self.trainable_timescale,
            "step_rescale": self.step_rescale,
        }
