"""The example that plots the norms of hidden states, on tiny data."""

import csv
from importlib import import_module

import keras
import numpy as np
import pytest
from support.units import array

pytestmark = [pytest.mark.rest, pytest.mark.weekly("jax", "tensorflow")]


def test_norms_are_measured_before_training_and_during_it(tmp_path, capsys):
    example = import_module("state_norms")
    sizes = ["--layers", "2", "--units", "4", "--state-size", "8"]
    sizes += ["--iterations", "4", "--interval", "2", "--seeds", "2"]
    sizes += ["--train-size", "16", "--batch-size", "4"]
    curves = example.main([*sizes, "--output", str(tmp_path)])
    for norms in curves.values():
        # Seeds, measurements, layers.
        assert norms.shape == (2, 3, 2)
        assert (norms > 0).all()
        assert (norms[0] != norms[1]).all()
        assert (norms[:, 0] != norms[:, -1]).all()
    assert (tmp_path / "state_norms.png").stat().st_size > 0
    with open(tmp_path / "state_norms.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 3 * 2
    assert {row["iteration"] for row in rows} == {"0", "2", "4"}
    assert "RotRNN, layer 2: " in capsys.readouterr().out


def test_norms_are_those_of_the_states_of_each_layer():
    example = import_module("state_norms")
    keras.utils.set_random_seed(0)
    options = example.parse(
        ["--layers", "1", "--units", "3", "--state-size", "4"]
    )
    sequences = np.random.default_rng(0).random((5, 16, 1), "float32")
    for unit in example.UNITS.values():
        model = example.build_model(options, unit, classes=2)
        model.build(sequences.shape)
        (got,) = example.state_norms(model, sequences)
        states, norms = model.get_initial_state(5), []
        for step in range(16):
            _, states = model.step(sequences[:, step], states)
            numbers = np.concatenate([array(s) for s in states[0]], axis=-1)
            norms.append(np.sqrt(np.square(numbers).sum(axis=-1)).mean())
        # Of 16 steps every second one is measured.
        assert np.allclose(got, np.mean(norms[1::2]), rtol=1e-4)
