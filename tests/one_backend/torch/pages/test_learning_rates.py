"""The example that compares learning rates, on a few short tones."""

import json
from importlib import import_module

import pytest

pytestmark = pytest.mark.rest


def test_every_rate_of_every_unit_is_in_table_file_and_plot(tmp_path, capsys):
    example = import_module("learning_rates")
    sizes = "--epochs 1 --steps 20 --tones 64 --seeds 1 --rates 1e-3 1e-2"
    chosen = ["--units", "rotrnn", "orthogonal_rnn", "--output", str(tmp_path)]
    example.main([*sizes.split(), *chosen])
    result = json.loads((tmp_path / "learning_rates.json").read_text())
    assert list(result["shares"]) == ["rotrnn", "orthogonal_rnn"]
    for shares in result["shares"].values():
        assert len(shares) == 2 and all(0 <= share <= 1 for share in shares)
    assert "| rotrnn | " in capsys.readouterr().out
    plot = tmp_path / "learning_rates.png"
    plot.unlink()
    example.main(["--plot-only", "--output", str(tmp_path)])
    assert plot.stat().st_size > 0
