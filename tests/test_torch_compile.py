"""`torch.compile` takes every unit in one graph."""

import pytest
import torch
from units import UNITS
from units import randomise
from units import sequences

# Others remain to be tried: LipschitzRNN and AntisymmetricRNN, RotRNN, LSSL and
# LDStack.
NAMES = ["orthogonal_rnn", "lru", "linear_dynamical_system"]


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_compiles_in_one_graph_with_its_gradients(name):
    layer = UNITS[name]()
    given = sequences(4)
    layer.build(given.shape)
    randomise(layer)
    run = torch.compile(lambda x: layer(x), fullgraph=True, backend="eager")

    def outputs_and_slopes(function):
        inputs = torch.tensor(given, requires_grad=True)
        outputs = function(inputs)
        weights = [weight.value for weight in layer.trainable_variables]
        slopes = torch.autograd.grad(
            outputs.square().sum(), [inputs, *weights], allow_unused=True
        )
        return [outputs, *slopes]

    # Eagerly first: the compiler does not import a backend's modules.
    expected = outputs_and_slopes(layer)
    for one, other in zip(outputs_and_slopes(run), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
