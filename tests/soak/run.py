"""Random models and layers, used in every way, for as long as asked.

    python tests/soak/run.py --minutes 60 --backend torch --counts torch.json

draws one case after another and compares every answer with the float64
definition or with a float64 model on the plain kernel. Run it again with the
same `--counts` to go on. A case is a number, which seeds all that it draws. For
each failure the command is printed that repeats it:

    python tests/soak/run.py --case 12345 --backend torch

Cases run in a process of their own, so that a crash or a hang is a failure of
the case that was running, and the soak goes on with the next.
"""

import argparse
import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

TESTS = Path(__file__).parent.parent
if not __package__:
    # Run as a script.
    sys.path[0] = str(TESTS)

from soak.counts import Counts  # noqa: E402

# Cases of one process: what a framework compiles stays in its memory.
CASES_A_PROCESS = 100
# Seconds after which a case counts as hanging.
LONGEST_CASE = 600
BACKENDS = ("jax", "tensorflow", "torch")


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument(
        "--cases", type=int, default=math.inf, help="stop after so many"
    )
    parser.add_argument("--backend", choices=BACKENDS, default="torch")
    parser.add_argument(
        "--seed", type=int, default=0, help="the first case (default 0)"
    )
    parser.add_argument(
        "--counts", metavar="FILE", help="JSON file to write and go on from"
    )
    parser.add_argument("--case", type=int, help="run this case alone")
    return parser.parse_args(arguments)


class Worker:
    """A process that runs cases, and the lines that it prints."""

    def __init__(self, first, backend):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "soak.worker", str(first)],
            cwd=TESTS,
            env=environment(backend),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            # A process that is killed may leave half a line.
            if line.endswith("\n"):
                self.lines.put(json.loads(line))
        self.lines.put(None)

    def next_line(self, timeout):
        """The next line; `None` if the process has ended.

        Raises:
            queue.Empty: after `timeout` seconds.
        """
        return self.lines.get(timeout=timeout)

    def stop(self):
        """End the process; its exit status."""
        self.process.kill()
        status = self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        return status


def environment(backend):
    return {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # XLA's compilation is most of the time; the numbers are the same.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }


def results(first, backend):
    """The results of case after case, without end.

    A worker that ends is replaced.
    """
    while True:
        worker = Worker(first, backend)
        try:
            for result in results_of(worker, first):
                yield result
                first = result["case"] + 1
        finally:
            worker.stop()


def results_of(worker, first):
    """The results of one worker, until it fails or has run its cases."""
    running = first
    while running < first + CASES_A_PROCESS:
        try:
            line = worker.next_line(LONGEST_CASE)
        except queue.Empty:
            yield {"case": running, "error": f"hangs for {LONGEST_CASE} s"}
            return
        if line is None:
            status = worker.stop()
            yield {"case": running, "error": f"process ended with {status}"}
            return
        if "begins" in line:
            running = line["begins"]
            continue
        yield line
        running += 1


def command_of(case, backend):
    return f"python tests/soak/run.py --case {case} --backend {backend}"


def soak(minutes, backend, seed=0, path=None, cases=math.inf):
    """Run cases for some minutes, or until there are so many.

    Returns:
        The counts, those of the file included.
    """
    counts = Counts.read(path, backend, seed)
    begin, before = time.monotonic(), counts.minutes
    with contextlib.closing(results(counts.next_case, backend)) as found:
        for done, result in enumerate(found, 1):
            if "error" in result:
                result["command"] = command_of(result["case"], backend)
                print(
                    result["command"],
                    result.get("drawn", ""),
                    result["error"],
                    sep="\n",
                    flush=True,
                )
            elapsed = (time.monotonic() - begin) / 60
            counts.minutes = before + elapsed
            counts.add(result)
            counts.write(path)
            if elapsed >= minutes or done >= cases:
                return counts


def run_case(case, backend):
    """Run one case in this process; whether it passes."""
    os.environ.update(environment(backend))
    from soak import worker

    result = worker.result(case)
    for name in ("drawn", "error"):
        if name in result:
            print(result.pop(name))
    print(json.dumps(result, indent=1))
    return "error" not in result


def main(arguments=None):
    options = parse(arguments)
    if options.case is not None:
        return 0 if run_case(options.case, options.backend) else 1
    counts = soak(
        options.minutes,
        options.backend,
        options.seed,
        options.counts,
        options.cases,
    )
    print(counts.summary())
    return 1 if counts.failures else 0


if __name__ == "__main__":
    sys.exit(main())
