"""Headers of frameworks, from the package index, and TensorFlow's adapter."""

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

from keras_linrec.kernels.native import recipes
from keras_linrec.kernels.native.systems import Target

# A runtime of XLA takes code that was compiled with older headers of its
# foreign function interface, and refuses newer ones: this is the oldest JAX
# that `pyproject.toml` allows.
JAXLIB = "jaxlib==0.4.34"
# One patch of each minor version, to which an adapter is bound. Before 2.20,
# TensorFlow's packages lack headers that it needs.
TENSORFLOW = ("2.20.0", "2.21.0")

_PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_27")
_SHIM = Path(__file__).parent / "libstdcxx.cpp"


def ffi_headers(downloads):
    """The folder of XLA's headers."""
    wheel = _download(JAXLIB, downloads)
    return _unpacked(wheel, ("jaxlib/include/",)) / "jaxlib" / "include"


def tensorflow(version, downloads):
    """The folder of a version of TensorFlow, and the tag of its wheel."""
    # The same interface as the package `tensorflow`, in half the size.
    wheel = _download(f"tensorflow-cpu=={version}", downloads)
    parts = ("tensorflow/include/", "tensorflow/libtensorflow_")
    return _unpacked(wheel, parts) / "tensorflow", wheel.stem.split("-")[-1]


def compile_tensorflow(version, framework, folder):
    """Compile TensorFlow's adapter for Linux on x86-64; returns its path.

    By GCC and not by Zig, whose C++ library cannot exchange strings with
    TensorFlow's.

    Args:
        version: of TensorFlow.
        framework: the folder of that version.
        folder: the folder for the library.
    """
    include = framework / "include"
    flags = (
        *("-isystem", str(include)),
        # TensorFlow's headers include others relative to these folders.
        *("-isystem", str(include / "external/highwayhash")),
        *("-isystem", str(include / "external/farmhash_archive/src")),
        # As TensorFlow itself is compiled.
        *("-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64"),
        "-DNDEBUG",
        # So that older C++ libraries have all that is called.
        *("-D_GLIBCXX_EXTERN_TEMPLATE=0", "-fno-sized-deallocation"),
        # So that no folder of this machine is in the library.
        f"-ffile-prefix-map={include}=tensorflow",
        f"-ffile-prefix-map={recipes.SOURCE}=source",
        f"-ffile-prefix-map={_SHIM.parent}=release",
    )
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        link_flags = (
            f"-Wl,--version-script={recipes.SOURCE / 'exports.map'}",
            f"-L{framework}",
            "-l:libtensorflow_framework.so.2",
            "-l:libtensorflow_cc.so.2",
            "-s",
        )
        recipe = recipes.adapter_recipe(
            "tensorflow", Target("x86_64", "linux"), ("g++",), flags, link_flags
        )
        shim = (str(_SHIM), recipe.objects[0][1])
        recipe = replace(recipe, objects=(*recipe.objects, shim))
        minor = version.rpartition(".")[0].replace(".", "_")
        name = f"keras_linrec_tensorflow_{minor}.so"
        made = recipes.compile_library(recipe, Path(scratch), name)
        return made.rename(folder / name)


def _download(requirement, folder):
    """The path of a wheel for Linux on x86-64; it is downloaded once."""
    name, version = requirement.replace("-", "_").split("==")
    pattern = f"{name}-{version}-*.whl"
    if not any(folder.glob(pattern)):
        platforms = [f"--platform={one}_x86_64" for one in _PLATFORMS]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            + ["--only-binary=:all:", "--python-version=3.11", *platforms]
            + ["--dest", folder, requirement],
            check=True,
        )
    return next(folder.glob(pattern))


def _unpacked(wheel, parts):
    """A folder with the files of a wheel whose names start like `parts`."""
    folder = wheel.with_suffix("")
    if not folder.exists():
        with (
            tempfile.TemporaryDirectory(dir=wheel.parent) as scratch,
            zipfile.ZipFile(wheel) as archive,
        ):
            names = [n for n in archive.namelist() if n.startswith(parts)]
            archive.extractall(Path(scratch, "whole"), names)
            # Renamed in the end, so that no half of it is taken for the whole.
            Path(scratch, "whole").rename(folder)
    return folder
