"""Compiled libraries that the package was installed with.

Stand-ins for libraries are text files, which a function "loads" by reading.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from support.needs_native import require_native

from keras_linrec.kernels.native import BuildError
from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import cache
from keras_linrec.kernels.native import prebuilt
from keras_linrec.kernels.native import recipes
from keras_linrec.kernels.native import systems

pytestmark = pytest.mark.rest


def install(folder, *names, **more):
    """Fill a folder as a wheel does, with libraries of these names."""
    folder.mkdir(exist_ok=True)
    libraries = []
    for name in names:
        path = folder / f"{name}.so"
        if not path.exists():
            path.write_text(f"installed {name}")
        adapter, _, version = name.partition("-")
        library = {
            "adapter": adapter,
            "file": path.name,
            "sources": recipes.sources_key(adapter),
            "content": cache.content_key(path),
        }
        libraries.append(library | ({"version": version} if version else {}))
    contents = {"target": systems.here(), "libraries": libraries, **more}
    (folder / prebuilt.LIST).write_text(json.dumps(contents))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of installed libraries; what is compiled is "compiled"."""
    compiled = tmp_path / "compiled.so"
    compiled.write_text("compiled")
    monkeypatch.setattr(build, "library", lambda *_, **__: compiled)
    monkeypatch.setattr(build, "core", lambda: None)
    monkeypatch.setattr(build, "origins", {})
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path / "libraries")
    return tmp_path / "libraries"


def read(path):
    return Path(path).read_text()


def test_an_installed_library_comes_first(folder):
    install(folder, "core", "jax")
    assert build.load("jax", read) == "installed jax"
    assert build.origins["jax"].startswith("installed with the package")
    assert str(folder / "jax.so") in build.origins["jax"]


def test_what_was_not_installed_is_compiled(folder):
    assert build.load("jax", read) == "compiled"
    install(folder, "core")
    assert build.load("jax", read) == "compiled"
    assert build.origins["jax"].startswith("compiled on this machine")
    assert "not used" not in build.origins["jax"]


def test_a_variable_refuses_installed_libraries(folder, monkeypatch):
    install(folder, "jax")
    monkeypatch.setenv("KERAS_LINREC_PREBUILT", "no")
    assert build.load("jax", read) == "compiled"
    assert "KERAS_LINREC_PREBUILT is 'no'" in build.origins["jax"]
    monkeypatch.setenv("KERAS_LINREC_PREBUILT", "yes")
    assert build.load("jax", read) == "installed jax"


def for_another_processor(folder):
    install(folder, "jax", target=["s390x", "linux"])


def for_another_system(folder):
    install(folder, "jax", target=[systems.here().machine, "plan9"])


def truncated(folder):
    (folder / "jax.so").write_text("install")


def missing(folder):
    (folder / "jax.so").unlink()


def with_a_truncated_list(folder):
    text = (folder / prebuilt.LIST).read_text()
    (folder / prebuilt.LIST).write_text(text[:-20])


def without_a_target(folder):
    install(folder, "jax", target=None)


def from_other_sources(folder):
    text = (folder / prebuilt.LIST).read_text()
    key = recipes.sources_key("jax")
    (folder / prebuilt.LIST).write_text(text.replace(key, "0" * 16))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (for_another_processor, "compiled for s390x linux, and this is "),
        (for_another_system, "plan9, and this is "),
        (truncated, "jax.so is damaged"),
        (missing, "is damaged"),
        (with_a_truncated_list, "is damaged"),
        (without_a_target, "is damaged"),
        (from_other_sources, "compiled from other sources"),
    ],
)
def test_what_does_not_fit_is_replaced(folder, monkeypatch, spoil, reason):
    install(folder, "jax")
    spoil(folder)
    assert build.load("jax", read) == "compiled"
    assert reason in build.origins["jax"]

    def fail(adapter):
        raise BuildError("there is no compiler")

    monkeypatch.setattr(build, "library", fail)
    with pytest.raises(BuildError, match=f"{reason}.*; there is no compiler"):
        build.load("jax", read)


def test_a_library_that_does_not_load_is_replaced(folder):
    install(folder, "jax")

    def open_library(path):
        if "installed" in read(path):
            raise RuntimeError("this XLA is too old")
        return read(path)

    assert build.load("jax", open_library) == "compiled"
    assert "not used: this XLA is too old" in build.origins["jax"]


class Framework:
    def __init__(self, version):
        self.__version__ = version


def test_an_adapter_is_chosen_by_its_frameworks_version(folder, monkeypatch):
    install(folder, "tensorflow-2.2", "tensorflow-2.20", "tensorflow-2.21")

    def loaded(version):
        monkeypatch.setitem(sys.modules, "tensorflow", Framework(version))
        return build.load("tensorflow", read)

    assert loaded("2.20.0") == "installed tensorflow-2.20"
    assert loaded("2.21.1") == "installed tensorflow-2.21"
    assert loaded("2.22.0") == "compiled"
    reason = "compiled for tensorflow 2.2, 2.20, 2.21, and 2.22.0 is installed"
    assert reason in build.origins["tensorflow"]


def test_building_ahead_keeps_what_is_installed(folder, monkeypatch):
    install(folder, "jax")
    results = {name: path for name, path, _ in build.build(["core", "jax"])}
    assert {name: read(path) for name, path in results.items()} == {
        "core": "compiled",
        "jax": "installed jax",
    }
    monkeypatch.setenv("KERAS_LINREC_PREBUILT", "no")
    assert read(next(build.build(["jax"]))[1]) == "compiled"


WITH_LIBRARIES = """
from pathlib import Path
from keras_linrec.kernels.native import build, prebuilt
prebuilt.FOLDER = Path("{folder}")
"""
SHOW = """
import runpy, sys
sys.argv = ["kernels"]
runpy.run_module("keras_linrec.kernels", run_name="__main__")
"""
SCAN = """
import numpy as np
from keras_linrec import ops
ones = np.ones((1, 3, 1), "float32")
ops.linear_scan(ones[0, 0], ones)
print(list(build.origins))
"""


def run(folder, code, **environment):
    """What code prints in a process with installed libraries, no compiler."""
    answer = subprocess.run(
        [sys.executable, "-c", WITH_LIBRARIES.format(folder=folder) + code],
        env={
            **os.environ,
            "CXX": "/bin/false",
            "KERAS_LINREC_CACHE_DIR": str(folder / "cache"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    return answer.stdout


@pytest.mark.rest
def test_installed_libraries_need_no_compiler(tmp_path):
    require_native()
    backend = keras.backend.backend()
    names = ["core"] if backend == "torch" else ["core", backend]
    for name in names:
        library = build.library(name).read_bytes()
        (tmp_path / f"{name}.so").write_bytes(library)
    install(tmp_path, *names)
    printed = run(tmp_path, SHOW)
    assert "native: available, in use" in printed
    for name in names:
        assert f"{name}: installed with the package, {tmp_path}" in printed
    assert not (tmp_path / "cache").exists()
    kernel = {"KERAS_LINREC_KERNEL": "sequential"}
    assert run(tmp_path, SCAN, **kernel).strip() == "[]"
