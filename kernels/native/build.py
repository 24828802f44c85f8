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
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import lru_cache
from functools import partial
from importlib import metadata
from pathlib import Path

from keras_linrec.kernels.native import BuildError
from keras_linrec.kernels.native import UnsupportedPlatform
from keras_linrec.kernels.native import cache
from keras_linrec.kernels.native import prebuilt
from keras_linrec.kernels.native import recipes
from keras_linrec.kernels.native import systems
from keras_linrec.settings import environment

_THREADS_VARIABLE = "KERAS_LINREC_NUM_THREADS"
# As in `parallel.cpp`.
_MOST_THREADS = 1024
_SET_VARIABLE = "KERAS_LINREC_INSTRUCTION_SET"

# Where the libraries of this process come from, in words, by adapter.
origins = {}


def load(adapter, open_library):
    """Load the core and then the library of an adapter.

    A library that the package was installed with comes first, then one in the
    cache, which is built if necessary.

    Args:
        adapter: the adapter's name.
        open_library: loads the library at a path. An exception that it raises
            on an installed library has the next one loaded.

    Returns:
        The result of `open_library`.

    Raises:
        BuildError: if no library is installed or cached and none can be built.
    """
    core()
    return _load(adapter, open_library)


@lru_cache
def core():
    """The core, with its symbols visible to the adapters loaded later."""
    _check_variables()
    # All frameworks in a process share one core, and so one set of threads.
    return _load("core", partial(ctypes.CDLL, mode=ctypes.RTLD_GLOBAL))


def _load(adapter, open_library):
    refusal = ""
    try:
        path = prebuilt.find(adapter)
        if path:
            loaded = open_library(str(path))
            origins[adapter] = f"installed with the package, {path}"
            return loaded
    except Exception as failure:
        refusal = f"the installed library is not used: {failure}"
    try:
        path = library(adapter)
    except (BuildError, UnsupportedPlatform) as failure:
        if not refusal:
            raise
        raise BuildError(f"{refusal}; {failure}") from failure
    loaded = open_library(str(path))
    origins[adapter] = f"compiled on this machine, {path}"
    if refusal:
        origins[adapter] += f"; {refusal}"
    return loaded


def _check_variables():
    """Raise for values that the core, which reads them itself, would ignore."""
    threads = environment(_THREADS_VARIABLE, "1")
    # `isdecimal` alone accepts digits of every script.
    decimal = threads.isascii() and threads.isdecimal()
    # Python converts no integer of thousands of digits.
    short = len(threads.lstrip("0")) <= len(str(_MOST_THREADS))
    if not (decimal and short and 1 <= int(threads[-9:]) <= _MOST_THREADS):
        raise BuildError(
            f"{_THREADS_VARIABLE} should be an integer from 1 to "
            f"{_MOST_THREADS}. "
            f"Received: {_THREADS_VARIABLE}={threads}"
        )
    instructions = environment(_SET_VARIABLE, "baseline")
    if instructions not in systems.INSTRUCTION_SETS:
        raise BuildError(
            f"{_SET_VARIABLE} should be one of {systems.INSTRUCTION_SETS}. "
            f"Received: {_SET_VARIABLE}={instructions}"
        )
    allowed = environment(prebuilt.VARIABLE, prebuilt.CHOICES[0])
    if allowed not in prebuilt.CHOICES:
        raise BuildError(
            f"{prebuilt.VARIABLE} should be one of {prebuilt.CHOICES}. "
            f"Received: {prebuilt.VARIABLE}={allowed}"
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
    """Build adapters; yields (adapter, path or exception, seconds) for each.

    Those that the package was installed with are not built again.
    """
    for adapter in adapters:
        begin = time.perf_counter()
        try:
            result = _installed(adapter) or library(adapter, retry=True)
        except (RuntimeError, ImportError) as failure:
            result = failure
        yield adapter, result, time.perf_counter() - begin


def _installed(adapter):
    try:
        return prebuilt.find(adapter)
    except BuildError:
        return None


def _recipe(adapter):
    target = systems.here()
    if target.system == "windows":
        raise UnsupportedPlatform(
            "the native kernels are built on Linux and macOS only, not on "
            f"{platform.system()}"
        )
    if adapter == "core":
        return recipes.core_recipe(target, cxx())
    if adapter == "cuda":
        return recipes.cuda_recipe(target, nvcc())
    framework = importlib.import_module(
        f"keras_linrec.kernels.{adapter}.build_flags"
    )
    package, compile_flags, link_flags = framework.flags()
    return recipes.adapter_recipe(
        adapter,
        target,
        cxx(),
        compile_flags,
        link_flags,
        (package, metadata.version(package)),
    )


def nvcc():
    """The command of CUDA's compiler, as a tuple."""
    return command("NVCC") or ("nvcc",)


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
    version = version_of(compiler)
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
        if not isinstance(error, recipes.PassingFailure):
            with suppress(OSError):
                failure.write_text(str(error))
        raise BuildError(f"{error}; {remedy}") from error
    failure.unlink(missing_ok=True)
    return path


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
            made = recipes.compile_library(
                recipe, Path(scratch), f"library{recipe.target.suffix}"
            )
        except BuildError as failure:
            if shutil.disk_usage(scratch).free > _LEAST_SPACE:
                raise
            raise recipes.PassingFailure(
                f"the disk of {folder.parent} is full: {failure}"
            ) from failure
        path = folder / f"{compiler}-{cache.content_key(made)}.so"
        # Whatever the umask: only the user may write to it.
        made.chmod(0o755)
        made.rename(path)
    _announce(f"compiled in {time.perf_counter() - begin:.1f} s: {path}")
    return path
