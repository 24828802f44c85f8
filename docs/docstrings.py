"""What the reference wants of docstrings that griffe does not do itself.

An extension of griffe, which reads the package without importing it: it turns
the sections of a docstring into Markdown, as they stand, and has the kernels,
which lie in a folder of their own, where they are installed.
"""

import re

import griffe

_HEADING = re.compile(r"^([A-Z][a-z]+(?: [a-z]+)?):(?: (.*))?$")
# Sections whose entries are "name: what it is".
_LISTS = {"Args", "Attributes", "Call arguments", "Raises"}
_SECTIONS = _LISTS | {"Output", "Output shape", "Reference", "Returns"}
_NAMES = re.compile(r"(\*{0,2}[A-Za-z_]\w*)")


class Docstrings(griffe.Extension):
    """Docstrings as Markdown, and `keras_linrec.kernels` in its place."""

    def on_object(self, *, obj, **_):
        # One may come here as a member of its folder, and of the package.
        if obj.docstring and not obj.extra["docstrings"]:
            obj.extra["docstrings"]["done"] = True
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg, loader, **_):
        if pkg.path == "keras_linrec":
            kernels = loader.load("kernels", try_relative_path=False)
            pkg.set_member("kernels", kernels)


def as_markdown(docstring):
    """The text with Markdown in the place of sections and examples."""
    lines = docstring.splitlines()
    result = []
    while lines:
        line = lines.pop(0)
        heading = _HEADING.match(line)
        if heading and heading[1] in _SECTIONS:
            body = _taken(lines, lambda text: not text or text[0] == " ")
            result += _section(heading[1], heading[2], body)
        elif heading and heading[1] == "Example":
            result += ["", f"**Example** {heading[2] or ''}".rstrip()]
        elif line.startswith(">>> "):
            block = [line, *_taken(lines, bool)]
            result += ["", "```pycon", *block, "```", ""]
        elif line.startswith("    "):
            result.append(line)
        else:
            # s'_t is no beginning of emphasis.
            result.append(line.replace("'_", "'\\_"))
    return "\n".join(result)


def _taken(lines, belongs):
    """The lines from the first on that belong, removed from the list."""
    taken = []
    while lines and belongs(lines[0]):
        taken.append(lines.pop(0))
    return taken


def _section(name, first, body):
    body = [line[4:] for line in body]
    title = ["", f"**{name}**", ""]
    if name not in _LISTS:
        return [*title, *([first] if first else []), *body, ""]
    entries, rest = [], []
    for line, after in zip(body, [*body[1:], ""]):
        if not line or line[0] == " ":
            (rest or entries[-1]).append(line.strip())
        elif ":" in line or after[:1] == " ":
            entries.append([line])
        else:
            rest.append(line)
    return [*title, *map(_entry, entries), "", *rest, ""]


def _entry(lines):
    """An entry of a list; the lines of its text have no indent."""
    paragraphs = "\n".join(lines).strip().split("\n\n")
    text = "\n\n    ".join(" ".join(part.split()) for part in paragraphs)
    names, colon, what = text.partition(": ")
    if not colon or len(names) > 200:
        return f"- {text}"
    return f"- {_NAMES.sub(_as_code, names)}: {what}"


def _as_code(name):
    """A name as code, if it is one and no word of a sentence."""
    words = {"and", "as", "field", "for", "the"}
    return name[1] if name[1] in words else f"`{name[1]}`"
