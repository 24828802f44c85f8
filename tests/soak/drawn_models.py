"""Models of random layers: stacks, residual blocks, classifiers, regressors."""

from typing import NamedTuple

import keras
from support.drawn_layers import FEATURES
from support.drawn_layers import DrawnLayer
from support.drawn_layers import chance
from support.drawn_layers import count
from support.drawn_layers import draw_layer
from support.drawn_layers import pick

from keras_linrec.layers import Bidirectional
from keras_linrec.models import ResidualBlock
from keras_linrec.models import SequenceClassifier
from keras_linrec.models import SequenceRegressor

OUTPUTS = 2
NORMALIZATIONS = ("layer", "rms", "batch")
KINDS = ("stack", "blocks", "classifier", "regressor")


class DrawnModel(NamedTuple):
    """A model's layers and arguments, from which equal models are made.

    Attributes:
        kind: one of `KINDS`.
        units: the sequence units of a stack and of blocks, in their order;
            the one unit of a classifier or a regressor.
        arguments: of blocks, of a classifier or of a regressor.
        wrapped: by unit, whether it reads both ways in a `Bidirectional`.
    """

    kind: str
    units: tuple[DrawnLayer, ...]
    wrapped: tuple[bool, ...]
    arguments: dict

    @property
    def streams(self):
        """Whether `export_step` takes the model."""
        if any(self.wrapped) or any(
            # A step model's states start from zero.
            unit.form.get("bidirectional")
            or unit.form.get("train_initial_state")
            for unit in self.units
        ):
            return False
        shortens = self.arguments.get("pool_size", 1) > 1
        return not (shortens and self.arguments["pooling"] is None)

    @property
    def output_has_time(self):
        return self.arguments.get("pooling") is None

    def make(self, dtype):
        units = [
            self._unit(unit, both_ways, dtype)
            for unit, both_ways in zip(self.units, self.wrapped)
        ]
        if self.kind in ("classifier", "regressor"):
            make = {
                "classifier": SequenceClassifier,
                "regressor": SequenceRegressor,
            }[self.kind]
            model = make(
                OUTPUTS,
                units=FEATURES,
                unit=units[0],
                dtype=dtype,
                **self.arguments,
            )
            model.build((None, None, FEATURES))
            return model
        if self.kind == "blocks":
            units = [
                ResidualBlock(unit, dtype=dtype, **self.arguments)
                for unit in units
            ]
        layers = [
            part
            for unit in units
            for part in (unit, keras.layers.LayerNormalization(dtype=dtype))
        ]
        return keras.Sequential(
            [
                keras.Input((None, FEATURES)),
                *layers,
                keras.layers.Dense(OUTPUTS, dtype=dtype),
            ]
        )

    @staticmethod
    def _unit(drawn, both_ways, dtype):
        unit = drawn.make(dtype=dtype)
        if not both_ways:
            return unit
        return Bidirectional(unit, merge_mode="sum", dtype=dtype)


def draw_model(generator):
    kind = pick(generator, KINDS)
    size = 1 if kind in ("classifier", "regressor") else count(generator, 1, 3)
    units = [draw_layer(generator).of_width(FEATURES) for _ in range(size)]
    wrapped = [
        chance(generator, 0.15) and not unit.form.get("bidirectional")
        for unit in units
    ]
    arguments = {}
    if kind != "stack":
        arguments = {
            "normalization": pick(generator, NORMALIZATIONS),
            "norm_first": chance(generator, 0.7),
            "gated": pick(generator, [None, True, False]),
        }
    if kind in ("classifier", "regressor"):
        arguments |= {
            "num_layers": count(generator, 1, 3),
            "pool_size": pick(generator, [1, 1, 2]),
            "pooling": pick(generator, ["mean", "max", "last", None]),
        }
    return DrawnModel(kind, tuple(units), tuple(wrapped), arguments)
