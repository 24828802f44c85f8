"""Recipes that keep no model: what an example measures, as a table."""

import time
from dataclasses import dataclass
from importlib import import_module
from statistics import median

from recipes import record


@dataclass(frozen=True)
class Study:
    """A table that an example measures.

    Attributes:
        section: string, the section of the page of results.
        example: string, a module of `examples`, whose function `study` takes a
            seed and returns the names of the columns and a dictionary of rows.
        about: string, what is measured.
        header: string, above the names of the rows.
        form: string, how a number is shown.
        scales: pair of Matplotlib's scales for the columns, which are numbers,
            and the values. Defaults to `None`: no curves.
        axes: pair of labels for the same.
        lowest: float, the lowest value drawn. Defaults to `None`.
        seeds: integers, the runs. Defaults to three.
        backend: string, where none is asked for. Defaults to `"jax"`.
    """

    section: str
    example: str
    about: str
    header: str
    form: str
    scales: tuple | None = None
    axes: tuple = ("", "")
    lowest: float | None = None
    seeds: tuple = (0, 1, 2)
    backend: str = "jax"


STUDIES = {
    "rates-lssl": Study(
        section="Another sampling rate, and missing steps",
        example="sampling_rates",
        about="A deep LSSL learns to tell eight kinds of synthetic sounds "
        "apart, 512 steps each. The same weights then classify sounds at half "
        "the sampling rate, without and with `step_rescale = 2`, and sounds "
        "with steps missing at random, without and with `time_deltas`. The "
        "figures are medians of the seeds.",
        header="test",
        form="{:.1%}",
    ),
    "gradients": Study(
        section="Gradients over 2,000 steps",
        example="gradient_norms",
        about="The norm of the gradient of an untrained layer's last output "
        "with respect to earlier states, relative to that at the output, by "
        "the number of steps back (Mhammedi et al. 2017, sections 1 and 5.5). "
        "1e-45 stands for 0. The figures are medians of the seeds.",
        header="unit of 64",
        form="{:.2g}",
        scales=("log", "log"),
        axes=("steps back in time", "relative norm of the gradient"),
        lowest=1e-12,
    ),
    "depth-ldstack": Study(
        section="How deep a stack has to be",
        example="nonlinear_stack",
        about='The largest error of an `LDStack` that runs `SimpleRNN(16, "'
        "tanh\")` over 64 steps, by the number of its layers. With the paper's "
        "slope of 1 the error grows before it falls; with 65 layers the stack "
        "is exact but for rounding, which with this slope differs a "
        "thousandfold between seeds. The figures are medians of the seeds.",
        header="layers",
        form="{:.0e}",
        scales=("linear", "log"),
        axes=("layers of the stack", "largest error"),
    ),
}


def measure(name, study, seed, output):
    """Measure once, and write it into the file of the study."""
    example = import_module(study.example)
    begin = time.process_time()
    columns, rows = example.study(seed)
    run = {
        "seed": seed,
        **record.circumstances(),
        "cpu_seconds": time.process_time() - begin,
        "columns": list(columns),
        "rows": {
            row: [None if v is None else record.rounded(float(v)) for v in part]
            for row, part in rows.items()
        },
    }
    record.add(output, name, study, run)
    print(f"{name}, seed {seed}: measured.")


def medians(runs):
    """The columns, and by row the medians over the runs."""
    names = runs[0]["rows"]
    return runs[0]["columns"], {
        name: [
            None if None in values else median(values)
            for values in zip(*(run["rows"][name] for run in runs))
        ]
        for name in names
    }
