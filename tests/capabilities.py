"""The table of layers against capabilities, from the tests' results.

A test that shows a capability of a layer is marked with it,

    @pytest.mark.capability("masks of any pattern")

and gives the layer by its parameter `name`, or by `layers` in the mark. A layer
has a capability under a backend if all its tests of that capability pass there.
A test that runs under one backend on behalf of several names them in
`backends`. A capability without a passing test is said to be untested, unless
`is_absent` says that the layer does not have it.

`tests/run.py` has each process write its results, and compares the table in
`docs/capabilities.md`.
"""

import json
import os
from collections import defaultdict
from pathlib import Path

BACKENDS = {"jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}
FOLDER = "KERAS_LINREC_TEST_RESULTS"
CELLS = "the cells in `layers.RNN`"
DELTAS = "irregular steps, `time_deltas`"
# In the order of the table's rows.
CAPABILITIES = (
    "outputs and gradients match the paper",
    "any batch and length, from one step on",
    "masks of any pattern",
    "several sequences in one row, `reset_mask`",
    "in chunks, with states in and out",
    "one step at a time",
    DELTAS,
    "`stateful`",
    "`go_backwards`, `Bidirectional`",
    "`mixed_bfloat16`, `mixed_float16`",
    "`float64`, gradients too",
    "`jit_compile=True`",
    "models of every kind, `clone_model`",
    "configurations, copies, pickles",
    "`.keras` and weights files",
    "from any backend to any other",
    "dropout, seeds",
    "regularisers, constraints",
    "sample weights",
    "`trainable=False`",
    "`keras.RematScope`",
    "LoRA, int8 around it",
    "a NaN stays in its row",
    "`export_step`",
)
# What the cells do not have: arguments that `layers.RNN` or they do not take,
# and a method for one step, which is the cell's call.
ABSENT_IN_CELLS = {
    "several sequences in one row, `reset_mask`",
    "one step at a time",
    DELTAS,
    "dropout, seeds",
}
ABSENT_MARK, UNTESTED_MARK = "n/a", "untested"
BEGIN, END = "<!-- capabilities: tests/run.py -->", "<!-- end -->"

# Removed, so that a pytest started by a test writes nothing.
results = os.environ.pop(FOLDER, None)
outcomes = []


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "capability(name, layers=None, backends=None): the capability of a "
        "layer that a test shows",
    )


def pytest_collection_modifyitems(items):
    for item in items:
        for mark in item.iter_markers("capability"):
            item.user_properties.append(("capability", shown(item, mark)))


def shown(item, mark):
    """`(capability, layers, backends)` that a test shows."""
    (capability,) = mark.args
    if capability not in CAPABILITIES:
        raise ValueError(
            f"The capability of {item.nodeid} should be listed in "
            f"tests/capabilities.py. Received: {capability!r}"
        )
    backends = mark.kwargs.get("backends", [os.environ["KERAS_BACKEND"]])
    layers = mark.kwargs.get("layers")
    if layers is None:
        callspec = getattr(item, "callspec", None)
        name = callspec.params.get("name") if callspec else None
        layers = [] if name is None else [name]
    layers = ["cell" if name.endswith("_cell") else name for name in layers]
    return capability, layers, list(backends)


def pytest_runtest_logreport(report):
    if report.when != "call" and report.passed:
        return
    for key, value in report.user_properties:
        if key == "capability":
            outcomes.append([*value, report.passed])


def pytest_sessionfinish():
    if results:
        Path(results, f"{os.getpid()}.json").write_text(json.dumps(outcomes))


def columns():
    """The titles of the columns, by the names of the layers."""
    # Imported here: `run.py` starts tests without importing Keras.
    from support.units import UNITS

    titles = {name: unit.title for name, unit in UNITS.items()}
    return {**titles, "cell": CELLS}


def cells(text):
    """A page's cells, by capability and the title of the column."""
    _, rest = text.split(BEGIN)
    (_, *titles), _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in rest.split(END)[0].strip().splitlines()
    )
    return {
        (capability, title): cell
        for capability, *row in rows
        for title, cell in zip(titles, row, strict=True)
    }


def table(folder, page=None):
    """The table of the results that all backends wrote to a folder.

    Args:
        folder: the folder's path.
        page: the text of the page, whose cells count for the backends under
            which no test of a capability ran. Defaults to `None`: they lack
            it.
    """
    titles = columns()
    documented = cells(page) if page else {}
    found = defaultdict(list)
    for file in Path(folder).glob("*.json"):
        for capability, layers, backends, passed in json.loads(
            file.read_text()
        ):
            for key in (
                (capability, layer, backend)
                for layer in layers
                for backend in backends
            ):
                found[key].append(passed)

    def is_able(capability, layer, backend):
        outcomes = found[capability, layer, backend]
        if outcomes:
            return all(outcomes)
        cell = documented.get((capability, titles[layer]), UNTESTED_MARK)
        return cell == "yes" or BACKENDS[backend] in cell

    def cell(capability, layer):
        able = [
            title
            for backend, title in BACKENDS.items()
            if is_able(capability, layer, backend)
        ]
        return shown_cell(able, is_absent(capability, layer))

    rows = [["", *titles.values()], ["---"] * (1 + len(titles))]
    for capability in CAPABILITIES:
        rows.append([capability, *(cell(capability, name) for name in titles)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def is_absent(capability, layer):
    """Whether a layer does not have a capability, tested or not."""
    from support.units import UNITS

    if layer == "cell":
        return capability in ABSENT_IN_CELLS
    return capability == DELTAS and not UNITS[layer].takes_time_deltas


def shown_cell(able, absent):
    """A cell, from the titles of the backends with a passing test."""
    if absent and able:
        raise ValueError(
            "What is_absent in tests/capabilities.py names should have no "
            f"test that passes. Received: it passes under {', '.join(able)}"
        )
    if absent:
        return ABSENT_MARK
    if not able:
        return UNTESTED_MARK
    return "yes" if len(able) == len(BACKENDS) else ", ".join(able)


def with_table(text, new):
    """The page with its table replaced."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{new}\n\n{END}{after}"
