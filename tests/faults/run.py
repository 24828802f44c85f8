"""What files, the cache and the processes survive.

    python tests/faults/run.py [--quick] [--keras] [NAME ...]

Runs the named faults, or all, and prints how many attempts each survived:

- `saves`: SIGKILL while a model is saved; the file must be whole.
- `trainings`: SIGKILL while a model trains with `BackupAndRestore`; it must
  resume from the last backup with the same bits.
- `limited_files`, `full_disks`, `read_only_disks`: a save must fail with the
  name of the file, and leave the old one.
- `killed_compilers`, `killed_builders`, `full_caches`: the next attempt must
  build the native code.
- `crowds`: processes that start at once with an empty cache; one builds.
- `clocks`: files of the cache from 1970 and from 2242.
- `forks`, `ends`: forks before and after first use and beside threads, and
  interpreters that end while native code runs.
- `memory`: steps within limits of memory; each must end with an error or a
  result, and the process go on.
- `files`: damaged and malicious files; see `fuzz_files.py`.

`--quick` makes a tenth of the attempts. `--keras` kills `saves` and `trainings`
of Keras alone, for comparison. Full and read-only disks need root, to mount
them, and count nothing otherwise. Runs under PyTorch, `memory` under JAX too.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from faults import builds
from faults import disks
from faults import fuzz_files
from faults import kills
from faults import processes

SEED = 0


def memory(tries):
    """Steps within limits of memory, under PyTorch and JAX."""
    survived = 0
    for backend in ("torch", "jax"):
        answer = subprocess.run(
            [sys.executable, HERE / "memory_worker.py", str(tries), str(SEED)],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                **memory_environment(),
                "KERAS_BACKEND": backend,
                "OMP_NUM_THREADS": "2",
            },
        )
        _, *lines = answer.stdout.splitlines()
        if answer.returncode == 0 and lines[-1] == "same":
            survived += len(lines) - 1
        else:
            print(f"  {backend}: {answer.returncode}, {lines[-1:]}")
    return survived, 2 * tries


def memory_environment():
    """What has the C library map each buffer anew, so that limits meet it."""
    return {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_MAX_": "1000000",
        "MALLOC_MMAP_THRESHOLD_": "16384",
        "MALLOC_TOP_PAD_": "0",
        "MALLOC_TRIM_THRESHOLD_": "0",
    }


def files(tries):
    """Damaged and malicious files."""
    totals = fuzz_files.fuzz(tries, SEED)
    good = totals.pop("loaded", 0) + totals.pop("refused", 0)
    for fault in totals:
        print(f"  {fault}")
    return good, good + sum(totals.values())


def faults(share, keras_only):
    """Each fault's name and function, with `share` of all attempts."""

    def times(count):
        return max(1, int(count * share))

    return {
        "forks": lambda: processes.forks(times(50)),
        "saves": lambda: kills.saves(times(200), SEED, keras_only),
        "trainings": lambda: kills.trainings(times(200), SEED, keras_only),
        "limited_files": lambda: disks.limited_files(times(100)),
        "full_disks": lambda: disks.full_disks(times(40)),
        "read_only_disks": disks.read_only_disks,
        "killed_compilers": lambda: builds.killed_compilers(times(50), SEED),
        "killed_builders": lambda: builds.killed_builders(times(200), SEED),
        "full_caches": lambda: builds.full_disks(times(20)),
        "crowds": lambda: builds.crowds(times(200)),
        "clocks": lambda: builds.clocks(SEED),
        "ends": lambda: processes.ends(times(40)),
        "memory": lambda: memory(times(400)),
        "files": lambda: files(times(10_000)),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keras", action="store_true")
    options = parser.parse_args()
    known = faults(0.1 if options.quick else 1, options.keras)
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no such faults: {', '.join(sorted(unknown))}")
    lost = 0
    for name in options.names or known:
        begin = time.perf_counter()
        survived, tries = known[name]()
        seconds = time.perf_counter() - begin
        print(f"{name}: {survived} of {tries} in {seconds:.0f} s", flush=True)
        lost += tries - survived
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
