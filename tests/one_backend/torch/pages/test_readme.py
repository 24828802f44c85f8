"""The README's examples run as they stand."""

from support import ROOT
from support import pages

README = ROOT / "README.md"


def test_the_readmes_examples_run():
    languages = [language for language, _ in pages.blocks(README)]
    assert languages.count(pages.RUN) == 2
    names = pages.run(README)
    assert names["output"].shape == (16, 8)


def test_the_changelog_has_this_version():
    import keras_linrec

    changes = (README.parent / "CHANGELOG.md").read_text()
    assert f"## {keras_linrec.__version__}" in changes
