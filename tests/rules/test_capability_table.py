"""The marks of the table of `docs/capabilities.md`."""

import json

import capabilities
import pytest
from support import ROOT

DELTAS = capabilities.DELTAS


def test_a_cell_says_whether_a_layer_lacks_a_capability_or_a_test(tmp_path):
    everywhere = list(capabilities.BACKENDS)
    (tmp_path / "1.json").write_text(
        json.dumps(
            [
                [DELTAS, ["lssl"], everywhere, True],
                [DELTAS, ["s5"], ["jax", "torch"], True],
                ["`stateful`", ["lssl"], everywhere, False],
            ]
        )
    )
    begin, end = capabilities.BEGIN, capabilities.END
    table = f"{begin}\n{capabilities.table(tmp_path)}\n{end}"
    cells = capabilities.cells(table)
    assert cells[DELTAS, "`LSSL`"] == "yes"
    assert cells[DELTAS, "`S5`"] == "JAX, PyTorch"
    assert cells[DELTAS, "`S4D`"] == "untested"
    assert cells[DELTAS, "`RotRNN`"] == "n/a"
    assert cells["`stateful`", "`LSSL`"] == "untested"
    # What did not run again stays.
    (tmp_path / "1.json").unlink()
    assert (
        capabilities.cells(
            f"{begin}\n{capabilities.table(tmp_path, table)}\n{end}"
        )
        == cells
    )


def test_what_a_layer_lacks_shows_in_no_test():
    with pytest.raises(ValueError, match="it passes under JAX"):
        capabilities.shown_cell(["JAX"], absent=True)


def test_every_cell_of_the_page_has_a_mark():
    page = (ROOT / "docs" / "capabilities.md").read_text()
    titles = set(capabilities.BACKENDS.values())
    marks = {"yes", capabilities.ABSENT_MARK, capabilities.UNTESTED_MARK}
    for cell in capabilities.cells(page).values():
        assert cell in marks or set(cell.split(", ")) < titles
