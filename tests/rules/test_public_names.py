"""The names that users and files depend on."""

import difflib

import keras
import numpy as np
from public_names import SIGNATURES
from public_names import signatures

import keras_linrec


def public(module):
    return sorted(name for name in vars(module) if not name.startswith("_"))


def test_public_names_are_these():
    assert {
        "activations",
        "analysis",
        "config",
        "constraints",
        "initializers",
        "kernels",
        "layers",
        "models",
        "ops",
        "optimizers",
    } <= set(public(keras_linrec))
    classes = [n for n in public(keras_linrec.layers) if n[0].isupper()]
    assert classes == [
        "AntisymmetricRNN",
        "AntisymmetricRNNCell",
        "Bidirectional",
        "CausalConvolution",
        "DeltaNet",
        "LDStack",
        "LRU",
        "LSSL",
        "LinOSS",
        "LinearDynamicalSystem",
        "LipschitzRNN",
        "LipschitzRNNCell",
        "Mamba2",
        "MinGRU",
        "MinLSTM",
        "OrthogonalRNN",
        "OrthogonalRNNCell",
        "RGLRU",
        "RNN",
        "RotRNN",
        "S4D",
        "S5",
    ]
    functions = [
        name
        for name in public(keras_linrec.ops)
        if callable(getattr(keras_linrec.ops, name))
    ]
    assert functions == [
        "canonical_input",
        "causal_convolution",
        "complex_linear_scan",
        "leja_order",
        "linear_scan",
        "matrix_scan",
        "nonlinear_scan",
        "projected_scan",
        "reflection_product",
        "reflectors_of",
        "rotation_matrix",
        "symmetric_skew",
        "unitary_matrix",
    ]


def test_public_signatures_are_these():
    known = SIGNATURES.read_text().splitlines()
    changes = [*difflib.unified_diff(known, signatures(), lineterm="", n=0)]
    assert not changes, (
        "\n".join(changes) + "\nWhere it is meant: "
        "python tests/public_names.py --write, and a line in CHANGELOG.md"
    )


def test_classes_are_registered_under_the_packages_name():
    for cls in (
        keras_linrec.layers.AntisymmetricRNN,
        keras_linrec.layers.AntisymmetricRNNCell,
        keras_linrec.layers.Bidirectional,
        keras_linrec.layers.CausalConvolution,
        keras_linrec.layers.LDStack,
        keras_linrec.layers.LRU,
        keras_linrec.layers.LSSL,
        keras_linrec.layers.LinOSS,
        keras_linrec.layers.LinearDynamicalSystem,
        keras_linrec.layers.LipschitzRNN,
        keras_linrec.layers.LipschitzRNNCell,
        keras_linrec.layers.MinGRU,
        keras_linrec.layers.MinLSTM,
        keras_linrec.layers.OrthogonalRNN,
        keras_linrec.layers.OrthogonalRNNCell,
        keras_linrec.layers.RGLRU,
        keras_linrec.layers.DeltaNet,
        keras_linrec.layers.Mamba2,
        keras_linrec.layers.RNN,
        keras_linrec.layers.RotRNN,
        keras_linrec.layers.S4D,
        keras_linrec.layers.S5,
        keras_linrec.initializers.DecayLog,
        keras_linrec.initializers.FanInNormal,
        keras_linrec.initializers.HiPPO,
        keras_linrec.initializers.ReflectorPairs,
        keras_linrec.constraints.AccretiveBands,
        keras_linrec.constraints.Between,
        keras_linrec.constraints.ContractiveBands,
        keras_linrec.constraints.UnitReflectors,
        keras_linrec.constraints.Sign,
        keras_linrec.models.RecurrentBlock,
        keras_linrec.models.ResidualBlock,
        keras_linrec.models.SequenceClassifier,
        keras_linrec.models.SequenceRegressor,
        keras_linrec.optimizers.ParameterGroups,
    ):
        name = keras.saving.get_registered_name(cls)
        assert name == f"keras_linrec>{cls.__name__}"


def test_decays_near_one_are_finite_and_in_range():
    near = keras_linrec.initializers.DecayLog(1 - 1e-6, 1 - 1e-8, seed=1)
    values = keras.ops.convert_to_numpy(near((1000,))).astype("float64")
    lost = -np.expm1(-np.exp(values))
    assert 0.99e-8 < lost.min() < lost.max() < 1.01e-6


def test_initializers_are_read_back_from_their_configs():
    for initializer in (
        keras_linrec.initializers.DecayLog(0.2, 0.3, seed=1),
        keras_linrec.initializers.FanInNormal(axis=-1, seed=2),
        keras_linrec.initializers.ReflectorPairs(0.2, seed=3),
    ):
        config = keras.initializers.serialize(initializer)
        other = keras.initializers.deserialize(config)
        assert other.get_config() == initializer.get_config()
        values = keras.ops.convert_to_numpy(initializer((3, 4)))
        assert (keras.ops.convert_to_numpy(other((3, 4))) == values).all()
