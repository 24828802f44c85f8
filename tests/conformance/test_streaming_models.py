"""`export_step`: a whole model, one step at a time."""

import keras
import numpy as np
import pytest
from support.autodiff import compiled
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import EVERY_LAYER_AND_CELL
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.conformance_cases import made
from support.conformance_cases import sequential
from support.units import array
from support.units import sequences

from keras_linrec import export_step
from keras_linrec.models import SequenceClassifier

pytestmark = pytest.mark.capability("`export_step`")


@EVERY_LAYER_AND_CELL
def test_a_model_step_by_step_is_the_model(name):
    model = sequential(
        built(name),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(2),
    )
    inputs = sequences(7)
    step = export_step(model)
    run = compiled(lambda given: step(given))
    states, outputs = step.initial_states(2), []
    for time in range(7):
        output, *states = run([inputs[:, time], *states])
        outputs.append(array(output))
    assert_close(np.stack(outputs, 1), model(inputs))


@EVERY_LAYER
def test_a_deep_model_step_by_step_is_the_model(name):
    model = SequenceClassifier(
        2,
        num_layers=2,
        units=3,
        unit=made(name, units=3),
        normalization="batch",
        pool_size=2,
        pooling="max",
    )
    inputs = sequences(7)
    expected = model(inputs)
    step = export_step(model)
    run = compiled(lambda given: step(given))
    states = step.initial_states(2)
    for time in range(7):
        output, *states = run([inputs[:, time], *states])
    assert_close(output, expected)
