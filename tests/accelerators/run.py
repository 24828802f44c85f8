"""Compile every program of `programs.py` for a TPU v5e and an H100.

    python tests/accelerators/run.py LIBS [--target cuda] [--only RotRNN]
    python tests/accelerators/run.py LIBS --write

`targets.py` says how to make the folder LIBS. A program that does not compile
fails, and so does one whose temporaries have grown since `temporaries.json` was
written, which `--write` does. It takes some minutes for each target, and is not
part of CI.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import targets

TABLE = Path(__file__).with_name("temporaries.json")
# XLA's own choices move temporaries by some percent, and by a few buffers.
GROWTH, BUFFERS = 1.1, 2**20


def compile_all(libraries, target, only):
    """The bytes of each program's temporaries, or why it does not compile."""
    device = targets.prepare(libraries, target)
    import jax
    from programs import ONLY_ON
    from programs import PROGRAMS
    from programs import WITH_FLOAT64

    targets.choose(target)
    found = {}
    for name, build in PROGRAMS.items():
        if only not in name or ONLY_ON.get(name, target) != target:
            continue
        scope = jax.enable_x64(True) if name in WITH_FLOAT64 else nullcontext()
        try:
            with scope:
                found[name] = targets.temporaries(device, target, *build())
        except Exception as failure:
            found[name] = f"{type(failure).__name__}: {failure}"[:2000]
        print(f"{target}: {name}: {described(found[name])}", flush=True)
    return found


def described(found):
    return found if isinstance(found, str) else f"{found / 1e6:.1f} MB"


def compiled_apart(options, target):
    """`compile_all` in a process of its own, which JAX needs."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, __file__, options.libraries]
        command += ["--target", target, "--only", options.only]
        subprocess.run([*command, "--results", results], check=True)
        return json.loads(results.read_text())


def problems(found, expected):
    """A line for each program that is worse than the table says."""
    for name, result in found.items():
        before = expected.get(name)
        if isinstance(result, str):
            yield f"{name}: does not compile: {result}"
        elif before is None:
            yield f"{name}: is not in {TABLE.name}: run with --write"
        elif result > GROWTH * before + BUFFERS:
            yield f"{name}: {described(result)}, before {described(before)}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("libraries", metavar="LIBS")
    parser.add_argument("--target", choices=targets.TARGETS)
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.results:
        found = compile_all(options.libraries, options.target, options.only)
        options.results.write_text(json.dumps(found))
        return
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    failed = []
    for target in [options.target] if options.target else targets.TARGETS:
        found = compiled_apart(options, target)
        expected = table.setdefault(target, {})
        if options.write:
            expected.update(
                (name, result)
                for name, result in found.items()
                if not isinstance(result, str)
            )
            TABLE.write_text(json.dumps(table, indent=1) + "\n")
        failed += [f"{target}: {line}" for line in problems(found, expected)]
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
