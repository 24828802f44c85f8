"""The speed of the scans, compared with peers and the machine's limits.

    python benchmarks/scan.py [--backends jax torch] [--cases TEXT]
        [--output FOLDER]

For each size, a process per backend measures our kernels, those of the
framework and of Keras, a copy of the same memory and a large product of
matrices. Rounds are interleaved, so that a busy machine slows all alike;
results are medians. Times are given as multiples of a limit: for a scan,
copying its inputs into existing memory; for a projected scan, its arithmetic at
the rate of the large product. "Backward" is forward and backward with given
cotangents. Memory is the peak of a call beyond what the process held before.
Times are measured with freed memory kept (`config.keep_freed_memory`), and in a
second process with freed memory returned to the system.

Prints a table and writes it to FOLDER as scan.md, with a plot, scan.png.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

BACKENDS = ("jax", "torch", "tensorflow")
HERE = Path(__file__).parent


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backends", nargs="+", default=BACKENDS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--cases",
        default="",
        help='those with this in their names, such as "complex"',
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=1200,
        help="stop a backend after this time and report what it measured",
    )
    parser.add_argument("--output", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    results = []
    for backend in arguments.backends:
        returning = list(measured(backend, arguments, "--return-memory"))
        for result in measured(backend, arguments):
            add_returning(result, returning)
            results.append(result)
    text = report(results)
    print(text)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "scan.md").write_text(text)
    plot(results, arguments.output / "scan.png")


def measured(backend, arguments, *options):
    """The results of a separate process, one dictionary per case."""
    command = [sys.executable, HERE / "scan_measurements.py"]
    process = subprocess.Popen(
        [
            *command,
            *("--rounds", str(arguments.rounds)),
            *("--cases", arguments.cases),
            *options,
        ],
        env={**os.environ, "KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = threading.Timer(arguments.seconds, process.kill)
    deadline.start()
    for line in process.stdout:
        result = json.loads(line)
        print(f"{backend}: {result['case']}", file=sys.stderr)
        yield result
    deadline.cancel()
    if process.wait():
        print(f"{backend} was stopped or failed.", file=sys.stderr)


def add_returning(result, others):
    """Add to a case the times that it took where memory is returned."""
    for other in others:
        if other["case"] != result["case"]:
            continue
        for name, times in other["times"].items():
            if "backward" in times and name in result["times"]:
                result["times"][name]["returning"] = times["backward"]


# Tables and plots.


def rows(results):
    """Rows of the table: backend, case, contender and measurements."""
    for result in results:
        for name, times in result["times"].items():
            if not times:
                continue
            cells = []
            for key in ("forward", "backward"):
                if key not in times:
                    cells += ["-", "-"]
                    continue
                ratio = times[key] / result["limit"][key]
                memory = times.get(f"{key} memory")
                cells.append(f"{ratio:.1f} ({times[key]:.1f} ms)")
                cells.append("-" if memory is None else f"{memory:.0f} MB")
            returning = times.get("returning")
            cells.append("-" if returning is None else f"{returning:.1f} ms")
            yield result["backend"], result["case"], name, *cells


def report(results):
    lines = [
        "Multiples of the limit, and milliseconds. The limit of a scan of "
        "(batch, time, channels) is a copy of its inputs. That of a projected "
        "scan of (batch, time, features, numbers of state, units) is its "
        "arithmetic at the rate of a 2048-cubed product.",
        "",
        "| backend | case | kernel | forward | memory | with backward "
        "| memory | with backward, memory returned |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows(results)]
    return "\n".join(lines) + "\n"


def plot(results, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(result["case"] for result in results))
    backends = list(dict.fromkeys(result["backend"] for result in results))
    figure, axes = pyplot.subplots(
        len(cases),
        len(backends),
        figsize=(6 * len(backends), 2.2 * len(cases)),
        squeeze=False,
        layout="constrained",
    )
    for result in results:
        axis = axes[cases.index(result["case"])][
            backends.index(result["backend"])
        ]
        times = {n: t for n, t in result["times"].items() if "backward" in t}
        limit = result["limit"]
        axis.barh(
            list(times),
            [t["backward"] / limit["backward"] for t in times.values()],
        )
        axis.axvline(1.0, color="black", linewidth=1)
        axis.set_xscale("log")
        axis.set_title(f"{result['backend']}, {result['case']}", fontsize=9)
        axis.set_xlabel(f"multiples of the limit ({limit['name']})", fontsize=8)
        axis.tick_params(labelsize=8)
    figure.suptitle("Forward and backward; shorter is faster")
    figure.savefig(path, dpi=120)
    print(f"Wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
