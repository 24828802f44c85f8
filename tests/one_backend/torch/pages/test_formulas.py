"""Formulas in plain text, as the pages show them."""

import importlib.util
import re
import sys
from xml.etree import ElementTree

import pytest
from support import DOCS

import keras_linrec


def module(name):
    """A module of the site's."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    value = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(value)
    return value


formulas = module("formulas")


def read_aloud(text):
    """A formula with its structure in braces."""
    return _said(ElementTree.fromstring(formulas.formula(text))[0])


def _said(node):
    parts = [_said(child) for child in node]
    match node.tag:
        case "msub" | "munder":
            return "{}_{{{}}}".format(*parts)
        case "msup":
            return "{}^{{{}}}".format(*parts)
        case "msubsup":
            return "{}_{{{}}}^{{{}}}".format(*parts)
        case "msqrt":
            return f"√{{{''.join(parts)}}}"
        case "mover":
            return f"bar {parts[0]}"
        case "mspace":
            return " "
    return node.text or "".join(parts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x_t = lambda * x_{t-1}", "x_{t}=λ⊙x_{t−1}"),
        ("gamma P Theta P^T x", "γ P Θ P^{T} x"),
        ("(I - dt A)^-1 B", "(I−dt A)^{−1} B"),
        ("(I + N)^-1/2", "(I+N)^{−1/2}"),
        ("Z^2/6", "Z^{2}/6"),
        ("Abar x_{t-1}", "bar A x_{t−1}"),
        ("h^{i-1}_{t-1} + a^i_t", "h_{t−1}^{i−1}+a_{t}^{i}"),
        ("c_i^2 M_A^T", "c_{i}^{2} M_{A}^{T}"),
        ("h' = sqrt(s) h", "h^{′}=√{s} h"),
        ("|u|^2 <= 1/4", "|u|^{2}≤1/4"),
        ("sum_k embed_text(token_ids)", "∑_{k} embed_text(token_ids)"),
        ("lambda_min(M_sym)", "λ_{min}(M_{sym})"),
        ("h -> p h", "h→p h"),
        ("H(u_n) ... H(u_1).", "H(u_{n}) ⋯ H(u_{1})."),
    ],
)
def test_a_formula_is_read(text, expected):
    assert read_aloud(text) == expected


@pytest.mark.parametrize(
    "text", ["x @ y", "(a", "a)", "x^", "x_", "{t}", "[a, b", "x: y", "5 % 3"]
)
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(formulas.NotAFormula):
        formulas.formula(text)


def test_equations_are_aligned_with_their_remarks():
    shown = formulas.display("y_t = C x_t      if `units` is set\n    + D u_t")
    rows = ElementTree.fromstring(shown)[0][0]
    assert [[_said(cell).strip() for cell in row] for row in rows] == [
        ["y_{t}", "=C x_{t} if units is set"],
        ["", "+D u_{t}"],
    ]
    with pytest.raises(formulas.NotAFormula):
        formulas.display("a + b if c")


def test_every_layer_has_an_equation():
    names = [n for n in vars(keras_linrec.layers) if n[0].isupper()]
    for name in names:
        if not name.endswith("Cell"):
            ElementTree.fromstring(formulas.equation(name))
    assert len(re.findall("<mtr>", formulas.equation("LSSL"))) == 2


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        (
            "Where h_t = d_t * h_{t-1} + u_t, d is",
            ["h_t = d_t * h_{t-1} + u_t"],
        ),
        ("A = S R S^-1 for their modes", ["A = S R S^-1"]),
        ("with gamma = exp(-exp(g)), and", ["gamma = exp(-exp(g))"]),
        ("the columns of U^T and x_t", ["U^T", "x_t"]),
        ("`x_t` of token_ids, m = n of x.y_t", ["m = n"]),
        ("y = x @ w, z_t = u_t @ w", ["z_t", "u_t"]),
    ],
)
def test_formulas_are_found_in_sentences(sentence, shown, monkeypatch):
    pytest.importorskip("griffe")
    monkeypatch.setattr("sys.path", [*sys.path])
    docstrings = module("docstrings")
    found = docstrings.formulas.formula
    seen = []
    monkeypatch.setattr(
        docstrings.formulas, "formula", lambda text: seen.append(text) or ""
    )
    docstrings.as_markdown(sentence)
    assert seen == shown
    for text in seen:
        found(text)
