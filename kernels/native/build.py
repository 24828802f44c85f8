"""Compiles the native code on first use and caches the libraries.

The core is one library, independent of any framework. An adapter is a small
library that binds the core to one framework, compiled against its headers. Both
are kept in a cache, keyed by their inputs:

    CACHE/ADAPTER-SOURCES/COMPILER-CONTENT.so

SOURCES is a hash of the source files, the flags and the framework's version,
COMPILER one of the compiler's version, and CONTENT one of the library itself,
by which a damaged file is detected. If no compiler works, a library made by
another one is used: an image can be built with a compiler and shipped without
it.
"""

import ctypes
import hashlib
import importlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from functools import partial
from importlib import metadata
from pathlib import Path

from keras_linrec.kernels.native import BuildError
from keras_linrec.kernels.native import UnsupportedPlatform
from keras_linrec.kernels.native import cache
from keras_linrec.settings import environment

SOURCE = Path(__file__).parent / "source"

_THREADS_VARIABLE = "KERAS_LINREC_NUM_THREADS"
_SET_VARIABLE = "KERAS_LINREC_INSTRUCTION_SET"

_ADAPTERS = ("jax", "tensorflow")

_AVX2 = ("-mavx2", "-mfma")
_AVX512 = ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl")
_X86_SETS = {
    "avx512": (*_AVX512, *_AVX2, "-mprefer-vector-width=512"),
    "avx2": _AVX2,
    "baseline": (),
}
# Machine code for the generations of GPUs from Turing to Blackwell, which also
# runs on later GPUs of the same generation; drivers of newer ones compile the
# PTX of the oldest, which all of them can.
_CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)
CUDA_FLAGS = (
    "-O3",
    "-std=c++17",
    "--threads=0",
    f"-gencode=arch=compute_{_CAPABILITIES[0]},code=compute_{_CAPABILITIES[0]}",
    *(
        f"-gencode=arch=compute_{number},code=sm_{number}"
        for number in _CAPABILITIES
    ),
)
# The sources of the core, beside `kernels.cpp` for each set.
_CORE_SOURCES = (
    "carried_states.cpp",
    "causal_convolution.cpp",
    "cuda_calls.cpp",
    "cuda_driver.cpp",
    "impulse_response.cpp",
    "move_steps.cpp",
    "nonlinear_scan.cpp",
    "projected_scan.cpp",
    "scan.cpp",
    "varying_response.cpp",
    "parallel.cpp",
    "processors.cpp",
    "dispatch.cpp",
)


def load(adapter):
    """The library of an adapter as a `ctypes.CDLL`, built if necessary."""
    core()
    return ctypes.CDLL(str(library(adapter)))


@lru_cache
def core():
    """The core, with its symbols visible to the adapters loaded later."""
    _check_variables()
    # All frameworks in a process share one core, and so one set of threads.
    return ctypes.CDLL(str(library("core")), mode=ctypes.RTLD_GLOBAL)


def _check_variables():
    """Raise for values that the core, which reads them itself, would ignore."""
    threads = environment(_THREADS_VARIABLE, "1")
    # `isdecimal` alone accepts digits of every script.
    if not (threads.isascii() and threads.isdecimal() and int(threads) > 0):
        raise BuildError(
            f"{_THREADS_VARIABLE} should be a positive integer. "
            f"Received: {_THREADS_VARIABLE}={threads}"
        )
    instructions = environment(_SET_VARIABLE, "baseline")
    if instructions not in _X86_SETS:
        raise BuildError(
            f"{_SET_VARIABLE} should be one of {tuple(_X86_SETS)}. "
            f"Received: {_SET_VARIABLE}={instructions}"
        )


def library(adapter, retry=False):
    """The path of a compiled library, from the cache or built now.

    A build that failed with these sources and this compiler is tried again
    only with `retry`.

    Raises:
        BuildError: if no library is cached and none can be built.
    """
    recipe = _recipe(adapter)
    folder = f"{adapter}-{recipe.key()}"
    compiler = _compiler_key(recipe.compiler)
    found = cache.find(folder, compiler)
    if found:
        return found
    if compiler is None:
        raise BuildError(
            f"no working compiler was found ({recipe.compiler[0]}, from the "
            f"environment variable {recipe.variable} or the PATH): install "
            f"one, such as {'nvcc' if recipe.variable == 'NVCC' else 'g++'}, "
            f"or set {recipe.variable} to its command"
        )
    try:
        return _build_alone(recipe, folder, compiler, retry)
    except (BuildError, OSError) as failure:
        found = cache.find(folder, None)
        if found:
            return found
        if isinstance(failure, BuildError):
            raise
        raise BuildError(
            f"the cache {cache.folder()} cannot be written ({failure}): set "
            f"the environment variable {cache.VARIABLE} to another folder"
        ) from failure


def _build_alone(recipe, folder, compiler, retry):
    path = cache.make(folder)
    waiting = partial(
        _announce, "waiting for another process that is building this"
    )
    with cache.lock(path, waiting):
        # Another process may have built it while this one waited.
        found = cache.find(folder, compiler)
        return found or _build_once(recipe, path, compiler, retry)


def build(adapters):
    """Build adapters; yields (adapter, path or exception, seconds) for each."""
    for adapter in adapters:
        begin = time.perf_counter()
        try:
            result = library(adapter, retry=True)
        except (RuntimeError, ImportError) as failure:
            result = failure
        yield adapter, result, time.perf_counter() - begin


class _Recipe:
    """The commands that make a library, and what they depend on."""

    def __init__(self, adapter, objects, compiler, variable, notes=()):
        self.adapter = adapter
        # (source, flags) of each object; the link flags are the last, or None
        # if the only object is the library.
        *self.objects, self.link = objects
        self.compiler = compiler
        self.variable = variable
        self.notes = notes

    def key(self):
        digest = hashlib.sha256()
        for path in sorted(SOURCE.iterdir()):
            # Headers count for all libraries, except those of another adapter.
            owner = path.stem.split("_")[0]
            others = owner in _ADAPTERS and owner != self.adapter
            header = path.suffix == ".h" and not others
            if header or path.name in dict(self.objects):
                digest.update(path.read_bytes())
        digest.update(repr((self.objects, self.link, self.notes)).encode())
        digest.update(platform.machine().encode())
        return digest.hexdigest()[:16]


def _recipe(adapter):
    if os.name != "posix":
        raise UnsupportedPlatform(
            f"the native kernels are built on Linux and macOS only, not on "
            f"{platform.system()}"
        )
    if adapter == "cuda":
        nvcc = list(command("NVCC") or ("nvcc",))
        return _Recipe(
            adapter, [("cuda_kernels.cu", CUDA_FLAGS), None], nvcc, "NVCC"
        )
    compiler = list(cxx())
    common = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden")
    if adapter == "core":
        return _Recipe(adapter, _core_objects(common), compiler, "CXX")
    framework, compile_flags, link_flags = importlib.import_module(
        f"keras_linrec.kernels.{adapter}.build_flags"
    ).flags()
    source = f"{adapter}.cpp"
    # The core's symbols are resolved when the adapter is loaded.
    if sys.platform == "darwin":
        link_flags = ("-undefined", "dynamic_lookup", *link_flags)
    return _Recipe(
        adapter,
        [(source, (*common, "-O2", *compile_flags)), tuple(link_flags)],
        compiler,
        "CXX",
        (framework, metadata.version(framework)),
    )


def _core_objects(common):
    common = (*common, "-ffp-contract=fast")
    sets = {"baseline": ()}
    if platform.machine().lower() in ("x86_64", "amd64"):
        sets = _X86_SETS
        common = (*common, "-DKERAS_LINREC_X86")
    objects = [
        ("kernels.cpp", (*common, f"-DKERAS_LINREC_SET={name}", *flags))
        for name, flags in sets.items()
    ]
    objects += [(source, common) for source in _CORE_SOURCES]
    return [*objects, ("-pthread", "-ldl")]


def cxx():
    """The command of the C++ compiler, as a tuple."""
    chosen = command("CXX")
    if chosen:
        return chosen
    found = (shutil.which(name) for name in ("c++", "g++", "clang++"))
    return (next((path for path in found if path), "c++"),)


def command(variable):
    """The command in an environment variable, as a tuple; empty if unset."""
    text = environment(variable)
    try:
        return tuple(shlex.split(text))
    except ValueError as failure:
        raise BuildError(
            f"{variable} should be a command as in a shell ({failure}). "
            f"Received: {variable}={text}"
        ) from failure


@lru_cache
def version_of(compiler):
    """The output of `compiler --version`, or `None` if it does not run."""
    try:
        answer = subprocess.run(
            [*compiler, "--version"], capture_output=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def _compiler_key(compiler):
    version = version_of(tuple(compiler))
    if version is None:
        return None
    arguments = shlex.join(compiler[1:]).encode()
    return hashlib.sha256(version + arguments).hexdigest()[:16]


def _announce(text):
    print(f"keras_linrec: {text}", file=sys.stderr, flush=True)


def _build_once(recipe, folder, compiler, retry):
    failure = folder / f"{compiler}.failed"
    remedy = (
        f"once that is fixed, run `python -m keras_linrec.kernels build "
        f"{recipe.adapter}`"
    )
    # It is empty if the disk was full.
    reason = failure.read_text() if failure.exists() else ""
    if reason and not retry:
        raise BuildError(f"{reason}; {remedy}")
    try:
        path = _build(recipe, folder, compiler)
    except BuildError as error:
        if not isinstance(error, _PassingFailure):
            with suppress(OSError):
                failure.write_text(str(error))
        raise BuildError(f"{error}; {remedy}") from error
    failure.unlink(missing_ok=True)
    return path


class _PassingFailure(BuildError):
    """A failure that another attempt may not meet, and that is forgotten."""


# What compilers say when the system kills a part of them, often for lack of
# memory, or when the disk of their temporary files is full.
_PASSING = ("Killed", "terminated program", "No space left on device")
# A library takes less.
_LEAST_SPACE = 16 * 2**20


def _build(recipe, folder, compiler):
    # This process holds the lock: what others left, they were killed over.
    for abandoned in folder.glob("build-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    how_long = "about a minute" if recipe.adapter == "tensorflow" else "seconds"
    _announce(
        f"compiling the native kernels ({recipe.adapter}) once; this takes "
        f"{how_long}"
    )
    begin = time.perf_counter()
    # Inside the cache folder, so that the final move is a rename: an
    # interrupted build leaves nothing that looks complete.
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
        try:
            made = _compile(recipe, Path(scratch))
        except BuildError as failure:
            if shutil.disk_usage(scratch).free > _LEAST_SPACE:
                raise
            raise _PassingFailure(
                f"the disk of {folder.parent} is full: {failure}"
            ) from failure
        path = folder / f"{compiler}-{cache.content_key(made)}.so"
        # Whatever the umask: only the user may write to it.
        made.chmod(0o755)
        made.rename(path)
    _announce(f"compiled in {time.perf_counter() - begin:.1f} s: {path}")
    return path


def _compile(recipe, scratch):
    def compile_one(numbered):
        number, (source, flags) = numbered
        made = scratch / f"{number}.o"
        kind = "-fatbin" if recipe.link is None else "-c"
        _run(
            [*recipe.compiler, *flags, kind, str(SOURCE / source)]
            + ["-o", str(made)]
        )
        return str(made)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(compile_one, enumerate(recipe.objects)))
    if recipe.link is None:
        return Path(objects[0])
    made = scratch / "library.so"
    _run([*recipe.compiler, "-shared", *objects, "-o", str(made), *recipe.link])
    return made


def _run(command):
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
        raise (_PassingFailure if passing else BuildError)(
            f"`{shlex.join(command)}` failed: {reason}"
        )
