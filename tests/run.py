"""Run the tests under every backend: python tests/run.py [options].

    python tests/run.py                     the selection, as in the README
    python tests/run.py --rest              most of what the selection leaves
    python tests/run.py --weekly            what both leave
    python tests/run.py --day 6             Saturday's share of both
    python tests/run.py --all               all of them
    python tests/run.py --all --write-table
                                            and write docs/capabilities.md
    python tests/run.py [pytest arguments]  the tests that they select

`selection.py` defines the selection. The output of each process is printed in
one piece when the process ends.

The table in docs/capabilities.md is compared with the results of all tests:
after `--all`, and after the rest if the variable KERAS_LINREC_TEST_RESULTS
names the folder with the selection's results.
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import as_completed
from pathlib import Path

import capabilities
import selection

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "capabilities.md"
# The processes of each backend, the slowest backend first. Each process imports
# its backend and the tests anew.
SLICES_OF_SELECTION = {"jax": 1, "tensorflow": 1, "torch": 2}
# Those of the other parts, one for each day.
DAYS = 7
# One more than there are processors, since tests also wait.
WORKERS = (os.cpu_count() or 1) + 1
NO_TESTS_COLLECTED = 5
# Under JAX, most of the time goes to compilation. Without XLA's optimisations,
# 65 tests of units take 43 s instead of 63, and without these two stages the
# gradients of layers take 25 s instead of 40. Results are the same.
QUICK_JAX = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": (
        "--xla_cpu_use_fusion_emitters=false "
        "--xla_cpu_enable_concurrency_optimized_scheduler=false"
    ),
}
# Processes share what they compiled, however small: 151 tests of units take
# 75 s instead of 92, and 57 where all of it was compiled before.
SHARED_PROGRAMS = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
FOLDER_OF_PROGRAMS = "JAX_COMPILATION_CACHE_DIR"


@functools.cache
def quick_jax():
    """`QUICK_JAX`, or nothing if this XLA aborts on an unknown flag."""
    script = "import jax; jax.devices()"
    environment = {**os.environ, **QUICK_JAX, "JAX_PLATFORMS": "cpu"}
    known = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True
    )
    return QUICK_JAX if known.returncode == 0 else {}


def run(backend, part, piece, arguments, results):
    """The exit status and the output of pytest under a backend."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        # PyTorch's threads spin while they wait: on two cores, two runs with
        # two threads each take ten times as long as with one each.
        env={
            **(quick_jax() if backend == "jax" else {}),
            **SHARED_PROGRAMS,
            FOLDER_OF_PROGRAMS: str(Path(results) / "jax"),
            **os.environ,
            "KERAS_BACKEND": backend,
            "OMP_NUM_THREADS": "1",
            selection.PART: part,
            selection.SLICE: piece,
            capabilities.FOLDER: results,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def processes(parts, arguments, day):
    """`(backend, part, slice)` of each; with arguments, one per backend."""
    for backend, count in SLICES_OF_SELECTION.items():
        for part in parts:
            if arguments:
                yield backend, part, "1/1"
            elif day:
                yield backend, part, f"{day}/{DAYS}"
            else:
                slices = count if part == selection.SELECTION else DAYS
                for index in range(1, slices + 1):
                    yield backend, part, f"{index}/{slices}"


def run_all(parts, arguments, results, day):
    # The arguments may select no test of a backend, and the selection may
    # leave none to the other parts.
    may_be_none = arguments or parts != [selection.SELECTION]
    passed = {0, NO_TESTS_COLLECTED} if may_be_none else {0}
    failed = []
    print(
        f"Testing under {', '.join(SLICES_OF_SELECTION)}: {', '.join(parts)}.",
        flush=True,
    )
    with ThreadPoolExecutor(WORKERS) as pool:
        runs = {
            pool.submit(
                run, backend, part, piece, arguments, results
            ): f"{backend}, {part} {piece}"
            for backend, part, piece in processes(parts, arguments, day)
        }
        for done in as_completed(runs):
            status, output = done.result()
            print(f"\n=== {runs[done]} ===\n{output}", flush=True)
            if status not in passed:
                failed.append(runs[done])
    if failed:
        sys.exit(f"Failed under {'; '.join(sorted(failed))}.")
    print("All tests passed under every backend.")


def check_table(results, write):
    """Exit with an error unless docs/capabilities.md matches the results.

    What no test ran for is as the page says, unless the page is written.
    """
    text = TABLE.read_text()
    # The titles of the columns come from `support.units`, which imports
    # Keras.
    os.environ.setdefault("KERAS_BACKEND", "torch")
    table = capabilities.table(results, page=None if write else text)
    expected = capabilities.with_table(text, table)
    if write:
        TABLE.write_text(expected)
    elif text != expected:
        sys.exit(
            f"The table of docs/capabilities.md should be\n\n{table}\n\n"
            "which `python tests/run.py --all --write-table` writes."
        )


def main():
    parser = argparse.ArgumentParser(
        description="All other arguments are passed to pytest.",
        allow_abbrev=False,
    )
    parts = parser.add_mutually_exclusive_group()
    for part, text in (
        (selection.REST, "most of what the selection leaves"),
        (selection.WEEKLY, "what both leave"),
        (selection.ALL, "all of them"),
    ):
        parts.add_argument(
            f"--{part}",
            dest="part",
            action="store_const",
            const=part,
            help=text,
        )
    parser.add_argument(
        "--write-table",
        action="store_true",
        help="after --all, write docs/capabilities.md",
    )
    parser.add_argument(
        "--day",
        type=int,
        choices=range(1, DAYS + 1),
        help="what CI runs of the rest and the weekly ones, 1 on Mondays",
    )
    options, arguments = parser.parse_known_args()
    if options.day and (options.part or arguments):
        parser.error("--day chooses the tests itself")
    default = selection.ALL if arguments else selection.SELECTION
    parts = [options.part or default]
    if options.day:
        parts = [selection.REST, selection.WEEKLY]
    if options.write_table and (parts != [selection.ALL] or arguments):
        parser.error("--write-table needs all tests: --all")
    kept = capabilities.results
    with tempfile.TemporaryDirectory() as folder:
        run_all(parts, arguments, kept or folder, options.day)
        whole = selection.ALL in parts or (kept and selection.REST in parts)
        # The table needs the results of all tests.
        if whole and not arguments:
            check_table(kept or folder, options.write_table)


if __name__ == "__main__":
    main()
