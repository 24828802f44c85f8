"""Run the tests under every backend: python tests/run.py [pytest arguments].

All run at a time, so that no processor waits for the longest. What each prints
comes in one piece, when it is done.

Without arguments, what passed is compared with the README's table of layers
against capabilities. `python tests/run.py --write-table` writes it anew.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import as_completed
from pathlib import Path

import capabilities

BACKENDS = tuple(capabilities.BACKENDS)
# JAX takes longest, in one thread: were it last, a processor would wait.
NICENESS = {"jax": 0, "tensorflow": 5, "torch": 5}
# Whose docstrings' examples run under PyTorch alone: under the others JAX would
# compile them for half a minute, and the tests run the same layers there.
WITH_EXAMPLES = ("layers", "models", "nlp", "export")
README = Path(__file__).parent.parent / "README.md"
WRITE = "--write-table"
# XLA compiles for most of JAX' time. Without its optimisations 65 tests of
# units take 43 s and not 63, and without these two of its stages gradients of
# layers take 25 s and not 40; all give the same numbers.
QUICK_JAX = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": (
        "--xla_cpu_use_fusion_emitters=false "
        "--xla_cpu_enable_concurrency_optimized_scheduler=false"
    ),
}


def quick_jax():
    """The settings of `QUICK_JAX`; an XLA that knows them not would abort."""
    script = "import jax; jax.devices()"
    environment = {**os.environ, **QUICK_JAX, "JAX_PLATFORMS": "cpu"}
    known = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True
    )
    return QUICK_JAX if known.returncode == 0 else {}


def run(backend, arguments, results):
    """The exit status and the output of pytest under a backend."""
    once = () if backend == "torch" else WITH_EXAMPLES
    ignored = [f"--ignore=keras_linrec/{part}" for part in once]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *ignored, *arguments],
        cwd=Path(__file__).parent.parent,
        # PyTorch's threads wait by spinning: two runs with two threads each
        # on two cores take ten times as long as with one each.
        env={
            **(quick_jax() if backend == "jax" else {}),
            **os.environ,
            "KERAS_BACKEND": backend,
            "OMP_NUM_THREADS": "1",
            capabilities.FOLDER: results,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS[backend])
    output, _ = process.communicate()
    return process.returncode, output


def run_all(arguments, results):
    failed = []
    print(f"Testing under {', '.join(BACKENDS)}: some minutes.", flush=True)
    with ThreadPoolExecutor(max_workers=len(BACKENDS)) as pool:
        runs = {
            pool.submit(run, name, arguments, results): name
            for name in BACKENDS
        }
        for done in as_completed(runs):
            status, output = done.result()
            print(f"\n=== {runs[done]} ===\n{output}", flush=True)
            if status:
                failed.append(runs[done])
    if failed:
        sys.exit(f"Failed under {', '.join(sorted(failed))}.")
    print("All tests passed under every backend.")


def check_readme(results, write):
    """That the README's table is what the tests found."""
    text = README.read_text()
    table = capabilities.table(results)
    expected = capabilities.with_table(text, table)
    if write:
        README.write_text(expected)
    elif text != expected:
        sys.exit(
            f"The README's table of capabilities should be\n\n{table}\n\n"
            f"which `python tests/run.py {WRITE}` writes."
        )


def main(arguments):
    write = WRITE in arguments
    arguments = [argument for argument in arguments if argument != WRITE]
    with tempfile.TemporaryDirectory() as results:
        run_all(arguments, results)
        # A part of the tests shows a part of what they show.
        if not arguments:
            check_readme(results, write)


if __name__ == "__main__":
    main(sys.argv[1:])
