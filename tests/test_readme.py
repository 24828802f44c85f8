"""The README's examples run as they stand."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_readmes_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(blocks) >= 4
    names = {}
    for block in blocks:
        # One after another, as a reader would type them.
        exec(compile(block, str(README), "exec"), names)
    assert names["outputs"].shape == (2, 10_000, 64)


def test_the_changelog_knows_this_version():
    import keras_linrec

    changes = (README.parent / "CHANGELOG.md").read_text()
    assert f"## {keras_linrec.__version__}" in changes
