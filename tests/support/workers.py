"""Processes that print what they found, as JSON in their last line."""

import json
import os
import subprocess
import sys

from support import TESTS


def found_by(worker, *arguments, timeout=600):
    """What `python -m support.WORKER ARGUMENTS` prints.

    Args:
        worker: the name of a module of `support`.
        *arguments: of its command line.
        timeout: seconds until it counts as hanging. Defaults to 600.
    """
    process = subprocess.run(
        [sys.executable, "-m", f"support.{worker}", *arguments],
        cwd=TESTS,
        # As in run.py: spinning threads starve each other.
        env={
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            **os.environ,
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.strip().splitlines()[-1])
