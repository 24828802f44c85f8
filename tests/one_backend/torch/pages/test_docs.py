"""The pages of `docs/`: their code runs, and the names and messages exist."""

import ast
import re
import sys
from importlib import import_module

import pytest
from public_names import public_names
from support import DOCS
from support import ROOT
from support import pages

import keras_linrec

pytestmark = pytest.mark.rest

PAGES = sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if pages.has_code(page)],
    ids=lambda page: page.stem,
)
def test_the_examples_of_a_page_run(page):
    pages.run(page)


def test_every_block_of_a_page_has_a_known_language():
    for page in PAGES:
        unknown = {kind for kind, _ in pages.blocks(page)} - pages.LANGUAGES
        assert not unknown, page


def test_the_menu_has_every_page_once():
    # "- guides/tour.md", or "- Home: index.md".
    line = r"^ +- (?:[A-Z][\w ]*: )?(\S+\.md)$"
    menu = re.findall(line, (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(menu) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_every_link_within_the_repository_leads_somewhere():
    readers = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *PAGES]
    for page in readers:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = link.partition("#")
            if ":" in path:
                continue
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), (page, link)
            assert not anchor or anchor in anchors(target), (page, link)


def anchors(page):
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    words = [re.sub(r"[^\w\s-]", "", heading).lower() for heading in headings]
    return {re.sub(r"[\s-]+", "-", text.strip()) for text in words}


def test_every_example_is_in_the_gallery():
    gallery = [DOCS / "examples.md", *DOCS.glob("examples/*.md")]
    pages_of_examples = [*gallery, *DOCS.glob("guides/tasks/*.md")]
    shown = "".join(page.read_text() for page in pages_of_examples)
    index = (ROOT / "examples" / "README.md").read_text()
    for script in (ROOT / "examples").glob("*.py"):
        if "__main__" in script.read_text():
            assert f"examples/{script.name}" in shown, script
            assert script.name in index + shown, script


def test_nothing_is_installed_from_an_index_that_does_not_have_it():
    readers = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
    for folder in ("keras_linrec", "kernels", "examples", "benchmarks"):
        readers += (ROOT / folder).rglob("*.py")
    for path in readers:
        lines = re.findall(r"pip install [^`\n]*", path.read_text())
        by_name = [line for line in lines if re.search("keras.linrec", line)]
        assert all(".whl" in line for line in by_name), path


def test_every_public_name_is_in_the_reference():
    documented = set()
    for page in (DOCS / "api").rglob("*.md"):
        documented |= set(re.findall(r"^::: (\S+)", page.read_text(), re.M))
    shown = {identity(resolve(name)) for name in documented}
    missing = [
        name for name, value in public_names() if identity(value) not in shown
    ]
    assert not missing


def resolve(path):
    """The object at a dotted path."""
    value, seen = keras_linrec, "keras_linrec"
    for name in path.split(".")[1:]:
        seen = f"{seen}.{name}"
        # Doctests import modules without making them attributes.
        if not hasattr(value, name):
            import_module(seen)
        value = getattr(value, name, sys.modules.get(seen))
    return value


def identity(value):
    """What tells values apart, though doctests import modules a second time."""
    if hasattr(value, "__qualname__"):
        return value.__module__, value.__qualname__
    return id(value)


def test_messages_in_the_docs_are_those_of_the_code():
    limits = [DOCS / "limits.md", *DOCS.glob("limits/*.md")]
    blocks = [block for page in limits for block in pages.blocks(page)]
    texts = [code for kind, code in blocks if kind == "text"]
    assert len(texts) >= 10
    patterns = list(message_patterns())
    for text in texts:
        message = re.sub(r"^\w+(Error|Warning): ", "", " ".join(text.split()))
        assert any(
            longest in message and pattern.fullmatch(message)
            for longest, pattern in patterns
        ), message


def message_patterns():
    """`(longest piece, pattern)` of each string in the package.

    The pattern matches any text in place of an f-string's expressions.
    """
    for folder in ("keras_linrec", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                parts = getattr(node, "values", [node])
                pieces = [
                    part.value if isinstance(part, ast.Constant) else None
                    for part in parts
                ]
                longest = max(
                    (piece for piece in pieces if isinstance(piece, str)),
                    key=len,
                    default="",
                )
                # Short pieces occur in many messages.
                if len(longest) >= 15:
                    yield longest, _pattern(pieces)


def _pattern(pieces):
    escaped = (
        re.escape(piece) if isinstance(piece, str) else ".*" for piece in pieces
    )
    return re.compile("".join(escaped))
