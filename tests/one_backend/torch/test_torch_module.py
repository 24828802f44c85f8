"""Layers as modules in a program of plain PyTorch."""

import copy
import io
import warnings

import keras
import numpy as np
import pytest
from support.model_cases import make_model
from support.units import UNITS
from support.units import sequences

from keras_linrec import layers
from keras_linrec import models

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="Keras layers are modules there"
)
MADE = {
    "rotrnn": UNITS["rotrnn"],
    "orthogonal_rnn": UNITS["orthogonal_rnn"],
    "dropout": lambda: UNITS["lru"](dropout=0.5),
    "both": lambda: layers.Bidirectional(UNITS["lru"](), merge_mode="sum"),
    "block": lambda: models.ResidualBlock(UNITS["lru"](3), gated=True),
    "model": lambda: make_model(unit="rotrnn"),
}
UNBUILT = "has no weights yet"


class Net(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.head = torch.nn.LazyLinear(2)

    def forward(self, inputs):
        return self.head(self.layer(inputs))


@pytest.mark.parametrize("kind", [k for k in MADE if k != "model"])
def test_an_optimizer_of_an_unbuilt_layer_is_warned_of(kind):
    net = Net(MADE[kind]())
    for ask in (net.parameters, net.named_parameters, net.layer.parameters):
        with pytest.warns(UserWarning, match=UNBUILT):
            list(ask())


@pytest.mark.parametrize("kind", MADE)
def test_nothing_else_is(kind):
    net = Net(MADE[kind]())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{UNBUILT}")
        list(net.modules())
        list(net.named_modules())
        net.state_dict()
        net.to("cpu").train().eval().apply(lambda module: None)
        copy.deepcopy(net)
        net(torch.tensor(sequences(5)))
        list(net.parameters())


@pytest.mark.parametrize("kind", MADE)
def test_a_layer_that_is_built_first_trains_whole(kind):
    net = Net(MADE[kind]())
    net.layer.build((None, None, 3))
    inputs = torch.tensor(sequences(5))
    net.head.initialize_parameters(net.layer(inputs))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    before = [np.array(weight) for weight in net.layer.get_weights()]
    net(inputs).square().sum().backward()
    optimizer.step()
    moved = [
        (old != new).any() for old, new in zip(before, net.layer.get_weights())
    ]
    trained = [weight.trainable for weight in net.layer.weights]
    # A kernel that multiplies zero states may stay; all others move.
    assert sum(moved) >= sum(trained) - 2 and any(moved)


@pytest.mark.parametrize("kind", MADE)
def test_a_second_instance_loads_the_state_of_the_first(kind):
    nets = [Net(MADE[kind]()) for _ in range(2)]
    inputs = torch.tensor(sequences(5))
    first, second = (net(inputs).detach() for net in nets)
    assert (first - second).abs().max() > 1e-4
    file = io.BytesIO()
    torch.save(nets[0].state_dict(), file)
    file.seek(0)
    nets[1].load_state_dict(torch.load(file), strict=True)
    torch.testing.assert_close(nets[1](inputs), first)
    # And its own, as before.
    nets[1].load_state_dict(nets[1].state_dict(), strict=True)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        other = dict(nets[0].state_dict())
        other["layer._torch_params.none/such"] = torch.zeros(1)
        nets[1].load_state_dict(other)
