"""Compiles libraries for every system on one machine, with Zig's compiler.

Zig (https://ziglang.org, or `pip install ziglang`) is Clang with the C and C++
libraries of the other systems.
"""

import struct
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from keras_linrec.kernels.native import BuildError
from keras_linrec.kernels.native import recipes
from keras_linrec.kernels.native.build import command
from keras_linrec.kernels.native.systems import Target

# As Zig names them, with the oldest version of the system: a library runs on
# every newer one.
TARGETS = (
    "x86_64-linux-gnu.2.17",
    "aarch64-linux-gnu.2.17",
    "x86_64-linux-musl",
    "aarch64-linux-musl",
    "x86_64-macos.11.0",
    "aarch64-macos.11.0",
    "x86_64-windows-gnu",
)


def compile_for(target, adapter, folder, include=None):
    """Compile a library for another system; returns its path.

    The same sources and the same version of Zig give the same bytes, in every
    folder and at any time.

    Args:
        target: one of `TARGETS`.
        adapter: "core", or "jax".
        folder: the folder for the library, which is named
            `keras_linrec_ADAPTER` and ends as its system's libraries do. On
            Windows an adapter is linked to the core, which has to be there.
        include: the folder of XLA's FFI headers, for "jax".

    Raises:
        BuildError: if the compiler does not run, or fails.
    """
    folder, compiled_for = Path(folder), system_of(target)
    compiler = (*zig(), "c++", "-target", target)
    # What the compiler would write down of this machine's folders.
    flags = ("-g0", f"-ffile-prefix-map={recipes.SOURCE}=source")
    if adapter == "core":
        recipe = recipes.core_recipe(compiled_for, compiler, flags)
    else:
        core = folder / f"keras_linrec_core{compiled_for.suffix}"
        recipe = recipes.adapter_recipe(
            adapter,
            compiled_for,
            compiler,
            (*flags, "-isystem", str(include)),
            (str(core),) if compiled_for.system == "windows" else (),
        )
    name = f"keras_linrec_{adapter}{compiled_for.suffix}"
    link_flags = [*recipe.link_flags, "-s"]
    if compiled_for.system == "linux":
        exports = recipes.SOURCE / "exports.map"
        link_flags.append(f"-Wl,--version-script={exports}")
    if compiled_for.system == "macos":
        # Otherwise the library contains the path that it was written to.
        link_flags.append(f"-Wl,-install_name,@rpath/{name}")
    recipe = replace(recipe, link_flags=tuple(link_flags))
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = recipes.compile_library(recipe, Path(scratch), name)
        if compiled_for.system == "windows":
            _remove_time(made)
        return made.rename(folder / name)


def _remove_time(path):
    """Set the time in the header of a Windows library to zero.

    Zig's linker has no option for that.
    """
    contents = bytearray(path.read_bytes())
    (header,) = struct.unpack_from("<I", contents, 0x3C)
    if contents[header : header + 4] != b"PE\0\0":
        raise BuildError(f"{path.name} is not a Windows library")
    struct.pack_into("<I", contents, header + 8, 0)
    path.write_bytes(contents)


def system_of(target):
    """The `Target` of a target as Zig names it."""
    machine, system = target.split("-")[:2]
    return Target(machine, system.split(".")[0])


def zig():
    """The command of Zig: from the variable ZIG, or the package `ziglang`."""
    return command("ZIG") or (sys.executable, "-m", "ziglang")
