"""Notebooks of the guides, for the built site.

    python release/notebooks.py site

writes `site/notebooks/NAME.ipynb` for the tour and each guide of a task, and
adds a link to it to the guide's page. A Python block that the tests of pages
run is a cell of code; all else is text. The notebook is to lie in the folder of
a clone: it installs the package from there, and its links lead into the clone.
"""

import html
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = (
    DOCS / "guides" / "tour.md",
    *sorted((DOCS / "guides" / "tasks").glob("*.md")),
)

_FRONT = re.compile(r"\A---\n.*?^---\n+", re.M | re.S)
_SNIPPET = re.compile(r'^--8<-- "(.*?)"$', re.M)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
_NOT_RUN = re.compile(r"^```\{\.python [^}]*\}$", re.M)
_REPLACEMENTS = re.compile(r"^<!-- tests: .*? -->$", re.M)
_FORMULA = re.compile(r'\{\{ formula\("(.*?)"\) \}\}')
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")

_BEFORE = """\
This notebook is made from `{page}`. Keep it in the folder of a clone of the
repository: the first cell installs the package from there, and links lead to
files of the clone."""
_SETUP = """\
%pip install --quiet ".[{extras}]"

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or "tensorflow", "torch\""""


def notebook(page):
    """The content of a notebook, of format 4.5."""
    text = with_snippets(_FRONT.sub("", page.read_text()))
    # Text and blocks of code take turns.
    texts_and_codes = _BLOCK.split(text)
    cells = [("markdown", _BEFORE.format(page=page.relative_to(ROOT)))]
    cells.append(("code", setup(texts_and_codes[1::2])))
    for place, part in enumerate(texts_and_codes):
        if place % 2:
            cells.append(("code", part.strip("\n")))
        elif prose := plain(part, page.parent):
            cells.append(("markdown", prose))
    return {
        "cells": [cell(place, *parts) for place, parts in enumerate(cells)],
        "metadata": {
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def with_snippets(text):
    """A page with the programs that it takes from files."""
    return _SNIPPET.sub(lambda found: (ROOT / found[1]).read_text(), text)


def setup(codes):
    extras = ["jax"]
    if any("from keras_linrec import nlp" in code for code in codes):
        extras.append("nlp")
    return _SETUP.format(extras=",".join(extras))


def plain(text, folder):
    """Markdown as notebooks show it, with links from the root of a clone."""

    def link(found):
        target = os.path.relpath(folder / found[1], ROOT)
        return f"]({Path(target).as_posix()})"

    text = _NOT_RUN.sub("```python", _REPLACEMENTS.sub("", text))
    text = _FORMULA.sub(r"`\1`", text)
    return re.sub(r"\n{3,}", "\n\n", _LINK.sub(link, text)).strip("\n")


def cell(place, kind, source):
    made = {
        "cell_type": kind,
        "id": f"cell-{place}",
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    if kind == "code":
        made |= {"execution_count": None, "outputs": []}
    return made


def write(site):
    """Write the notebooks of a built site, and link its pages to them."""
    folder = site / "notebooks"
    folder.mkdir(exist_ok=True)
    for page in GUIDES:
        path = folder / f"{page.stem}.ipynb"
        path.write_text(json.dumps(notebook(page), indent=1) + "\n")
        built = site / page.relative_to(DOCS).with_suffix("") / "index.html"
        built.write_text(linked(built, path))


def linked(page, target):
    """The HTML of a page with a link to its notebook below the heading."""
    text = page.read_text()
    address = html.escape(Path(os.path.relpath(target, page.parent)).as_posix())
    link = f'<p><a href="{address}" download>This page as a notebook</a></p>'
    # Once, however often.
    text = text.replace(link, "")
    heading, rest = text.split("</h1>", 1)
    return f"{heading}</h1>{link}{rest}"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
