"""Run the tests under every backend: python tests/run.py [pytest arguments].

Two run at a time. What each prints comes in one piece, when it is done.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import as_completed
from pathlib import Path

BACKENDS = ("jax", "tensorflow", "torch")


def run(backend, arguments):
    """The exit status and the output of pytest under a backend."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=Path(__file__).parent.parent,
        # PyTorch's threads wait by spinning: two runs with two threads each
        # on two cores take ten times as long as with one each.
        # XLA compiles for most of JAX' time: without its optimisations 65
        # tests of units take 43 s and not 63, and give the same numbers.
        env={
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            **os.environ,
            "KERAS_BACKEND": backend,
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return result.returncode, result.stdout


def main(arguments):
    failed = []
    print(f"Testing under {', '.join(BACKENDS)}: some minutes.", flush=True)
    with ThreadPoolExecutor(max_workers=2) as pool:
        runs = {pool.submit(run, name, arguments): name for name in BACKENDS}
        for done in as_completed(runs):
            status, output = done.result()
            print(f"\n=== {runs[done]} ===\n{output}", flush=True)
            if status:
                failed.append(runs[done])
    if failed:
        sys.exit(f"Failed under {', '.join(sorted(failed))}.")
    print("All tests passed under every backend.")


if __name__ == "__main__":
    main(sys.argv[1:])
