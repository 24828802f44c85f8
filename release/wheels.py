"""Build the wheels for every system, and the sdist, on one Linux machine.

    .venv/bin/pip install -e ".[release]"
    .venv/bin/python release/wheels.py

This compiles what is committed, for every target, and writes into `dist/`: a
wheel for each target with the compiled core and adapters, one without for any
platform, and the sdist. A library that needs more than its wheel's tag promises
is an error. The kernels for NVIDIA GPUs, in the wheels of Linux and Windows,
are compiled by `nvcc`; `--without-cuda` leaves them out. The first run
downloads a gigabyte of frameworks' headers into `.cache/release/` and takes
half an hour on two cores; `--targets` selects some.

    .venv/bin/python release/wheels.py --targets x86_64-linux-gnu.2.17 --twice

builds everything twice, the second time with nothing in Zig's cache, and
compares the bytes.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import archives
import frameworks
import inspection
import notices

from keras_linrec.kernels.native import cache
from keras_linrec.kernels.native import cross
from keras_linrec.kernels.native import prebuilt
from keras_linrec.kernels.native import recipes
from keras_linrec.kernels.native import systems

ROOT = Path(__file__).parent.parent
# A wheel's tag for each of `cross.TARGETS`.
TAGS = {
    "x86_64-linux-gnu.2.17": "manylinux_2_17_x86_64.manylinux2014_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux_2_17_aarch64.manylinux2014_aarch64",
    "x86_64-linux-musl": "musllinux_1_2_x86_64",
    "aarch64-linux-musl": "musllinux_1_2_aarch64",
    "x86_64-macos.11.0": "macosx_11_0_x86_64",
    "aarch64-macos.11.0": "macosx_11_0_arm64",
    "x86_64-windows-gnu": "win_amd64",
}
# TensorFlow's adapter is linked to TensorFlow; elsewhere the first use compiles
# it.
WITH_TENSORFLOW = "x86_64-linux-gnu.2.17"
_FOLDER = "keras_linrec/kernels/native/libraries"


def build(targets, folder, downloads, with_cuda=True):
    """Write the sdist and all wheels into a folder; returns their paths."""
    date = _date()
    with tempfile.TemporaryDirectory() as scratch:
        with_cuda = with_cuda and any(map(_has_cuda, targets))
        cuda = _compile_cuda(Path(scratch)) if with_cuda else None
        plain, sdist = _python_only(Path(scratch))
        files = archives.read_wheel(plain)
        made = [
            archives.write_sdist(sdist, folder, date),
            archives.write_wheel(folder, files, "any", date),
        ]
        for target in targets:
            _say(target)
            libraries = Path(scratch, target)
            libraries.mkdir()
            with_libraries = _with_libraries(
                files, target, libraries, downloads, cuda
            )
            made.append(
                archives.write_wheel(folder, with_libraries, TAGS[target], date)
            )
    return made


def _date():
    """The date of all files: `SOURCE_DATE_EPOCH`, or that of the commit."""
    chosen = os.environ.get("SOURCE_DATE_EPOCH")
    return int(chosen or _git("log", "-1", "--format=%ct"))


def _python_only(scratch):
    """The paths of a wheel and an sdist of what is committed."""
    changed = _git("status", "--porcelain")
    if changed:
        sys.exit(f"Commit these changes, or stash them:\n{changed}")
    source = scratch / "source"
    source.mkdir()
    archive = subprocess.check_output(["git", "archive", "HEAD"], cwd=ROOT)
    subprocess.run(["tar", "-x"], input=archive, cwd=source, check=True)
    answer = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", scratch, source],
        capture_output=True,
        text=True,
    )
    if answer.returncode:
        sys.exit(answer.stdout + answer.stderr)
    return next(scratch.glob("*.whl")), next(scratch.glob("*.tar.gz"))


def _has_cuda(target):
    return cross.system_of(target).system in ("linux", "windows")


def _compile_cuda(scratch):
    """The path of the kernels for NVIDIA GPUs, the same for every system."""
    _say("cuda")
    recipe = recipes.cuda_recipe(systems.here(), ("nvcc",))
    made = recipes.compile_library(recipe, scratch, "cuda")
    return made.rename(scratch / "keras_linrec_cuda.fatbin")


def _with_libraries(files, target, folder, downloads, cuda):
    """The files of a wheel, with the libraries and notices of a target."""
    libraries, tensorflow_include = _compile(target, folder, downloads)
    system = cross.system_of(target)
    if cuda and _has_cuda(target):
        shutil.copy(cuda, folder)
        libraries.append(_entry("cuda", folder / cuda.name))
    contents = {
        "target": system,
        "compiler": f"Zig {_zig_version()}, {target}",
        "libraries": libraries,
    }
    files = archives.with_licence(
        files, "NOTICES", notices.notices(target, tensorflow_include)
    )
    files[f"{_FOLDER}/{prebuilt.LIST}"] = json.dumps(
        contents, indent=2
    ).encode()
    for library in libraries:
        path = folder / library["file"]
        files[f"{_FOLDER}/{path.name}"] = path.read_bytes()
    return files


def _compile(target, folder, downloads):
    """Compile all libraries of a target.

    Returns:
        What `prebuilt.LIST` says of each, and the folder of TensorFlow's
        headers if there is an adapter for it.
    """
    tag, include = TAGS[target].split(".")[0], None
    libraries = []

    def add(adapter, path, tag=tag, **more):
        problems = inspection.problems(path, tag)
        if problems:
            sys.exit(f"{path.name} for {tag}: {'; '.join(problems)}")
        libraries.append({**_entry(adapter, path), **more})

    headers = frameworks.ffi_headers(downloads)
    for adapter in ("core", "jax"):
        add(adapter, cross.compile_for(target, adapter, folder, headers))
    if target == WITH_TENSORFLOW:
        for version in frameworks.TENSORFLOW:
            framework, tag = frameworks.tensorflow(version, downloads)
            include = framework / "include"
            path = frameworks.compile_tensorflow(version, framework, folder)
            minor = version.rpartition(".")[0]
            add("tensorflow", path, tag, version=minor)
    return libraries, include


def _entry(adapter, path):
    """What `prebuilt.LIST` says of a library."""
    return {
        "adapter": adapter,
        "file": path.name,
        "sources": recipes.sources_key(adapter),
        "content": cache.content_key(path),
    }


def _zig_version():
    command = [*cross.zig(), "version"]
    return subprocess.check_output(command, text=True).strip()


def _git(*arguments):
    return subprocess.check_output(
        ["git", *arguments], cwd=ROOT, text=True
    ).strip()


def _say(text):
    print(text, file=sys.stderr, flush=True)


def _hash(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _table(paths):
    """The sizes of the wheels, and of the libraries in them, in Markdown."""
    lines = ["| file | KiB | libraries, KiB |", "|---|---|---|"]
    for path in paths:
        libraries = {}
        if path.suffix == ".whl":
            libraries = {
                name.rpartition("/")[2]: content
                for name, content in archives.read_wheel(path).items()
                if name.startswith(_FOLDER) and not name.endswith(".json")
            }
        sizes = ", ".join(
            f"{name} {len(content) / 1024:.0f}"
            for name, content in libraries.items()
        )
        lines.append(
            f"| {path.name} | {path.stat().st_size / 1024:.0f} | {sizes} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--targets", nargs="*", choices=TAGS, default=[*TAGS])
    parser.add_argument("--folder", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--downloads", type=Path, default=ROOT / ".cache" / "release"
    )
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--without-cuda", action="store_true")
    options = parser.parse_args()
    for folder in (options.folder, options.downloads):
        folder.mkdir(parents=True, exist_ok=True)
    choices = options.downloads, not options.without_cuda
    paths = build(options.targets, options.folder, *choices)
    print(_table(paths))
    if options.twice:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["ZIG_GLOBAL_CACHE_DIR"] = f"{folder}/zig"
            again = build(options.targets, Path(folder), *choices)
            differing = [
                one.name
                for one, other in zip(paths, again)
                if _hash(one) != _hash(other)
            ]
        if differing:
            sys.exit(f"Built twice, these differ: {', '.join(differing)}")
        print("Built twice, with the same bytes.")


if __name__ == "__main__":
    main()
