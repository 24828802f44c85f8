"""The commands that compile a library, and running them.

A library is the core or an adapter, which binds the core to one framework. The
same recipes compile on first use (`build.py`) and for other systems
(`cross.py`).
"""

import hashlib
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from keras_linrec.kernels.native import BuildError
from keras_linrec.kernels.native.systems import Target

SOURCE = Path(__file__).parent / "source"

_ADAPTERS = ("jax", "tensorflow")
# Compiled once for each instruction set.
_KERNELS = "base/kernels.cpp"
_COMMON = ("-std=c++17", "-O3")
# Machine code for the generations of GPUs from Turing to Blackwell, which also
# runs on later GPUs of the same generation; drivers of newer ones compile the
# PTX of the oldest, which all of them can.
_CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)
CUDA_FLAGS = (
    *_COMMON,
    "--threads=0",
    f"-gencode=arch=compute_{_CAPABILITIES[0]},code=compute_{_CAPABILITIES[0]}",
    *(
        f"-gencode=arch=compute_{number},code=sm_{number}"
        for number in _CAPABILITIES
    ),
)


@dataclass(frozen=True)
class Recipe:
    """The commands that make a library, and what they depend on."""

    adapter: str
    target: Target
    # The compiler's command, and the environment variable that chooses it.
    compiler: tuple
    variable: str
    # (source, flags) of each object.
    objects: tuple
    # None if the only object is what is wanted: nvcc's file of kernels.
    link_flags: tuple | None = ()
    notes: tuple = ()

    def key(self):
        """A hash of all that the library depends on, except the compiler."""
        digest = hashlib.sha256(sources_key(self.adapter).encode())
        parts = self.objects, self.link_flags, self.notes, tuple(self.target)
        digest.update(repr(parts).encode())
        return digest.hexdigest()[:16]


def sources_key(adapter):
    """A hash of the sources that a library is compiled from."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*.*")):
        owner = _owner(path)
        # The core's headers count for the adapters too.
        if owner == adapter or (owner == "core" and path.suffix == ".h"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _owner(path):
    """The library that a source belongs to."""
    if path.suffix == ".cu":
        return "cuda"
    first = path.stem.split("_")[0]
    return first if first in _ADAPTERS else "core"


def _sources(adapter):
    """Its files that are compiled, as paths in `source/`."""
    return [
        path.relative_to(SOURCE).as_posix()
        for path in sorted(SOURCE.rglob("*.c*"))
        if _owner(path) == adapter
    ]


def core_recipe(target, compiler, flags=()):
    """The recipe of the core."""
    flags = (*_COMMON, *target.compile_flags, "-ffp-contract=fast", *flags)
    kernels = [
        (_KERNELS, (*flags, f"-DKERAS_LINREC_SET={name}", *extra))
        for name, extra in target.instruction_sets.items()
    ]
    others = [
        (source, flags) for source in _sources("core") if source != _KERNELS
    ]
    return Recipe(
        adapter="core",
        target=target,
        compiler=tuple(compiler),
        variable="CXX",
        objects=(*kernels, *others),
        # Old versions of Linux' C library have `dlopen` in a library apart.
        link_flags=("-pthread", *["-ldl"] * (target.system == "linux")),
    )


def adapter_recipe(
    adapter, target, compiler, flags=(), link_flags=(), notes=()
):
    """The recipe of an adapter, with its framework's flags."""
    flags = (*_COMMON, *target.compile_flags, "-O2", *flags)
    return Recipe(
        adapter=adapter,
        target=target,
        compiler=tuple(compiler),
        variable="CXX",
        objects=tuple((source, flags) for source in _sources(adapter)),
        link_flags=(*target.adapter_link_flags, *link_flags),
        notes=tuple(notes),
    )


def cuda_recipe(target, compiler):
    """The recipe of the kernels for NVIDIA GPUs, one file for all systems."""
    return Recipe(
        adapter="cuda",
        target=target,
        compiler=tuple(compiler),
        variable="NVCC",
        objects=tuple((source, CUDA_FLAGS) for source in _sources("cuda")),
        link_flags=None,
    )


class PassingFailure(BuildError):
    """A failure that another attempt may not meet, and that is forgotten."""


# What compilers say when the system kills a part of them, often for lack of
# memory, or when the disk of their temporary files is full.
_PASSING = ("Killed", "terminated program", "No space left on device")


def compile_library(recipe, scratch, name):
    """Compile a library in the folder `scratch`; returns its path.

    Raises:
        BuildError: if the compiler fails; the message has its first error.
    """

    def compile_one(numbered):
        number, (source, flags) = numbered
        made = scratch / f"{number}.o"
        kind = "-fatbin" if recipe.link_flags is None else "-c"
        run_command(
            [*recipe.compiler, *flags, f"-I{SOURCE}", kind]
            + [str(SOURCE / source)]
            + ["-o", str(made)]
        )
        return str(made)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(compile_one, enumerate(recipe.objects)))
    if recipe.link_flags is None:
        return Path(objects[0])
    made = scratch / name
    run_command(
        [*recipe.compiler, "-shared", *objects, "-o", str(made)]
        + list(recipe.link_flags)
    )
    return made


def run_command(command):
    """Run a compiler; raises `BuildError` with its first error if it fails."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace"
        )
    except OSError as failure:
        raise BuildError(f"{command[0]} does not run: {failure}") from failure
    if answer.returncode:
        lines = [line for line in answer.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line] or lines
        reason = errors[0] if errors else f"status {answer.returncode}"
        if answer.returncode < 0:
            reason = f"killed by signal {-answer.returncode}"
        passing = answer.returncode < 0 or any(
            words in answer.stderr for words in _PASSING
        )
        raise (PassingFailure if passing else BuildError)(
            f"`{shlex.join(command)}` failed: {reason}"
        )
