"""What a layer is made of: configurations, copies, Keras' own checks."""

import copy
import json
import pickle

import keras
import numpy as np
import pytest
from support.conformance_cases import EVERY_FORM_AND_CELL
from support.conformance_cases import EVERY_LAYER
from support.conformance_cases import EVERY_LAYER_AND_CELL
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.conformance_cases import made
from support.conformance_cases import sequential
from support.units import UNITS
from support.units import array
from support.units import sequences

pytestmark = pytest.mark.capability("configurations, copies, pickles")


@EVERY_FORM_AND_CELL
def test_a_config_makes_the_same_layer(name, form):
    layer = made(name, return_state=True, **form)
    config = json.loads(json.dumps(layer.get_config()))
    # Keras' RNN takes its cell out of what it is given.
    other = type(layer).from_config(copy.deepcopy(config))
    assert json.loads(json.dumps(other.get_config())) == config


@EVERY_LAYER_AND_CELL
def test_every_argument_is_in_the_config(name):
    layer = made(name)
    unit = getattr(layer, "cell", layer)
    code = type(unit).__init__.__code__
    arguments = code.co_varnames[1 : code.co_argcount]
    assert set(arguments) <= set(unit.get_config())


@EVERY_FORM_AND_CELL
def test_configs_are_copied_and_pickled(name, form):
    layer = made(name, **form)
    config = layer.get_config()
    for copied in (
        copy.deepcopy(config),
        pickle.loads(pickle.dumps(config)),
    ):
        assert copied == config
        assert type(layer).from_config(copied).get_config() == config


@EVERY_LAYER
def test_models_are_copied_and_pickled(name):
    model = sequential(made(name))
    inputs = sequences(5)
    expected = array(model(inputs))
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_close(copied(inputs), expected, 1e-6)
        for weight in copied.weights:
            weight.assign(np.zeros(weight.shape))
        assert_close(model(inputs), expected, 1e-6)


@EVERY_LAYER
def test_the_layer_passes_keras_own_checks(name):
    from keras.src import testing

    beside = len(built(name)._run_time_variables())

    class Checks(testing.TestCase):
        def assertLen(self, container, expected_len, msg=None):
            # Of what is no weight Keras expects PyTorch to hold seeds alone.
            if msg == "Unexpected number of torch_params":
                expected_len += beside
            super().assertLen(container, expected_len, msg)

        def runTest(self):
            self.run_layer_test(
                type(UNITS[name]()),
                init_kwargs=UNITS[name]().get_config(),
                input_shape=(2, 5, 3),
                expected_output_shape=(2, 5, 4),
                expected_num_seed_generators=0,
                expected_num_losses=0,
                supports_masking=True,
            )

    result = Checks().run()
    problems = [text for _, text in result.failures + result.errors]
    assert result.testsRun == 1 and not problems, problems


@EVERY_LAYER_AND_CELL
def test_weights_have_plain_names(name):
    layer = built(name)
    names = [weight.name for weight in layer.weights]
    assert len(set(names)) == len(names)
    for weight in layer.weights:
        assert weight.path.endswith(f"/{weight.name}")
        assert weight.name == weight.name.lower()
    assert isinstance(layer, keras.layers.Layer)
