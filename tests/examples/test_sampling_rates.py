"""The example of sampling rates, on short sounds."""

import numpy as np
import pytest
import sampling_rates

pytestmark = [pytest.mark.rest, pytest.mark.weekly("jax", "tensorflow")]


@pytest.fixture
def example(monkeypatch):
    monkeypatch.setattr(sampling_rates, "RATE", 64)
    return sampling_rates


def test_every_kind_of_sound_is_made(example):
    waves, kinds = example.sounds(100, np.random.default_rng(0))
    assert waves.shape == (100, 64, 1) and np.isfinite(waves).all()
    assert set(kinds) == set(range(len(example.KINDS)))


def test_dropped_steps_leave_their_time_to_the_next(example, monkeypatch):
    seen = []

    def accuracy(model, sequences, kinds, time_deltas=None):
        seen.append((sequences, time_deltas))
        return 0.0

    monkeypatch.setattr(example, "accuracy", accuracy)
    generator = np.random.default_rng(0)
    waves, kinds = example.sounds(5, generator)
    example.with_steps_dropped(None, waves, kinds, 0.7, generator)
    (plain, nothing), (told, time_deltas) = seen
    assert nothing is None and (plain == told).all()
    assert told.shape == (5, 19, 1) and time_deltas.shape == (5, 19)
    last = time_deltas.sum(axis=1).astype(int) - 1
    assert (told[:, -1] == waves[np.arange(5), last]).all()


def test_it_runs_to_its_table(example, capsys, tmp_path):
    sizes = ["--train-size", "32", "--test-size", "16", "--epochs", "1"]
    table = example.main([*sizes, "--output", str(tmp_path)])
    assert [row[0] for row in table][:2] == [
        "as in training",
        "half the sampling rate",
    ]
    assert len(table) == 2 + len(example.DROPPED)
    assert "70% of the steps dropped" in capsys.readouterr().out
    assert (tmp_path / "sampling_rates.png").stat().st_size > 0
