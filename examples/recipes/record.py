"""What runs leave behind: one JSON file for a recipe, with a run for each seed.

Reading imports no framework, so that the page of results is made without one.
"""

import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path

from recipes.recipe import what_trains

# Bytes of a model that is kept.
LARGEST_MODEL = 1.5e6
PACKAGES = ("keras", "jax", "tensorflow", "torch", "numpy")


def add(output, name, recipe, run):
    """Write a run into the file of its recipe, in place of an earlier one."""
    # With it comes Keras, which reading does not need.
    from keras_linrec.files import replacing

    path = output / f"{name}.json"
    runs = read(path)["runs"] if path.exists() else []
    runs = [r for r in runs if r["seed"] != run["seed"]] + [run]
    runs.sort(key=lambda run: run["seed"])
    content = {"name": name, "recipe": what_trains(recipe), "runs": runs}
    with replacing(path) as made:
        Path(made).write_text(json.dumps(content, indent=1) + "\n")


def read(path):
    return json.loads(path.read_text())


def columns(history):
    """The rows of a history as lists by name, to six digits."""
    names = dict.fromkeys(name for row in history for name in row)
    return {name: [rounded(row.get(name)) for row in history] for name in names}


def rounded(value):
    """A float to six digits; anything else as it is."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def circumstances():
    """The backend, the machine without its name, versions and commit."""
    import keras

    return {
        "backend": keras.backend.backend(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": versions(),
        "commit": commit(),
    }


def accelerator():
    """The GPU or TPU that trains, in words, or `None`."""
    from keras_linrec.kernels import backends

    backend = backends.current()
    return None if backend.platform() == "cpu" else backend.device_name()


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":")[1] for line in lines if "model name" in line]
    return names[0].strip() if names else platform.machine()


def versions():
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit():
    """The commit of this checkout, or `None` outside of one.

    It ends in "-dirty" where the code is not as committed. The tables of
    recipes do not count: a file of results holds its recipe.
    """
    code = [f":/{folder}" for folder in ("examples", "kernels", "keras_linrec")]
    code.append(":(top,exclude)examples/recipes/*_table.py")
    try:
        head = git("rev-parse", "--short=12", "HEAD")
        changes = git("status", "--porcelain", "--", *code)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}-dirty" if changes else head


def git(*arguments):
    """What a git command prints, run in the folder of this file."""
    return subprocess.run(
        ["git", *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
