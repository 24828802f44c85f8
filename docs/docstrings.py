"""Converts the package's docstrings to Markdown for the reference.

An extension of griffe, which reads the package without importing it. It turns
the sections and formulas of a docstring into Markdown. It adds the kernels,
whose source is in a folder of its own, as the subpackage that they are
installed as.
"""

import re
import sys
from pathlib import Path

import griffe

sys.path.append(str(Path(__file__).parent))

import formulas

_HEADING = re.compile(r"^([A-Z][a-z]+(?: [a-z]+)?):(?: (.*))?$")
# Sections whose entries are "name: description".
_LISTS = {"Args", "Attributes", "Call arguments", "Raises"}
_SECTIONS = _LISTS | {"Output", "Output shape", "Reference", "Returns"}
# Within sentences: a symbol with an index or an exponent, x_t, h'_{t-1}, P^T;
_MARKS = r"'?(?:_\{[^}]*\}|_\w(?!\w)|\^-?\w(?![\w/]))"
_GREEK = "|".join(formulas.GREEK)
_SYMBOL = rf"(?<![\w.])(?:[A-Za-z]|{_GREEK}){_MARKS}+"
# and an equation, as far as it goes without a word, x_t = d_t * x_{t-1}.
_NAME = f"[A-Za-z]|[A-Z]bar|dt|bias|{_GREEK}"
# "(Kaul et al. 2020)" is none of its factors.
_GROUP = r"\((?![^()]*\. )(?:[^()]|\([^()]*\))*\)"
_FACTOR = (
    rf"(?:(?:{_NAME}|[a-z]+(?=_\w\b|\()){_MARKS}*(?!\w)(?:{_GROUP})?"
    rf"|{_GROUP}(?:\^-?\w+)?|\.\.\.|\d+(?:\.\d+)?(?![\w.]*\w))"
)
_EQUATION = (
    rf"(?<![\w.])(?:{_NAME}|[a-z]+(?=_\w\b)){_MARKS}*(?:\([a-z]\))? = "
    rf"-?{_FACTOR}(?:(?: [-+*/] | ?/ ?| ){_FACTOR})*"
    # Not the beginning of one that goes on.
    r"(?! ?(?:[-+*/@=|(^_'{]|\w(?!\w)|\w+[_^]))(?!\w)"
)
# Code and links stay what they are. "<x, y>" is not a tag of HTML.
_IN_SENTENCES = re.compile(
    rf"`[^`]*`|\]\([^)]*\)|({_EQUATION}|{_SYMBOL})|<(?=[A-Za-z] )"
)
_NAMES = re.compile(r"(\*{0,2}[A-Za-z_]\w*)")


class Docstrings(griffe.Extension):
    """Docstrings as Markdown, and `keras_linrec.kernels` as a subpackage."""

    def on_object(self, *, obj, **_):
        # An object may be seen twice: in its module, and in the package.
        if obj.docstring and not obj.extra["docstrings"]:
            obj.extra["docstrings"]["done"] = True
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg, loader, **_):
        if pkg.path == "keras_linrec":
            kernels = loader.load("kernels", try_relative_path=False)
            pkg.set_member("kernels", kernels)
            self._show_functions(pkg["ops"])

    def _show_functions(self, package):
        """Put functions in the place of the modules that have their names."""
        for name, module in list(package.modules.items()):
            if name in module.functions:
                # Nothing else leads to it from here on.
                self.on_object(obj=module[name])
                function = griffe.Alias(name, module[name], parent=package)
                package.set_member(name, function)


def as_markdown(docstring):
    """The docstring with its sections and examples as Markdown."""
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
            block = [line, *_taken(lines, lambda text: text[:4] == "    ")]
            result += _formulas([text[4:] for text in block])
        else:
            result.append(line)
    return "\n".join(_with_symbols(result))


def _with_symbols(lines):
    """Symbols with an index or an exponent as formulas, in sentences."""
    is_code = False
    for line in lines:
        is_code ^= line.startswith("```")
        if is_code or line.startswith(("    ", "<div")):
            yield line
        else:
            yield _IN_SENTENCES.sub(_in_sentence, line)


def _in_sentence(found):
    if found[1]:
        try:
            return formulas.formula(found[0])
        except formulas.NotAFormula:
            return found[0]
    return "&lt;" if found[0] == "<" else found[0]


def _formulas(block):
    """An indented block: formulas, or else text that stays as it is."""
    try:
        return ["", formulas.display("\n".join(block)), ""]
    except formulas.NotAFormula:
        return [f"    {line}" for line in block]


def _taken(lines, belongs):
    """Remove and return the leading lines that belong."""
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
    """A list item, with its text unindented."""
    paragraphs = "\n".join(lines).strip().split("\n\n")
    text = "\n\n    ".join(" ".join(part.split()) for part in paragraphs)
    names, colon, what = text.partition(": ")
    if not colon or len(names) > 200:
        return f"- {text}"
    return f"- {_NAMES.sub(_as_code, names)}: {what}"


def _as_code(name):
    """A name as code, unless it is a word of a sentence."""
    words = {"and", "as", "field", "for", "the"}
    return name[1] if name[1] in words else f"`{name[1]}`"
