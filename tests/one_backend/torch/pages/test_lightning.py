"""The page's module of Lightning trains, and comes back from a checkpoint."""

import pytest
from support import DOCS
from support import pages

pytestmark = [
    pytest.mark.rest,
    # Of a data loader without workers, and of Lightning's own imports.
    pytest.mark.filterwarnings("ignore"),
]


def test_the_block_about_lightning_runs(tmp_path, monkeypatch):
    pytest.importorskip("lightning", reason="it is an extra of the tests")
    monkeypatch.chdir(tmp_path)
    page = DOCS / "guides/training_loop.md"
    (code,) = (c for _, c in pages.blocks(page) if "import lightning" in c)
    # Its last line compares the module with the one of the checkpoint.
    exec(compile(code, str(page), "exec"), {})
    assert (tmp_path / "classifier.ckpt").exists()
