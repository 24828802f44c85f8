"""Layers as modules that own their parameters: `keras_linrec.torch`."""

import copy
import io
import os
import pickle
import subprocess
import sys

import keras
import pytest
import torch
from selection import standing_for_all
from support import layer_module_worker
from support.model_cases import make_model
from support.units import UNITS
from support.units import outputs_of
from support.units import sequences
from torch.func import functional_call
from torch.nn.utils import parametrize

from keras_linrec import layers
from keras_linrec import models
from keras_linrec.torch import LayerModule

FEATURES = 3
OTHERS = {
    "dropout": lambda: UNITS["lru"](dropout=0.5),
    "both": lambda: layers.Bidirectional(UNITS["lssl"](), merge_mode="sum"),
    "cells": lambda: layers.RNN(
        [layers.OrthogonalRNNCell(4), layers.LipschitzRNNCell(3)]
    ),
    "block": lambda: models.ResidualBlock(UNITS["s5"](3), gated=True),
    "model": lambda: make_model(unit="rglru", normalization="batch"),
    "sequential": lambda: keras.Sequential(
        [UNITS["lru"](), keras.layers.Dense(2)]
    ),
}
MADE = {**UNITS, **OTHERS}
# The first compiles as `lru` does. In the others PyTorch cannot trace Keras.
NOT_COMPILED = ("dropout", "both", "cells", "sequential")
any_layer = pytest.mark.parametrize("kind", MADE)


def made(kind):
    """A module in the mode of inference, in which it gives the same twice."""
    return LayerModule(MADE[kind](), FEATURES).eval()


def inputs_of(time=5):
    return torch.tensor(sequences(time, features=FEATURES))


def detached(named):
    return {name: tensor.detach().clone() for name, tensor in named}


def loss_of(module, inputs):
    def loss(parameters):
        return functional_call(module, parameters, inputs).square().sum()

    return loss


def differ(one, other):
    return (one - other).abs().max() > 1e-4


def same(one, other, tolerance=1e-5):
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


# What it computes.


@any_layer
def test_outputs_are_those_of_the_layer(kind):
    layer = MADE[kind]()
    module = LayerModule(layer, FEATURES).eval()
    same(module(inputs_of()), layer(inputs_of()), 0)
    trained = {id(weight) for weight in layer.trainable_variables}
    assert len(list(module.parameters())) == len(trained)


@any_layer
def test_given_parameters_are_computed_with(kind):
    module, inputs = made(kind), inputs_of()
    doubled = {name: 2 * one for name, one in module.named_parameters()}
    got = functional_call(module, doubled, inputs)
    layer = module.keras_layer
    for weight in layer.trainable_variables:
        weight.assign(2 * weight)
    same(got, layer(inputs), 0)
    assert differ(got, module(inputs))


@any_layer
def test_the_gradient_of_a_function_is_that_of_backward(kind):
    module, inputs = made(kind), inputs_of()
    slopes = torch.func.grad(loss_of(module, inputs))(
        detached(module.named_parameters())
    )
    module(inputs).square().sum().backward()
    for name, parameter in module.named_parameters():
        scale = parameter.grad.abs().max()
        assert scale > 0, name
        same(slopes[name] / scale, parameter.grad / scale)


@any_layer
def test_stacked_modules_give_what_each_gives(kind):
    modules, inputs = [made(kind), made(kind)], inputs_of()
    stacked = torch.func.stack_module_state(modules)

    def call(*given):
        return functional_call(modules[0], given, inputs)

    outputs = torch.func.vmap(call)(*stacked)
    assert differ(*outputs)
    for got, module in zip(outputs, modules):
        same(got, module(inputs))


def test_arguments_of_a_call_reach_the_layer():
    layer = UNITS["lssl"](return_state=True)
    module, inputs = LayerModule(layer, FEATURES), inputs_of()
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 0, 1, 1, 0]], dtype=torch.bool)
    states = [torch.rand(2, *shape) for shape in layer.state_shapes]
    plain, *_ = module(inputs)
    for name, value in {
        "mask": mask,
        "reset_mask": mask,
        "time_deltas": torch.rand(2, 5),
        "initial_state": states,
    }.items():
        got = module(inputs, **{name: value})
        for one, other in zip(got, layer(inputs, **{name: value})):
            same(one, other, 0)
        assert differ(got[0], plain), name


def test_a_mask_is_not_handed_on():
    first = LayerModule(UNITS["lru"](), FEATURES)
    second = LayerModule(UNITS["lru"](), 4)
    mask = torch.arange(5).expand(2, 5) < 2
    outputs = first(inputs_of(), mask=mask)
    same(second(outputs), second(outputs.clone()), 0)
    assert differ(second(outputs), second(outputs, mask=mask))


def test_settings_of_the_layer_are_followed():
    module = made("lru")
    whole = module(inputs_of())
    module.keras_layer.return_sequences = False
    same(module(inputs_of()), whole[:, -1])


@pytest.mark.parametrize("kind", ["dropout", "model"])
def test_train_and_eval_switch_dropout(kind):
    model = make_model(unit="lru", dropout=0.5)
    layer = model if kind == "model" else MADE[kind]()
    module, inputs = LayerModule(layer, FEATURES), inputs_of()
    assert differ(module(inputs), module(inputs))
    assert differ(module(inputs), module.eval()(inputs))
    same(module(inputs), module(inputs), 0)
    assert differ(module(inputs), module(inputs, training=True))


def test_a_seed_is_in_a_buffer_and_moves_on():
    modules = [
        LayerModule(UNITS["lru"](dropout=0.5, seed=1), FEATURES)
        for _ in range(2)
    ]
    modules[1].load_state_dict(modules[0].state_dict())
    first, second = (modules[0](inputs_of()) for _ in range(2))
    assert differ(first, second)
    same(modules[1](inputs_of()), first, 0)


def test_statistics_of_batches_are_buffers():
    module = LayerModule(MADE["model"](), FEATURES)
    before = module.get_buffer("norm.moving_mean").clone()
    module(inputs_of())
    assert differ(module.state_dict()["norm.moving_mean"], before)


# States.


def test_a_stateful_layer_keeps_its_states_in_buffers():
    layer = UNITS["rotrnn"](stateful=True)
    module, inputs = LayerModule(layer, FEATURES, 2), inputs_of(6)
    whole = LayerModule(UNITS["rotrnn"](), FEATURES)
    whole.load_state_dict(module.state_dict())
    parts = torch.cat([module(inputs[:, :2]), module(inputs[:, 2:])], 1)
    same(parts, whole(inputs))
    assert all((state != 0).any() for state in module.buffers())
    module.reset_state()
    same(module(inputs), whole(inputs))
    # None of it happens in the layer.
    assert all((array == 0).all() for array in map(to_array, layer.states))


def to_array(variable):
    return keras.ops.convert_to_numpy(variable)


def test_gradients_of_a_stateful_layer_take_its_buffers():
    module = LayerModule(UNITS["lru"](stateful=True), FEATURES, 2)
    slopes, states = [], detached(module.named_buffers())

    def loss(parameters, buffers):
        given = parameters, buffers
        return functional_call(module, given, inputs_of()).square().sum()

    for _ in range(2):
        parameters = detached(module.named_parameters())
        slopes.append(torch.func.grad(loss)(parameters, states)["nu_log"])
    assert differ(*slopes)


# Names, and states of modules.


@any_layer
def test_a_second_instance_loads_the_state_of_the_first(kind):
    first, second = made(kind), made(kind)
    assert first.keras_layer.name != second.keras_layer.name
    inputs = inputs_of()
    assert differ(first(inputs), second(inputs))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file))
    same(second(inputs), first(inputs), 0)


@any_layer
def test_names_of_a_layers_weights_are_short(kind):
    module = made(kind)
    weights = {weight.name for weight in module.keras_layer.weights}
    assert {name.split(".")[-1] for name in module.state_dict()} == weights
    if kind in UNITS:
        assert set(module.state_dict()) == weights


def test_names_are_those_of_attributes():
    assert list(made("both").state_dict())[:1] == [
        "forward_layer.log_timescale"
    ]
    assert "cell.cells.1.kernel" in made("cells").state_dict()
    assert "layers.0.nu_log" in made("sequential").state_dict()
    model = make_model(unit="lru", dropout=0.1, gated=True, num_layers=1)
    model = LayerModule(model, FEATURES)
    assert {name.rpartition(".")[0] for name in model.state_dict()} == {
        "encoder",
        "blocks.0.unit",
        "blocks.0.norm",
        "blocks.0.value_dense",
        "blocks.0.gate_dense",
        "norm",
        "head",
    }


@any_layer
def test_copies_and_pickles_are_modules_of_their_own(kind):
    module, inputs = made(kind), inputs_of()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.1)
    expected = module(inputs)
    others = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    for other in others:
        same(other(inputs), expected, 0)


# Training.


@pytest.mark.parametrize("kind", ["rotrnn", "model"])
def test_an_optimizer_trains_the_module_and_not_the_layer(kind):
    layer, inputs = MADE[kind](), inputs_of()
    module = LayerModule(layer, FEATURES).eval()
    before = outputs_of(layer, sequences(5))
    optimizer = torch.optim.Adam(module.parameters(), 0.05)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        losses.append(module(inputs)[..., 0].square().mean())
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    same(layer(inputs), torch.tensor(before), 0)
    assert module.to_keras() is layer
    same(layer(inputs), module(inputs), 0)


def test_frozen_weights_are_buffers():
    layer = UNITS["lssl"](trainable_transition=False)
    module = LayerModule(layer, FEATURES)
    assert "transition_p" in dict(module.named_buffers())
    assert "transition_p" in module.state_dict()
    layer = UNITS["lru"](trainable=False)
    assert not list(LayerModule(layer, FEATURES).parameters())


def test_losses_are_returned_where_they_are_wanted():
    penalty = keras.regularizers.L2(0.5)
    layer = UNITS["min_gru"](
        kernel_regularizer=penalty, activity_regularizer=penalty
    )
    module, inputs = LayerModule(layer, FEATURES), inputs_of()
    outputs, losses = module(inputs, return_losses=True)
    same(outputs, module(inputs), 0)
    expected = 0.25 * outputs.square().sum()
    expected += 0.5 * module.kernel.square().sum()
    expected += 0.5 * module.gate_kernel.square().sum()
    same(sum(losses), expected)
    sum(losses).backward()
    assert (module.kernel.grad != 0).all()


def test_constraints_hold_once_they_are_applied():
    constraint = keras.constraints.MaxNorm(0.1)
    module = LayerModule(UNITS["lru"](kernel_constraint=constraint), FEATURES)
    untouched = module.nu_log.detach().clone()
    assert module.input_real.norm(dim=0).max() > 0.11
    module.constrain()
    assert module.input_real.norm(dim=0).max() < 0.1001
    same(module.nu_log, untouched, 0)


def test_constraints_leave_frozen_and_computed_weights_alone():
    constraint = keras.constraints.MaxNorm(0.01)
    frozen = LayerModule(
        layers.LRU(4, kernel_constraint=constraint, trainable=False), 3
    )
    computed = LayerModule(layers.LRU(4, kernel_constraint=constraint), 3)
    parametrize.register_parametrization(computed, "input_real", Doubled())
    for module in (frozen, computed):
        before = module.input_real.detach().clone()
        module.constrain()
        torch.testing.assert_close(module.input_real.detach(), before)


def test_a_copy_of_a_parametrized_module_has_weights_of_its_own():
    module = LayerModule(layers.LRU(4), 3)
    parametrize.register_parametrization(module, "feedthrough", Doubled())
    copied = copy.deepcopy(module)
    inputs = inputs_of()
    torch.testing.assert_close(copied(inputs), module(inputs))
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert not copied(inputs).any() and module(inputs).any()


def test_states_of_parts_are_reset():
    unit = layers.RotRNN(4, state_size=4, num_heads=2, stateful=True)
    module = LayerModule(keras.Sequential([unit]), 3, batch_size=2)
    first, second = module(inputs_of()[:2]), module(inputs_of()[:2])
    assert differ(first, second)
    module.reset_state()
    torch.testing.assert_close(module(inputs_of()[:2]), first)
    for layer in (keras.layers.Dense(2), layers.LRU(2)):
        with pytest.raises(ValueError, match="Only a stateful layer"):
            LayerModule(layer, FEATURES).reset_state()


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize(
    "kind, path, name",
    [("lru", "", "feedthrough"), ("model", "head", "kernel")],
)
def test_a_parametrization_is_computed_with(kind, path, name):
    module, inputs = made(kind), inputs_of()
    full = f"{path}.{name}".strip(".")
    given = {full: 3 * module.get_parameter(full)}
    expected = functional_call(module, given, inputs)
    with torch.no_grad():
        module.get_parameter(full).mul_(1.5)
    assert differ(module(inputs), expected)
    parametrize.register_parametrization(
        module.get_submodule(path), name, Doubled()
    )
    same(module(inputs), expected)


@pytest.mark.parametrize(
    "kind",
    standing_for_all(
        [kind for kind in MADE if kind not in NOT_COMPILED],
        ("lru", "model"),
        (),
    ),
)
def test_a_module_compiles_in_one_graph_with_its_gradients(kind):
    module, inputs = made(kind), inputs_of()
    options = {"mask": torch.tensor([[True] * 3 + [False] * 2, [True] * 5])}
    if kind == "block":
        # Within it, Keras attaches the mask to the outputs of the unit.
        options = {}
    torch._dynamo.reset()
    run = torch.compile(module, fullgraph=True, backend="aot_eager")

    def results(function):
        module.zero_grad()
        outputs = function(inputs, **options)
        outputs.square().sum().backward()
        return [outputs, *(one.grad for one in module.parameters())]

    # Not after an eager call, which would import what the compiler cannot.
    got = results(run)
    for one, other in zip(got, results(module), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# Dtypes and devices.


@any_layer
def test_other_dtypes_are_refused_before_anything_changes(kind):
    module = made(kind)
    expected = module(inputs_of())
    for convert in (
        module.double,
        module.half,
        module.bfloat16,
        lambda: module.to(torch.float64),
        torch.nn.Sequential(module).double,
    ):
        with pytest.raises(ValueError, match='dtype="float64" for float64'):
            convert()
    same(module.float().to("cpu", torch.float32)(inputs_of()), expected, 0)


def test_the_layers_dtype_is_the_modules():
    double = LayerModule(UNITS["lru"](dtype="float64"), FEATURES).double()
    assert double(inputs_of()).dtype == torch.float64
    parameters = tuple(double.parameters())
    names = [name for name, _ in double.named_parameters()]
    assert torch.autograd.gradcheck(
        lambda *given: functional_call(
            double, dict(zip(names, given)), inputs_of(2)
        ),
        parameters,
    )
    with pytest.raises(ValueError, match="Received: dtype=torch.float32"):
        double.float()
    mixed = LayerModule(UNITS["lru"](dtype="mixed_bfloat16"), FEATURES)
    assert mixed(inputs_of()).dtype == torch.bfloat16
    assert mixed.nu_log.dtype == torch.float32


def test_parameters_of_another_dtype_are_refused_at_a_call():
    module = made("lru")
    given = {name: one.double() for name, one in module.named_parameters()}
    with pytest.raises(ValueError, match="Received: dtype=torch.float64"):
        functional_call(module, given, inputs_of())


def test_a_module_goes_to_another_device():
    module, inputs = made("lssl"), inputs_of()
    values = copy.deepcopy(module.state_dict())
    expected = module(inputs)
    module.to("meta")
    assert module(inputs.to("meta")).is_meta
    module.to_empty(device="cpu").load_state_dict(values)
    same(module(inputs), expected, 0)


# Errors, and what it says of itself.


def test_arguments_are_checked(monkeypatch):
    for layer in (layers.LRU, "lru", torch.nn.Linear(3, 4)):
        with pytest.raises(ValueError, match="`layer` should be a layer of"):
            LayerModule(layer, FEATURES)
    with pytest.raises(ValueError, match="`layer` should have weights"):
        LayerModule(keras.layers.ReLU(), FEATURES)
    for wrong in (0, 2.0, None, True):
        with pytest.raises(ValueError, match="`num_features` should be a pos"):
            LayerModule(UNITS["lru"](), wrong)
    with pytest.raises(ValueError, match="`batch_size` should be a positive"):
        LayerModule(UNITS["lru"](), FEATURES, 0)
    with pytest.raises(ValueError, match="needs a fixed batch size"):
        LayerModule(UNITS["lru"](stateful=True), FEATURES)
    with pytest.raises(ValueError, match="Only a stateful layer"):
        made("lru").reset_state()
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="Received: backend=jax"):
        LayerModule(UNITS["lru"](), FEATURES)


@pytest.mark.parametrize("kind", ["lru", "orthogonal_rnn", "model"])
def test_another_number_of_features_is_refused(kind):
    layer, inputs = MADE[kind](), torch.rand(2, 4, 5)
    layer(inputs)
    with pytest.raises(ValueError, match="is built, 5. Received: num_features"):
        LayerModule(layer, FEATURES)
    same(LayerModule(layer, 5).eval()(inputs), layer(inputs), 0)
    with pytest.raises(ValueError, match="features|axis -1"):
        made(kind)(inputs)


def test_a_module_says_what_it_is():
    assert repr(made("lru")) == (
        "LayerModule(LRU, num_features=3, dtype=float32)"
    )


# Programs of their own.


def run(*command):
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    finished = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]


@pytest.mark.rest
def test_the_package_does_not_import_it():
    program = "import sys, keras_linrec; sys.exit('%s' in sys.modules)"
    run("-c", program % "keras_linrec.torch")


@pytest.mark.rest
def test_two_processes_train_what_one_trains(tmp_path):
    file = tmp_path / "trained.pt"
    torchrun = "-m", "torch.distributed.run", "--standalone"
    run(*torchrun, "--nproc-per-node", 2, layer_module_worker.__file__, file)
    results = torch.load(file)
    for name in layer_module_worker.LAYERS:
        alone = layer_module_worker.trained(
            layer_module_worker.network_of(name)
        )
        for kind in ("ddp", "fsdp"):
            torch.testing.assert_close(
                results[name][kind],
                alone,
                rtol=0,
                atol=1e-6,
                msg=lambda text, at=(name, kind): f"{at}: {text}",
            )
