"""The core for other systems, run here: python tests/cross/run.py

Compiles the core and `tests/sanitizers/exercise.cpp` for other systems with
Zig, runs the exercise there, and compares all its results with those of the
library that this machine's compiler makes:

| target | is run by | Debian package |
|---|---|---|
| x86_64-linux-gnu.2.17 | this machine | |
| x86_64-linux-musl | musl's loader | musl |
| aarch64-linux-gnu.2.17 | QEMU | qemu-user, libc6-arm64-cross |
| x86_64-windows-gnu | Wine | wine64 |

The other targets are compiled only. An error is relative to the largest number
in its array. Exits with 1 if one is larger than `TOLERANCES` or a target does
not compile or run; a target whose runner is not installed is named and skipped.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from keras_linrec.kernels.native import BuildError
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import cross
from keras_linrec.kernels.native import recipes
from keras_linrec.kernels.native import systems

EXERCISE = Path(__file__).parent.parent / "sanitizers" / "exercise.cpp"
ARM_ROOT = Path("/usr/aarch64-linux-gnu")
# The first program that exists runs the target.
RUNNERS = {
    "x86_64-linux-gnu.2.17": [("env",)],
    "x86_64-linux-musl": [("/lib/ld-musl-x86_64.so.1",)],
    "aarch64-linux-gnu.2.17": [("qemu-aarch64", "-L", str(ARM_ROOT))],
    "x86_64-windows-gnu": [("wine64",), ("wine",), ("/usr/lib/wine/wine64",)],
}
# Sums of thousands of numbers, in another order and with other roundings.
TOLERANCES = {"float32": 1e-4, "float64": 1e-12}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", nargs="+", default=cross.TARGETS)
    parser.add_argument("--folder", type=Path, help="keeps what is compiled")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        expected = own_results(folder / "here")
        print("| target | instructions | float32 | float64 |")
        print("|---|---|---|---|")
        failures = [
            target
            for target in options.targets
            if not check(target, folder / target, expected)
        ]
    sys.exit(f"failed: {', '.join(failures)}" if failures else 0)


def own_results(folder):
    """The results of this machine's compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    library, program = build.library("core"), folder / "exercise"
    link(build.cxx(), library, program, f"-Wl,-rpath,{library.parent}")
    run((), program, folder)
    return results_in(folder / "results")


def check(target, folder, expected):
    """Compile, run and compare; prints a row. Returns whether all is well."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        library = cross.compile_for(target, "core", folder)
    except BuildError as failure:
        row(target, f"does not compile: {failure}")
        return False
    runner = runner_of(target)
    if runner is None:
        row(target, "compiles, and cannot be run here")
        return True
    machine, system = target.split("-")[:2]
    program = folder / f"exercise{'.exe' if system == 'windows' else ''}"
    compiler = (*cross.zig(), "c++", "-target", target)
    link(compiler, library, program, "-Wl,-rpath,$ORIGIN")
    sets = systems.Target(machine, system).instruction_sets
    passed = [
        compare(target, name, runner, program, folder, expected)
        for name in sets
    ]
    return all(passed)


def compare(target, limit, runner, program, folder, expected):
    try:
        used = run(runner, program, folder, KERAS_LINREC_INSTRUCTION_SET=limit)
    except subprocess.CalledProcessError as failure:
        row(target, limit, f"does not run: {failure.stderr[-300:]}")
        return False
    errors = largest_errors(results_in(folder / "results"), expected)
    row(target, used, *(f"{error:.1e}" for error in errors.values()))
    return all(errors[dtype] < TOLERANCES[dtype] for dtype in TOLERANCES)


def runner_of(target):
    for command in RUNNERS.get(target, ()):
        if shutil.which(command[0]):
            return command
    return None


def link(compiler, library, program, *flags):
    """Compile the exercise against a library of the core."""
    recipes.run_command(
        [*compiler, "-std=c++17", "-O1", f"-I{recipes.SOURCE}", str(EXERCISE)]
        + [str(library), "-pthread", *flags, "-o", str(program)]
    )


def run(runner, program, folder, **variables):
    """Let the exercise write its results; returns the instruction set."""
    return subprocess.run(
        [*runner, f"./{program.name}", "results"],
        cwd=folder,
        env={**os.environ, "WINEDEBUG": "-all", **variables},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.strip()


def results_in(path):
    """The arrays of a file that the exercise wrote."""
    content, at, arrays = path.read_bytes(), 0, []
    while at < len(content):
        size, count = np.frombuffer(content, np.int64, 2, at)
        arrays.append(np.frombuffer(content, f"f{size}", count, at + 16))
        at += 16 + int(size * count)
    return arrays


def largest_errors(got, expected):
    """The largest error of each dtype, relative to its array's numbers."""
    errors = dict.fromkeys(TOLERANCES, 0.0)
    for one, other in zip(got, expected, strict=True):
        if not other.size:
            continue
        difference = np.abs(one.astype("float64") - other).max()
        error = difference / max(np.abs(other).max(), np.finfo("f4").tiny)
        dtype = other.dtype.name
        errors[dtype] = max(errors[dtype], error)
    return errors


def row(*cells):
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
