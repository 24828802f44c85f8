"""Properties where there is nothing to get."""

import inspect

import keras
import numpy as np
import pytest
from layers.test_set_later import MADE
from support.language_models import make_backbone
from support.model_cases import make_model
from support.units import UNITS
from support.units import array
from support.units import sequences

from keras_linrec import export_step
from keras_linrec import layers
from keras_linrec import nlp

SHAPE = (2, 6, 3)
CELLS = {
    name: lambda seed, name=name: getattr(layers, name)(4)
    for name in ("LipschitzRNNCell", "OrthogonalRNNCell")
}
# Without the arguments of which states follow before a layer is built.
UNSIZED = {
    "LinearDynamicalSystem": lambda seed: layers.LinearDynamicalSystem(),
    "LDStack": lambda seed: layers.LDStack(),
    "LRU": lambda seed: layers.LRU(),
}
EVERY = {**MADE, **CELLS, **UNSIZED}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", EVERY)
def test_every_property_can_be_asked_for(kind):
    layer = EVERY[kind](seed=None)
    missing = {name for name in dir(type(layer)) if not hasattr(layer, name)}
    inspect.getmembers(layer)
    layer.build((2, 3) if kind in CELLS else SHAPE)
    inspect.getmembers(layer)
    still = {name for name in missing if not hasattr(layer, name)}
    assert not still & {"state_shapes", "_num_states", "output_units"}


@pytest.mark.filterwarnings("ignore")
def test_every_property_of_a_functional_model_can_be_asked_for():
    model = keras.Sequential([keras.Input((None, 3)), UNITS["lru"]()])
    backbone = make_backbone()
    for one in (
        export_step(model),
        backbone,
        nlp.LinRecTextClassifier(backbone, num_classes=2),
        nlp.LinRecCausalLM(backbone),
    ):
        inspect.getmembers(one)


def test_only_models_of_lssl_have_a_step_rescale():
    model = make_model(unit="rotrnn")
    assert not hasattr(model, "step_rescale")
    assert make_model().step_rescale == 1.0
    with pytest.raises(ValueError, match="Only units with time_deltas"):
        model.step_rescale = 2.0
    with pytest.raises(ValueError, match="Only units with time_deltas"):
        model.with_step_rescale(2.0)


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="a tracer of PyTorch"
)
@pytest.mark.filterwarnings("ignore")
def test_pytorch_traces_a_classifier():
    import torch

    model = make_model(unit="rotrnn").eval()
    inputs = torch.tensor(sequences(6))
    expected = array(model(inputs))
    program = torch.jit.trace(model, inputs)
    np.testing.assert_allclose(array(program(inputs)), expected, atol=1e-6)
