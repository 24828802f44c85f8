"""The systems and processors that native code is compiled for.

What differs between them in C++ is in `source/base/systems.h`.
"""

import platform
import sys
from typing import NamedTuple

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_SYSTEMS = {"darwin": "macos", "win32": "windows"}
_SUFFIXES = {"macos": ".dylib", "windows": ".dll"}

_AVX2 = ("-mavx2", "-mfma")
_AVX512 = ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl")
_X86_SETS = {
    "avx512": (*_AVX512, *_AVX2, "-mprefer-vector-width=512"),
    "avx2": _AVX2,
    "baseline": (),
}
# Every processor of the others has the only one, NEON on aarch64.
_OTHER_SETS = {"baseline": ()}
INSTRUCTION_SETS = tuple(_X86_SETS)


class Target(NamedTuple):
    """A processor ("x86_64", "aarch64", ...) and a system.

    The system is "linux", "macos" or "windows".
    """

    machine: str
    system: str

    @property
    def suffix(self):
        """How the names of shared libraries end."""
        return _SUFFIXES.get(self.system, ".so")

    @property
    def instruction_sets(self):
        """The compiler's flags for each set that the inner loops exist in."""
        return _X86_SETS if self.machine == "x86_64" else _OTHER_SETS

    @property
    def compile_flags(self):
        """The compiler's flags for all code in a shared library."""
        flags = ["-fvisibility=hidden"]
        if self.system != "windows":
            flags.append("-fPIC")
        if self.machine == "x86_64":
            flags.append("-DKERAS_LINREC_X86")
        return tuple(flags)

    @property
    def adapter_link_flags(self):
        """The linker's flags for a library that calls the core.

        The core's symbols are resolved when the adapter is loaded; only macOS
        has to be told.
        """
        if self.system == "macos":
            return ("-undefined", "dynamic_lookup")
        return ()


def here():
    """The target that this process runs on."""
    machine = platform.machine().lower()
    return Target(
        _MACHINES.get(machine, machine), _SYSTEMS.get(sys.platform, "linux")
    )
