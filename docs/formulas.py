"""Formulas in plain text, as docstrings have them, written as MathML.

Browsers render MathML themselves, so that pages need no script and no font from
elsewhere. The notation is that of a text editor: `x_t`, `h_{t-1}`, `P^T`,
`(I - alpha dt A)^-1`, `Abar`, `sqrt(s)`, names of Greek letters, and `*` for a
product of elements.
"""

import ast
import html
import re
from pathlib import Path

GREEK = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "lambda": "λ",
    "phi": "φ",
    "pi": "π",
    "rho": "ρ",
    "sigma": "σ",
    "theta": "θ",
    "Theta": "Θ",
    "xi": "ξ",
}
_OPERATORS = {
    "-": "−",
    "*": "⊙",
    "...": "⋯",
    "<=": "≤",
    ">=": "≥",
    "<-": "←",
    "->": "→",
    # Not the character that ends the cell of a Markdown table.
    "|": "&#124;",
    "<": "&lt;",
    ">": "&gt;",
}
_SIGNS = {*_OPERATORS, *"=+/,.)]}"} - {"..."}
_NAME = re.compile(r"[A-Za-z]\w*")
_TOKEN = re.compile(
    r"\s+|\d+(?:\.\d+)?|[A-Za-z]\w*|\.\.\.|<=|>=|<-|->|[-+*/=<>|,.()\[\]{}^_']"
)
_RELATION = re.compile(r"(?<!\w)(<-|->|<=|=)(?!\w)")
# What follows a formula on its line, such as "if gated".
_REMARK = re.compile(r"(?<=[^,\s]) {3,}(?=[`a-z])")


class NotAFormula(ValueError):
    """The text has something that the notation does not."""


def formula(text):
    """A formula within a sentence."""
    return f'<span class="formula"><math>{_row(text)}</math></span>'


def display(text):
    """Lines of formulas one under another, aligned at their first relation.

    Raises:
        NotAFormula: for a block of anything else.
    """
    lines = text.splitlines()
    if not _RELATION.search(lines[0]):
        raise NotAFormula(lines[0])
    rows = "".join(_aligned(line) for line in lines)
    return (
        '<div class="formula"><math display="block">'
        f"<mtable>{rows}</mtable></math></div>"
    )


def equation(name):
    """The first equations in the docstring of a layer."""
    layers = Path(__file__).parent.parent / "keras_linrec" / "layers"
    for path in sorted(layers.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                text = ast.get_docstring(node)
                block = re.search(r"(?:^ {4}.*\n)+", text, re.M)
                return display(block[0].rstrip(",.\n"))
    raise LookupError(name)


def define_env(env):
    """Make the formulas available to pages, by their macros."""
    env.macro(formula)
    env.macro(display)
    env.macro(equation)


def _aligned(line):
    remark = _REMARK.search(line)
    text, rest = line, ""
    if remark:
        text, rest = line[: remark.start()], line[remark.end() :]
        rest = html.escape(rest.strip().replace("`", ""))
        rest = f'<mspace width="2em"/><mtext>{rest}</mtext>'
    relation = _RELATION.search(text)
    start = relation.start() if relation else 0
    left, right = _row(text[:start]), _row(text[start:])
    return f"<mtr><mtd>{left}</mtd><mtd>{right}{rest}</mtd></mtr>"


def _row(text):
    reader = _Reader(text.strip())
    result = reader.row()
    if reader.tokens:
        raise NotAFormula(text)
    return f"<mrow>{result}</mrow>"


class _Reader:
    """Reads tokens from the left, and writes MathML."""

    def __init__(self, text):
        self.tokens = []
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            if not token:
                raise NotAFormula(text)
            self.tokens.append(token[0])
            position = token.end()

    def row(self, end=None):
        """What stands before the token `end`, which is taken."""
        result, spaced, operand = "", False, False
        while self.tokens:
            token = self.tokens.pop(0)
            if token == end:
                return result
            if token.isspace():
                spaced = True
                continue
            if token in _SIGNS:
                result += self._operator(token, operand, spaced)
                # A bar may open or close.
                operand = token in "|)]" and not (token == "|" and spaced)
            else:
                # Factors side by side.
                if spaced and operand:
                    result += '<mspace width="0.2em"/>'
                result += self._operand(token)
                operand = True
            spaced = False
        if end is not None:
            raise NotAFormula(end)
        return result

    def _operator(self, token, operand, spaced):
        sign = _OPERATORS.get(token, token)
        if token == "|":
            gap = '<mspace width="0.2em"/>' if spaced and operand else ""
            bar = '<mo stretchy="false" lspace="0" rspace="0">&#124;</mo>'
            return gap + self._raised(bar)
        if token in ")]}":
            raise NotAFormula(token)
        if token == ".":
            return "<mtext>.</mtext>"
        form = ' form="prefix"' if token in "+-" and not operand else ""
        wide = ' rspace="1em"' if token == "," and self._gap() > 1 else ""
        return f"<mo{form}{wide}>{sign}</mo>"

    def _gap(self):
        if self.tokens and self.tokens[0].isspace():
            return len(self.tokens[0])
        return 0

    def _operand(self, token):
        if token == "sqrt" and self._next_is("("):
            return self._raised(f"<msqrt>{self.row(')')}</msqrt>")
        if token in "([":
            close = ")" if token == "(" else "]"
            return self._raised(
                '<mrow><mo stretchy="false">'
                f"{token}</mo>{self.row(close)}"
                f'<mo stretchy="false">{close}</mo></mrow>'
            )
        if token[0].isdigit():
            return self._raised(f"<mn>{token}</mn>")
        if _NAME.fullmatch(token):
            return self._name(token)
        if token == "...":
            return "<mo>⋯</mo>"
        raise NotAFormula(token)

    def _name(self, token):
        base, _, below = token.partition("_")
        # `x_t` has a subscript, `token_ids` is a name.
        if below and len(below) > 1 and len(_letter(base)) > 1:
            base, below = token, ""
        kind = "mn" if below.isdigit() else "mi"
        lower = f"<{kind}>{_letter(below)}</{kind}>" if below else None
        if token.endswith("_"):
            lower = self._group()
        if base == "sum":
            return f"<munder><mo>∑</mo>{lower}</munder>"
        return self._raised(_letters(base), lower)

    def _raised(self, base, lower=None):
        """The base with its subscript, its primes and its exponent."""
        upper = ""
        while self._next_is("'"):
            upper += "<mo>′</mo>"
        # In either order, "a^i_t" and "c_i^2".
        if lower is None and self._next_is("_"):
            lower = self._group()
        if self._next_is("^"):
            upper += self._group()
        if lower is None and self._next_is("_"):
            lower = self._group()
        if lower is None and not upper:
            return base
        if lower is None:
            return f"<msup>{base}<mrow>{upper}</mrow></msup>"
        if not upper:
            return f"<msub>{base}{lower}</msub>"
        return f"<msubsup>{base}{lower}<mrow>{upper}</mrow></msubsup>"

    def _group(self):
        """An index or exponent: a name, a number, -1, -1/2 or {...}."""
        if self._next_is("{"):
            return f"<mrow>{self.row('}')}</mrow>"
        if not self._next_is("-"):
            return self._single()
        result = f"<mo>−</mo>{self._single()}"
        # "-1/2" is an exponent as a whole; "Z^2/6" is not.
        if self._next_is("/"):
            result += f"<mo>/</mo>{self._single()}"
        return f"<mrow>{result}</mrow>"

    def _single(self):
        if not self.tokens:
            raise NotAFormula("")
        token = self.tokens.pop(0)
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if _NAME.fullmatch(token):
            # "^i_t": the subscript is that of the base.
            name, underscore, below = token.partition("_")
            if underscore:
                self.tokens[:0] = ["_", below] if below else ["_"]
            return f"<mi>{_letter(name)}</mi>"
        raise NotAFormula(token)

    def _next_is(self, token):
        if self.tokens[:1] == [token]:
            self.tokens.pop(0)
            return True
        return False


def _letter(name):
    return GREEK.get(name, name)


def _letters(name):
    if name.endswith("bar") and len(name) == 4:
        return f"<mover><mi>{name[0]}</mi><mo>¯</mo></mover>"
    return f"<mi>{_letter(name)}</mi>"
