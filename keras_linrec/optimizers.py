"""An optimizer with a learning rate of its own for chosen weights."""

import re
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_linrec.stored_values import checked_value
from keras_linrec.validation import require_between

__all__ = [
    "ParameterGroups",
]


@keras.saving.register_keras_serializable("keras_linrec")
class ParameterGroups(keras.optimizers.Optimizer):
    """An optimizer that trains some weights more slowly, and without decay.

    The weights that define a recurrence act on the state in every step, so a
    small change of theirs is a large one after thousands of steps. The papers
    train them at a fraction of the learning rate of the other weights, and
    without weight decay, which would pull them away from their initialization
    to values that mean something else: a `log_timescale` of 0 is a dt of 1.

    Each group has an optimizer of its own, a copy of `optimizer` in everything
    but the learning rate and the weight decay. Setting or assigning to
    `learning_rate`, as `keras.callbacks.ReduceLROnPlateau` does, changes all
    groups in proportion; a schedule applies to all of them. `global_clipnorm`
    is the norm of the gradients of all groups together.

    Args:
        optimizer: a Keras optimizer that has not been built. It trains the
            weights that are in no group. A `LossScaleOptimizer` goes around
            the `ParameterGroups`.
        groups: dictionary. The keys are regular expressions, which are
            searched for in the paths of the trainable weights, such as
            `"sequence_classifier/block_0/lssl/log_timescale"`; a weight belongs
            to the first group whose expression occurs in its path. The values
            are the groups' multiples of the learning rate, floats of at
            least 0. With 0, the weights stay as they are, unless a constraint
            changes them.
        name: string, the name of the optimizer. Defaults to
            `"parameter_groups"`.

    The names of the weights that define a recurrence:

    | layer | weights |
    |---|---|
    | `LSSL` | `log_timescale`, `input_vector`, `transition_` and p, d, q or t |
    | `RotRNN` | `theta`, `gamma_log`, `rotation_kernel` |
    | `LRU` | `nu_log`, `theta_log`, `gamma_log` |
    | `S5` | `log_timescale`, `transition_`, `input_` |
    | `S4D` | `log_timescale`, `transition_` |
    | `LinOSS` | `log_timescale`, `stiffness`, `friction` |
    | `LinearDynamicalSystem`, `LDStack` | `eigenvalue_`, `angle`, `log_` |
    | `LDStack` with `basis="learned"` | `state_basis` |
    | `OrthogonalRNN` | `reflectors`, `phases`, `sign` |
    | `LipschitzRNN` | `linear_kernel`, `recurrent_kernel`, `log_step_size` |
    | `AntisymmetricRNN` | `recurrent_kernel`, `log_step_size` |

    Raises:
        ValueError: if an argument is not as described, if `optimizer` has both
            `gradient_accumulation_steps` and `global_clipnorm`, and, when the
            optimizer is built, if a group has no weights.

    Example: an LSSL as its authors train it, with 1e-4 for A and B and 1e-3
    for dt where the other weights have 4e-3.

    >>> import keras
    >>> import numpy as np
    >>> from keras_linrec.models import SequenceClassifier
    >>> from keras_linrec.optimizers import ParameterGroups
    >>> model = SequenceClassifier(num_classes=2, num_layers=1, units=4)
    >>> model.build((None, 10, 3))
    >>> optimizer = ParameterGroups(
    ...     keras.optimizers.AdamW(4e-3, weight_decay=0.01),
    ...     {"transition_|input_vector": 0.025, "log_timescale": 0.25},
    ... )
    >>> model.compile(optimizer, "sparse_categorical_crossentropy")
    >>> sequences, labels = np.ones((2, 10, 3)), np.array([0, 1])
    >>> history = model.fit(sequences, labels, verbose=0)
    """

    def __init__(
        self,
        optimizer: Any,
        groups: Mapping[str, float],
        name: str | None = "parameter_groups",
    ):
        _require_optimizer(optimizer)
        _require_groups(groups)
        # The learning rates are those of the groups' optimizers.
        super().__init__(learning_rate=0.0, name=name)
        self.groups = dict(groups)
        self.optimizer = optimizer
        # The paths that the weights had in the training that was saved.
        self._saved_paths = None
        self.global_clipnorm = optimizer.global_clipnorm
        self.group_optimizers = [
            _copy(optimizer, multiple, f"{optimizer.name}_{number}")
            for number, multiple in enumerate(self.groups.values(), start=1)
        ]

    @property
    def _optimizers(self):
        return [self.optimizer, *self.group_optimizers]

    def build(self, variables):
        if self.built:
            return
        # Another optimizer around the same one may have built it.
        _require_optimizer(self.optimizer)
        super().build(variables)
        paths = self._paths(variables)
        self._group_of = [self._find_group(path) for path in paths]
        for number, expression in enumerate(self.groups, start=1):
            if number not in self._group_of:
                raise ValueError(
                    "Each expression in `groups` should occur in the path of a "
                    f"trainable weight. Received: {expression!r}, and the "
                    f"paths {paths}"
                )
        for number, optimizer in enumerate(self._optimizers):
            optimizer.build(self._members(number, variables))

    def _paths(self, variables):
        """The paths in which the expressions are searched for.

        A `Sequential` that is loaded, or that `fit` builds, drops its own name
        from the paths of its weights. So a path of the file matches with or
        without that name.
        """
        paths = [v.path for v in variables]
        saved = self._saved_paths or ()
        if len(saved) == len(paths) and all(
            map(_is_same_but_longer, saved, paths)
        ):
            return saved
        return paths

    def _find_group(self, path):
        """The number of a weight's group, 0 where it is in none."""
        for number, expression in enumerate(self.groups, start=1):
            if re.search(expression, path):
                return number
        return 0

    def _members(self, number, values):
        """Those of a list, one for each variable, that belong to a group."""
        return [
            v for v, group in zip(values, self._group_of) if group == number
        ]

    @property
    def variables(self):
        inner = [o.variables for o in self._optimizers]
        return sum(inner, super().variables)

    def apply(self, grads, trainable_variables=None):
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        grads, trainable_variables = list(grads), list(trainable_variables)
        if len(grads) != len(trainable_variables):
            raise ValueError(
                "There should be a gradient, or `None`, for every variable. "
                f"Received: {len(grads)} gradients for "
                f"{len(trainable_variables)} variables"
            )
        if not self.built:
            self.build(trainable_variables)
        # As in every optimizer of Keras.
        self._check_variables_are_known(trainable_variables)
        grads, trainable_variables = self._filter_empty_gradients(
            grads, trainable_variables
        )
        grads = self._clipped(grads, trainable_variables)
        multiples = [1.0, *self.groups.values()]
        members = [[] for _ in multiples]
        for gradient, variable in zip(grads, trainable_variables):
            number = self._group_of[self._get_variable_index(variable)]
            if multiples[number] == 0 and not _is_value(variable):
                # An infinite one would become NaN.
                gradient = ops.zeros_like(ops.convert_to_tensor(variable))
            members[number].append((gradient, variable))
        for optimizer, pairs in zip(self._optimizers, members):
            if pairs:
                optimizer.apply(*zip(*pairs))
            else:
                _pass_over(optimizer)
        self._iterations.assign_add(1)

    def _clipped(self, grads, variables):
        """Gradients whose norm, over all groups, is at most the given one."""
        are_values = [*map(_is_value, variables)]
        if not self.global_clipnorm or all(are_values):
            return grads
        squares = [
            ops.sum(ops.square(ops.cast(gradient, "float32")))
            for gradient, is_value in zip(grads, are_values)
            if not is_value
        ]
        norm = ops.sqrt(sum(squares))
        # The gradients of a scaled loss are unscaled later.
        limit = self.global_clipnorm * (self.loss_scale_factor or 1.0)
        scale = limit / ops.maximum(norm, limit)
        return [
            g if is_value else ops.multiply(g, ops.cast(scale, g.dtype))
            for g, is_value in zip(grads, are_values)
        ]

    @property
    def learning_rate(self):
        """The learning rate of the weights that are in no group."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        # The groups' rates are multiples of it.
        self.optimizer.learning_rate = learning_rate

    @property
    def iterations(self):
        """The number of updates."""
        steps = self.optimizer.gradient_accumulation_steps
        if steps:
            return ops.floor_divide(self._iterations, steps)
        return self._iterations

    @property
    def loss_scale_factor(self):
        """What multiplies the loss, and divides the gradients, or `None`.

        A `LossScaleOptimizer` sets it to `None`.
        """
        return self.optimizer.loss_scale_factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor):
        # Keras sets it before there are optimizers.
        if hasattr(self, "group_optimizers"):
            for optimizer in self._optimizers:
                optimizer.loss_scale_factor = factor

    def set_weights(self, weights):
        if not self.built:
            raise ValueError(
                "An optimizer should be built before `set_weights`: call "
                "`build(trainable_variables)`. Received: the optimizer "
                f"'{self.name}', not built"
            )
        expected = [tuple(v.shape) for v in self.variables]
        shapes = [tuple(w.shape) for w in weights]
        if shapes != expected:
            raise ValueError(
                f"`weights` should have the shapes {expected}. "
                f"Received: {shapes}"
            )
        for variable, weight in zip(self.variables, weights):
            variable.assign(weight)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        self.optimizer.exclude_from_weight_decay(var_list, var_names)

    @property
    def _model_variables_moving_average(self):
        """Where `keras.callbacks.SwapEMAWeights` looks for the averages."""
        averages = [
            iter(optimizer._model_variables_moving_average)
            for optimizer in self._optimizers
        ]
        return [next(averages[number]) for number in self._group_of]

    def finalize_variable_values(self, var_list):
        for number, optimizer in enumerate(self._optimizers):
            members = self._members(number, self._trainable_variables)
            optimizer.finalize_variable_values(members)

    def save_own_variables(self, store):
        # The groups' optimizers, which are attributes, save their own.
        for index, variable in enumerate(super().variables):
            store[str(index)] = ops.convert_to_numpy(variable)

    def load_own_variables(self, store):
        owner = f"optimizer '{self.name}'"
        values = [
            checked_value(store, str(index), variable, owner, noun="variable")
            for index, variable in enumerate(super().variables)
        ]
        for variable, value in zip(super().variables, values):
            variable.assign(value)

    def get_config(self):
        # What the constructor takes, and the paths; the rest belongs to
        # `optimizer`.
        config = {
            "optimizer": keras.saving.serialize_keras_object(self.optimizer),
            "groups": self.groups,
            "name": self.name,
        }
        if self.built:
            config["paths"] = self._paths(self._trainable_variables)
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        paths = config.pop("paths", None)
        # `keras.optimizers.deserialize` does not know all of Keras' own.
        config["optimizer"] = keras.saving.deserialize_keras_object(
            config["optimizer"], custom_objects
        )
        optimizer = cls(**config)
        optimizer._saved_paths = paths
        return optimizer


# Keras has the second since 3.15.
_OF_SEVERAL = (
    keras.optimizers.LossScaleOptimizer,
    getattr(keras.optimizers, "MultiOptimizer", ()),
)


class _Multiple(keras.optimizers.schedules.LearningRateSchedule):
    """A multiple of the learning rate that another optimizer has now.

    It is never saved: the groups' optimizers are made anew from `groups`.
    """

    def __init__(self, optimizer, multiple):
        self.optimizer = optimizer
        self.multiple = float(multiple)

    def __call__(self, step):
        # Not the property `learning_rate`, which counts the steps of the other
        # optimizer: it may have made this one already.
        rate = self.optimizer._learning_rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            rate = rate(step)
        elif callable(rate):
            rate = rate()
        return self.multiple * ops.convert_to_tensor(rate)


def _is_value(variable):
    """Whether a variable's gradient is its next value, as in float8."""
    return getattr(variable, "overwrite_with_gradient", False)


def _pass_over(optimizer):
    """Count an update in which no weight of an optimizer has a gradient.

    Schedules go on, averages of the weights too, and what has been accumulated
    for them is dropped where the others are updated.
    """
    steps = optimizer.gradient_accumulation_steps
    if steps:
        is_update = ops.equal(ops.mod(optimizer._iterations + 1, steps), 0)
        for sum_ in optimizer._accumulated_gradients:
            if sum_ is not None:
                value = ops.convert_to_tensor(sum_)
                sum_.assign(ops.where(is_update, ops.zeros_like(value), value))
    if optimizer.use_ema:
        # Keras' average is zero before its first update.
        weights = optimizer._trainable_variables
        optimizer._update_model_variables_moving_average(weights)
    optimizer._iterations.assign_add(1)


def _is_same_but_longer(path, other):
    """Whether one of two paths is the other, after further names."""
    longer, shorter = sorted((path, other), key=len, reverse=True)
    return longer == shorter or longer.endswith(f"/{shorter}")


def _copy(optimizer, multiple, name):
    """An optimizer with a multiple of the rate, and without weight decay."""
    if multiple == 0:
        return _still(optimizer, name)
    config = _config_without_rate(optimizer)
    # AdamW refuses `None`.
    for argument in ("weight_decay", "adam_weight_decay"):
        if config.get(argument) is not None:
            config[argument] = 0.0
    config |= {
        "learning_rate": _Multiple(optimizer, multiple),
        "name": name,
        # Of all groups together, before each has its own.
        "global_clipnorm": None,
    }
    return type(optimizer).from_config(config)


def _still(optimizer, name):
    """One that leaves weights as they are, whatever the others do.

    Ftrl divides by the rate, and optimizers that move weights towards an
    average do so at any rate.
    """
    return keras.optimizers.SGD(
        0.0,
        loss_scale_factor=optimizer.loss_scale_factor,
        use_ema=optimizer.use_ema,
        ema_momentum=optimizer.ema_momentum,
        ema_overwrite_frequency=optimizer.ema_overwrite_frequency,
        name=name,
    )


def _config_without_rate(optimizer):
    """The configuration; a schedule need not be one that Keras can save."""
    rate, optimizer._learning_rate = optimizer._learning_rate, None
    try:
        return optimizer.get_config()
    finally:
        optimizer._learning_rate = rate


def _require_optimizer(optimizer):
    if not isinstance(optimizer, keras.optimizers.Optimizer) or optimizer.built:
        state = " that is built" if getattr(optimizer, "built", False) else ""
        raise ValueError(
            "`optimizer` should be a Keras optimizer that has not been built. "
            f"Received: optimizer={optimizer}{state}"
        )
    if isinstance(optimizer, ParameterGroups):
        raise ValueError(
            "`optimizer` should not have groups of its own: `groups` may have "
            f"any number of them. Received: optimizer={optimizer}"
        )
    if isinstance(optimizer, _OF_SEVERAL):
        raise ValueError(
            "`optimizer` should have a learning rate of its own. Give the "
            f"`ParameterGroups` to the `{type(optimizer).__name__}` instead. "
            f"Received: optimizer={optimizer}"
        )
    if optimizer.gradient_accumulation_steps and optimizer.global_clipnorm:
        raise ValueError(
            "`optimizer` should have `global_clipnorm` or "
            "`gradient_accumulation_steps`, not both: the norm of accumulated "
            "gradients is that of one group. Received: global_clipnorm="
            f"{optimizer.global_clipnorm}, gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}"
        )


def _require_groups(groups):
    if not isinstance(groups, Mapping) or not groups:
        raise ValueError(
            "`groups` should be a dictionary of regular expressions and "
            f"multiples of the learning rate. Received: groups={groups}"
        )
    for expression, multiple in groups.items():
        if not isinstance(expression, str):
            raise ValueError(
                "The keys of `groups` should be strings. "
                f"Received: {expression!r}"
            )
        try:
            re.compile(expression)
        except re.error as error:
            raise ValueError(
                "The keys of `groups` should be regular expressions. "
                f"Received: {expression!r}, {error}"
            ) from error
        require_between(
            f"groups[{expression!r}]", multiple, 0, float("inf"), "[)"
        )
