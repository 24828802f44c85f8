"""The core as other compilers make it, and for other systems.

`tests/cross/run.py` runs what Zig makes for other systems. The core is
independent of frameworks, so these tests run under PyTorch only.
"""

import os
import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.needs_native import require_native

from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import core
from keras_linrec.kernels.native import cross
from keras_linrec.kernels.native import recipes
from keras_linrec.kernels.native import systems

pytestmark = pytest.mark.rest

# The core's choice between empty sets: its kernels take minutes to compile.
MAIN = """
#include <cstdio>
#include "base/core.h"
#include "base/kernels.h"
namespace keras_linrec {
extern const InstructionSet baseline, avx2, avx512;
const InstructionSet baseline{"baseline"}, avx2{"avx2"}, avx512{"avx512"};
int threads() { return 1; }
void use_openmp(void*, void*, void*) {}
}
int main() { std::puts(keras_linrec_instruction_set()); }
"""
COMPILERS = {
    "cxx": build.cxx(),
    "g++": ("g++",),
    "clang++": ("clang++",),
    "zig": (*cross.zig(), "c++"),
}


# The start of a Windows library: where its header is, and the header, whose
# last four bytes here are a time.
LIBRARY = bytes(60) + struct.pack("<I", 64) + b"PE\0\0" + bytes(4) + b"time"


# Stands in for Zig: logs its arguments and writes `LIBRARY`.
ZIG = """
import sys
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
if "{target}" not in sys.argv:
    sys.exit("error: another target")
with open(sys.argv[sys.argv.index("-o") + 1], "wb") as library:
    library.write({library!r})
"""


def best_set():
    """The best instruction set, as Linux names the processor's features."""
    if systems.here().machine != "x86_64":
        return "baseline"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        pytest.skip("only Linux names the processor's features in a file")
    flags = next(line for line in lines if line.startswith("flags"))
    flags = set(flags.split())
    if not {"avx2", "fma"} <= flags:
        return "baseline"
    wide = {"avx512f", "avx512dq", "avx512bw", "avx512vl"}
    return "avx512" if wide <= flags else "avx2"


def choice(program, limit=""):
    return subprocess.run(
        [program],
        env={**os.environ, "KERAS_LINREC_INSTRUCTION_SET": limit},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.strip()


@pytest.mark.parametrize(
    "name",
    [
        "cxx",
        "g++",
        "clang++",
        # The first program takes a minute: it compiles the C++ library.
        pytest.param("zig", marks=pytest.mark.slow),
    ],
)
def test_the_best_instruction_set_is_chosen(name, tmp_path):
    compiler = COMPILERS[name]
    absent = name == "zig" and "ZIG" not in os.environ
    if (absent and not find_spec("ziglang")) or not shutil.which(compiler[0]):
        pytest.skip(f"{name} is not installed")
    (tmp_path / "main.cpp").write_text(MAIN)
    sources = [
        recipes.SOURCE / "base" / name
        for name in ("dispatch.cpp", "systems.cpp")
    ]
    subprocess.run(
        [*compiler, "-std=c++17", f"-I{recipes.SOURCE}"]
        + [*systems.here().compile_flags, "main.cpp", *sources]
        + ["-pthread", "-o", "main"],
        cwd=tmp_path,
        check=True,
    )
    best = best_set()
    assert choice(tmp_path / "main") == best
    # From the best one down.
    order = list(systems.here().instruction_sets)
    for limit in order:
        expected = max(best, limit, key=order.index)
        assert choice(tmp_path / "main", limit) == expected


def test_the_core_in_use_runs_on_the_best_instruction_set():
    require_native()
    wanted = os.environ.get("KERAS_LINREC_INSTRUCTION_SET") or best_set()
    assert core.description().split()[0] == wanted


@pytest.fixture
def zig(tmp_path, monkeypatch):
    """Installs a stand-in for Zig that knows one target; returns its log."""

    def install(target):
        script, log = tmp_path / "zig.py", tmp_path / "log"
        source = ZIG.format(log=str(log), target=target, library=LIBRARY)
        script.write_text(source)
        monkeypatch.setenv("ZIG", f"{sys.executable} {script}")
        return log

    return install


@pytest.mark.parametrize(
    ("target", "suffix"),
    [
        ("x86_64-linux-gnu.2.17", ".so"),
        ("aarch64-linux-musl", ".so"),
        ("aarch64-macos", ".dylib"),
        ("x86_64-windows-gnu", ".dll"),
    ],
)
def test_a_library_for_another_system_is_named_as_its_are(
    target, suffix, zig, tmp_path
):
    log = zig(target)
    core_library = cross.compile_for(target, "core", tmp_path)
    adapter = cross.compile_for(target, "jax", tmp_path, include=tmp_path)
    assert core_library == tmp_path / f"keras_linrec_core{suffix}"
    assert adapter == tmp_path / f"keras_linrec_jax{suffix}"
    *compiled, linked = log.read_text().splitlines()
    # Nothing of this machine's folders is written into a library.
    paths = f"-ffile-prefix-map={recipes.SOURCE}="
    lines = [line for line in compiled if " -c " in line]
    assert lines and all(paths in line for line in lines)
    assert ("KERAS_LINREC_X86" in compiled[0]) == target.startswith("x86_64")
    # On Windows an adapter names the library that its functions come from.
    assert (str(core_library) in linked) == (suffix == ".dll")
    # Only Zig's linker for Windows writes the time.
    timed = core_library.read_bytes().endswith(b"time")
    assert timed == (suffix != ".dll")


def test_a_failure_for_another_system_names_the_command(zig, tmp_path):
    zig("x86_64-macos")
    with pytest.raises(build.BuildError, match="aarch64-macos.*another target"):
        cross.compile_for("aarch64-macos", "core", tmp_path)
