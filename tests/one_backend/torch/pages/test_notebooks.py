"""The notebooks that `release/notebooks.py` makes of the guides."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module

import pytest
from support import DOCS
from support import ROOT
from support import pages

pytestmark = pytest.mark.rest

GUIDES = [
    DOCS / "guides" / "tour.md",
    *sorted((DOCS / "guides" / "tasks").glob("*.md")),
]
KEYS = {"cell_type", "id", "metadata", "source"}
PAGE = """\
---
render_macros: true
---

# A page

With {{ formula("h_t") }}, [a link](tour.md#a-part) and <https://example.org>.

```python
import os

value = 2
```

<!-- tests: 2 -> 3 -->

```{.python .not-run}
--8<-- "examples/edge/digits_onnx.py"
```

```python
assert value == 2 and os.environ["KERAS_BACKEND"] == "torch"
print("ran")
```
"""


@pytest.fixture
def notebooks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "release"))
    yield import_module("notebooks")
    del sys.modules["notebooks"]


def sources(notebook, kind):
    return [
        "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == kind
    ]


def assert_valid(notebook):
    """What format 4.5 asks for, and what nbformat says, where there is one."""
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    for cell in notebook["cells"]:
        more = {"execution_count", "outputs"}
        is_code = cell["cell_type"] == "code"
        assert set(cell) == (KEYS | more if is_code else KEYS)
        assert all(isinstance(line, str) for line in cell["source"])
    try:
        import nbformat
    except ImportError:
        return
    nbformat.validate(notebook)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_the_cells_of_a_notebook_are_the_blocks_of_its_page(notebooks, guide):
    assert guide in notebooks.GUIDES
    made = notebooks.notebook(guide)
    assert_valid(made)
    setup, *codes = sources(made, "code")
    blocks = [
        code.strip("\n")
        for kind, code in pages.blocks(guide)
        if kind == pages.RUN
    ]
    assert codes == blocks
    assert ("nlp" in setup) == any("import nlp" in code for code in blocks)
    text = "\n".join(sources(made, "markdown"))
    assert "{{" not in text and "<!--" not in text and "--8<--" not in text
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if ":" not in link:
            assert (ROOT / link.partition("#")[0]).exists(), link


def test_a_notebook_runs_from_its_first_cell_to_its_last(
    notebooks, tmp_path, monkeypatch
):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    program = tmp_path / "examples" / "edge" / "digits_onnx.py"
    program.parent.mkdir(parents=True)
    program.write_text("raise SystemExit\n")
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(PAGE)
    made = notebooks.notebook(page)
    assert_valid(made)
    text = "\n".join(sources(made, "markdown"))
    assert "With `h_t`, [a link](docs/tour.md#a-part) and <https" in text
    assert "```python\nraise SystemExit\n" in text
    assert "render_macros" not in text and "tests:" not in text
    install, *rest = "\n".join(sources(made, "code")).splitlines()
    assert install == '%pip install --quiet ".[jax]"'
    output = subprocess.run(
        [sys.executable, "-c", "\n".join(rest)],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
    )
    assert output.stdout == "ran\n", output.stderr


def test_a_built_page_has_a_link_to_its_notebook_once(notebooks, tmp_path):
    for guide in GUIDES:
        path = guide.relative_to(DOCS).with_suffix("") / "index.html"
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("<h1>Title</h1><p>Text</p>")
    notebooks.write(tmp_path)
    notebooks.write(tmp_path)
    built = tmp_path / "guides" / "tasks" / "text"
    text = (built / "index.html").read_text()
    (target,) = re.findall(r'href="(.*?)"', text)
    assert text.startswith("<h1>Title</h1><p><a ")
    assert_valid(json.loads((built / target).read_text()))
