"""The pages of results, made from the JSON files of the recipes."""

import re
from pathlib import Path
from statistics import fmean
from textwrap import fill

from recipes import curves
from recipes import memory_table
from recipes import pictures_table
from recipes import pixels_table
from recipes import speech_table
from recipes import tokens_table
from recipes.figures import chosen_on
from recipes.figures import in_digits
from recipes.figures import minutes
from recipes.figures import processor_minutes
from recipes.figures import reported
from recipes.figures import results
from recipes.figures import seeds
from recipes.figures import studies
from recipes.figures import summary
from recipes.studies import STUDIES
from recipes.studies import medians
from recipes.table import ABOUT

BEGIN = "<!-- Made by `python examples/reproduce.py --page`. -->"
END = "<!-- The end of what is made. -->"
# The pages below `results.md`, each with its title and its sections. First is
# what most papers report.
PAGES = {
    "pictures": (
        "Pictures, pixel by pixel",
        (
            pixels_table.SEQUENTIAL,
            pixels_table.PERMUTED,
            pictures_table.COLOUR,
            pictures_table.GREY,
            pictures_table.PADDED,
            pixels_table.ROBUSTNESS,
        ),
    ),
    "text": (
        "Texts and lists",
        (
            tokens_table.LISTS_SECTION,
            tokens_table.REVIEWS,
            tokens_table.TEXT,
            tokens_table.TEXT_HELD_OUT,
            tokens_table.AHEAD,
        ),
    ),
    "memory": (
        "Long memory",
        (
            memory_table.ADDITION,
            memory_table.COPYING,
            memory_table.DISTANT,
            memory_table.GROUPS,
        ),
    ),
    "speech": (
        "Spoken digits",
        (
            speech_table.SPEECH,
            speech_table.NEVER_HEARD,
            speech_table.PARTS,
        ),
    ),
    "sensors": (
        "Sensors",
        (
            tokens_table.SENSORS,
            tokens_table.GAPS_SECTION,
            STUDIES["rates-lssl"].section,
        ),
    ),
    "layers": (
        "Inside the layers",
        (
            tokens_table.NORMS,
            STUDIES["gradients"].section,
            STUDIES["depth-ldstack"].section,
        ),
    ),
}
SECTIONS = tuple(s for _, sections in PAGES.values() for s in sections)
BESIDE = (
    "Each task leads to its page, which also says what differs from the paper."
)
OTHERS = (
    "The same tasks by other models, and other tasks: the means of the seeds. "
    "The pages have their ranges, the minutes and the names of the recipes."
)
ABOUT_PAGES = (
    "[Results](../results.md) says what the figures and minutes are, and how a "
    "recipe is run again."
)

# The columns of the tables, and what they hold for a result.
ALL_COLUMNS = {
    "model": lambda result: result.recipe.title,
    "parameters": lambda result: f"{result.runs[0]['parameters']:,}",
    "paper": lambda result: reported(result.recipe),
    "here": summary,
    "chosen on": chosen_on,
    "seeds": seeds,
    "minutes": minutes,
    "recipe": lambda result: f"`{result.name}`",
}
COLUMNS = {k: v for k, v in ALL_COLUMNS.items() if k != "parameters"}


def write(output):
    """Draw all curves, and write the pages anew."""
    for section in {result.recipe.section for result in results(output)}:
        draw(section, output)
    for _, study, runs in studies(output):
        curves.draw_study(study, runs, output)
    docs = Path(output).parent
    curves.draw_front(list(results(output)), docs / "images")
    index = docs / "results.md"
    index.write_text(renewed(index.read_text(), output))
    for name, text in pages(output).items():
        (Path(output) / f"{name}.md").write_text(text)


def draw(section, output):
    """Draw the runs of a section, if there are any."""
    found = [r for r in results(output) if r.recipe.section == section]
    if found:
        curves.draw(section, found, output)


def by_section(output):
    """The results of each section, in the order of the pages."""
    sections = {section: [] for section in SECTIONS}
    for result in results(output):
        sections[result.recipe.section].append(result)
    return sections


# The overview.


def renewed(text, output):
    """The overview's text with its made part made anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{overview(output)}\n{END}{after}"


def overview(output):
    """The figures beside those of papers, those of others, and all pages."""
    beside, others = [], []
    for section, found in by_section(output).items():
        with_paper = [r for r in found if r.recipe.published is not None]
        rest = [r for r in found if r.recipe.published is None]
        beside += overview_rows(section, with_paper)
        if rest:
            models = "; ".join(map(model_and_figure, rest))
            others.append((link(section), models))
    lines = []
    for title, about, header, rows in (
        ("Beside the papers", BESIDE, ("task", *COLUMNS), beside),
        ("Without a figure of a paper", OTHERS, ("task", "here"), others),
    ):
        if rows:
            lines += [f"## {title}", "", fill(about, 80), ""]
            lines += table(header, rows)
    return "\n".join([*lines, "## All tables", "", *contents(output), ""])


def overview_rows(section, found):
    """The rows of a section, of which the first names it."""
    names = [link(section)] + [""] * len(found)
    return [
        (name, *(text(result) for text in COLUMNS.values()))
        for name, result in zip(names, found)
    ]


def model_and_figure(result):
    return f"{result.recipe.title}: {summary(result, with_range=False)}"


def contents(output):
    """The lines of the list of pages."""
    present = section_texts(output)
    lines = []
    for page, (title, sections) in PAGES.items():
        links = [f"{place(s)}{link(s)}" for s in sections if s in present]
        if links:
            lines.append(f"- [{title}](results/{page}.md): {'; '.join(links)}")
    return lines


def place(section):
    """Where links lead that were made when the section stood on this page."""
    return f'<span id="{anchor(section)}"></span>'


def link(section):
    """A link from the overview to a section."""
    (page,) = (p for p, (_, sections) in PAGES.items() if section in sections)
    return f"[{section}](results/{page}.md#{anchor(section)})"


def anchor(section):
    """The identifier that the site gives to a heading."""
    return re.sub(r"[^\w -]", "", section.lower()).replace(" ", "-")


# The pages below it.


def pages(output):
    """The texts of the pages that have results, by name."""
    texts = section_texts(output)
    made = {}
    for name, (title, sections) in PAGES.items():
        parts = [texts[section] for section in sections if section in texts]
        if parts:
            head = f"# Results: {title}\n\n{BEGIN}\n\n{fill(ABOUT_PAGES, 80)}\n"
            made[name] = "\n".join([head, *parts]).rstrip() + "\n"
    return made


def section_texts(output):
    """The texts of the sections that have results."""
    texts = {
        section: section_text(section, found, output)
        for section, found in by_section(output).items()
        if found
    }
    return texts | {
        study.section: study_text(name, study, runs, output)
        for name, study, runs in studies(output)
    }


def section_text(title, found, output):
    columns = dict(ALL_COLUMNS)
    if not any(map(columns["paper"], found)):
        del columns["paper"]
    rows = [[text(result) for text in columns.values()] for result in found]
    lines = [f"## {title}", ""]
    if title in ABOUT:
        lines += [fill(ABOUT[title], 80), ""]
    lines += table(columns, rows)
    lines += measured(found)
    lines += picture(title, output)
    lines += notes(found)
    return "\n".join(lines)


def notes(found):
    """What differs from the papers, once where it is the same."""
    titles = {}
    for result in found:
        titles.setdefault(result.recipe.note, []).append(result.recipe.title)
    return [
        line
        for note, of_models in titles.items()
        if note
        for line in (fill(f"{' and '.join(of_models)}: {note}", 80), "")
    ]


def study_text(name, study, runs, output):
    columns, rows = medians(runs)
    lines = [f"## {study.section}", "", fill(study.about, 80), ""]
    cells = [
        [row, *("" if v is None else study.form.format(v) for v in values)]
        for row, values in rows.items()
    ]
    lines += table((study.header, *map(str, columns)), cells)
    lines += picture(study.section, output)
    spent = in_digits(processor_minutes(runs))
    lines += [f"`{name}`: {len(runs)} seeds, {spent} minutes each.", ""]
    return "\n".join(lines)


def picture(title, output):
    """The lines that show the curves of a section, if they are drawn."""
    name = f"{curves.slug(title)}.png"
    if not (Path(output) / name).exists():
        return []
    return [f"![{title}: the curves]({name})", ""]


def measured(found):
    """What was measured of the trained models: mean, lowest and highest."""
    rows = {}
    for result in found:
        runs = [run["measurements"] for run in result.finished]
        runs = [run for run in runs if run]
        if runs:
            names = tuple(runs[0])
            cells = (in_words(n, [run[n] for run in runs]) for n in names)
            rows.setdefault(names, []).append((result.recipe.title, *cells))
    return [
        line
        for names, of_models in rows.items()
        for line in table(("model", *names), of_models)
    ]


# Measurements that are no shares.
NUMBERS = ("largest eigenvalue", "trace", "condition number")


def in_words(name, values):
    form = "{:.3g}" if name in NUMBERS else "{:.1%}"
    mean, low, high = (form.format(f(values)) for f in (fmean, min, max))
    return mean if len(values) == 1 else f"{mean} ({low} to {high})"


def table(header, rows):
    return [
        f"| {' | '.join(header)} |",
        "|---" * len(header) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
