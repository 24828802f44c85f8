"""How fast the scans run, beside their peers and the machine's limits.

    python benchmarks/scan.py [--backends jax torch] [--output FOLDER]

One process a backend measures, for each size, our kernels, those that the
framework and Keras offer, a copy of the same memory and a large product of
matrices; rounds are interleaved, so that a busy machine disturbs all alike,
and the median counts. Times are multiples of the limit: for a scan, copying
its inputs into memory that is at hand; for a projected scan, its arithmetic at
the rate of the large product. "Backward" is forward and backward with given
cotangents. Memory is what the process needed beyond what it held before.

Prints a table, and writes it to FOLDER as scan.md with a plot, scan.png.
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
        "--seconds",
        type=float,
        default=1200,
        help="stop a backend after so long, and report what there is",
    )
    parser.add_argument("--output", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    results = [
        result
        for backend in arguments.backends
        for result in measured(backend, arguments)
    ]
    text = report(results)
    print(text)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "scan.md").write_text(text)
    plot(results, arguments.output / "scan.png")


def measured(backend, arguments):
    """What a process of its own measures, a dictionary for each case."""
    command = [sys.executable, HERE / "scan_measurements.py"]
    process = subprocess.Popen(
        [*command, "--rounds", str(arguments.rounds)],
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
        print(f"{backend} did not come to its end.", file=sys.stderr)


# What is shown.


def rows(results):
    """Backend, case, contender, and a cell each for what was measured."""
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
            yield result["backend"], result["case"], name, *cells


def report(results):
    lines = [
        "Multiples of the limit, with milliseconds: of copying the inputs, "
        "for scans of (batch, time, channels); of the arithmetic at the rate "
        "of a 2048-cubed product, for projected scans of (batch, time, "
        "features, numbers of state, units).",
        "",
        "| backend | case | kernel | forward | memory | with backward "
        "| memory |",
        "|---|---|---|---|---|---|---|",
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
