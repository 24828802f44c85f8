"""Write the table of formats in docs/guides/export.md, or compare it.

    python tests/formats.py             exit with an error unless it is right
    python tests/formats.py --write

The table is made of the records of `support/formats.py`, of which
`one_backend/*/formats` prove each cell.
"""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "torch")

from support import formats

BEGIN, END = "<!-- formats: tests/formats.py -->", "<!-- end -->"
HEAD = (
    "| format | from | whole sequences | one step, `export_step` "
    "| language models | runs in |",
    "|---|---|---|---|---|---|",
)


def table():
    """The lines of the table."""
    rows = (
        (
            form.title,
            form.backend,
            form.whole,
            form.step,
            form.text,
            form.runtime,
        )
        for form in formats.FORMATS
    )
    return "\n".join([*HEAD, *(f"| {' | '.join(row)} |" for row in rows)])


def with_table(text):
    """The page's text with the table of the records."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    page = formats.GUIDE.read_text()
    expected = with_table(page)
    if "--write" in sys.argv:
        formats.GUIDE.write_text(expected)
    elif page != expected:
        sys.exit("Run `python tests/formats.py --write`.")
