"""`torch.compile` takes every unit in one graph."""

import pytest
import torch
from selection import WEEKLY
from selection import standing_for_all
from support.units import UNITS
from support.units import randomise
from support.units import sequences

from keras_linrec.layers import LSSL

pytestmark = pytest.mark.rest


@pytest.fixture(autouse=True)
def anew():
    """The compiler takes a function for eight layers, and no more."""
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a")
@pytest.mark.parametrize(
    "name",
    standing_for_all(
        UNITS, ("orthogonal_rnn", "lipschitz_rnn", "lru", "lssl"), (), WEEKLY
    ),
)
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

    # Not after an eager call, which would import what the compiler cannot.
    got = outputs_and_slopes(run)
    for one, other in zip(got, outputs_and_slopes(layer), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_steps_of_any_length_compile_for_any_number_of_them():
    layer = LSSL(3, state_size=4)
    run = torch.compile(
        lambda x, steps: layer(x, time_deltas=steps),
        fullgraph=True,
        dynamic=True,
        backend="eager",
    )
    for time in (7, 12):
        given = torch.rand(2, time, 3), torch.rand(2, time)
        expected = layer(given[0], time_deltas=given[1])
        torch.testing.assert_close(run(*given), expected)
