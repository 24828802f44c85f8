"""The models of `docs/results` whose tests need no file, measured again."""

import pytest
import reproduce
from recipes import verification
from recipes.table import RECIPES

pytestmark = pytest.mark.rest

# Tasks that draw their sequences.
DRAWN = {"addition", "copy_memory"}
NAMES = sorted(
    path.stem
    for path in reproduce.RESULTS.glob("*.keras")
    if RECIPES[path.stem].task in DRAWN
)


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_model_has_its_recorded_figure_here(name, capsys):
    options = reproduce.parse(["--verify", name])
    assert verification.verify(name, RECIPES[name], options)
    assert "the same figure" in capsys.readouterr().out
