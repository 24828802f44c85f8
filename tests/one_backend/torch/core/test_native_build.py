"""Building native code, caching it and finding it again.

Most tests use a stand-in for the compiler, which logs its arguments and writes
a file instead of a library.
"""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from support.needs_native import require_native

from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import cache
from keras_linrec.kernels.native import recipes

COMPILER = """#!{python}
import sys, time
if "--version" in sys.argv:
    print("stand-in {version}")
    sys.exit()
with open("{log}", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
if {broken}:
    sys.exit("source.cpp:1: error: something is missing")
time.sleep(0.05)
with open(sys.argv[sys.argv.index("-o") + 1], "w") as file:
    file.write("library")
"""


class Workplace:
    """A stand-in for the compiler, its log, and a separate cache."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        self.log = folder / "log"
        self.cache = folder / "cache"
        monkeypatch.setenv("KERAS_LINREC_CACHE_DIR", str(self.cache))
        self.compiler(1)

    def compiler(self, version, broken=False):
        path = self.folder / f"compiler-{version}-{broken}"
        path.write_text(
            COMPILER.format(
                python=sys.executable,
                version=version,
                log=self.log,
                broken=broken,
            )
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.monkeypatch.setenv("CXX", str(path))

    def links(self):
        """The number of libraries that were built."""
        if not self.log.exists():
            return 0
        return self.log.read_text().count("-shared")


@pytest.fixture
def native():
    """The compiler's version, queried before the compiler is replaced."""
    return require_native()


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    return Workplace(tmp_path, monkeypatch)


def test_nothing_is_built_twice(workplace, capsys):
    first = build.library("core")
    assert "compiling the native kernels (core) once" in capsys.readouterr().err
    assert build.library("core") == first and first.read_text() == "library"
    assert workplace.links() == 1 and not capsys.readouterr().err


def test_another_compiler_or_other_flags_rebuild(workplace, monkeypatch):
    first = build.library("core")
    workplace.compiler(2)
    second = build.library("core")
    assert first.parent == second.parent and first != second
    monkeypatch.setattr(recipes, "_COMMON", ("-DANOTHER_FLAG",))
    assert build.library("core").parent != first.parent
    assert workplace.links() == 3


def test_without_a_compiler_a_library_of_another_one_is_used(
    workplace, monkeypatch
):
    built = build.library("core")
    monkeypatch.setenv("CXX", "/bin/false")
    assert build.library("core") == built


def test_without_a_compiler_the_remedy_is_named(workplace, monkeypatch):
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(build.BuildError, match="/bin/false.*install one"):
        build.library("core")


def test_a_failed_build_is_retried_only_on_request(workplace):
    workplace.compiler(1, broken=True)
    with pytest.raises(build.BuildError, match="something is missing"):
        build.library("core")
    calls = len(workplace.log.read_text().splitlines())
    with pytest.raises(build.BuildError, match="kernels build core"):
        build.library("core")
    assert len(workplace.log.read_text().splitlines()) == calls
    workplace.compiler(1)
    assert build.library("core", retry=True) == build.library("core")


def test_arguments_in_the_compiler_command_are_part_of_the_key(
    workplace, monkeypatch
):
    workplace.compiler(1, broken=True)
    with pytest.raises(build.BuildError, match="something is missing"):
        build.library("core")
    workplace.compiler(1)
    plain = build.library("core", retry=True)
    monkeypatch.setenv("CXX", f"{os.environ['CXX']} -march=native")
    assert build.library("core") != plain


def test_a_failing_compiler_keeps_the_library_of_another_one(workplace):
    built = build.library("core")
    workplace.compiler(2, broken=True)
    assert build.library("core") == built


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("KERAS_LINREC_NUM_THREADS", "two", "an integer from 1 to 1024"),
        ("KERAS_LINREC_NUM_THREADS", "0", "an integer from 1 to 1024"),
        ("KERAS_LINREC_NUM_THREADS", "-3", "an integer from 1 to 1024"),
        ("KERAS_LINREC_NUM_THREADS", "1025", "an integer from 1 to 1024"),
        pytest.param(
            *("KERAS_LINREC_NUM_THREADS", "9" * 5000, "from 1 to 1024"),
            id="more digits than Python converts",
        ),
        ("KERAS_LINREC_NUM_THREADS", "1.5", "an integer from 1 to 1024"),
        ("KERAS_LINREC_NUM_THREADS", "\u0663", "an integer from 1 to 1024"),
        ("KERAS_LINREC_INSTRUCTION_SET", "sse", "one of"),
        ("KERAS_LINREC_PREBUILT", "maybe", "one of"),
        ("KERAS_LINREC_CACHE_DIR", "~no_such_user/cache", "to a folder"),
        ("CXX", "g++ '", "a command as in a shell"),
    ],
)
def test_a_wrong_variable_is_named(
    workplace, monkeypatch, variable, value, expected
):
    monkeypatch.setenv(variable, value)
    message = f"{variable}.*{expected}.*Received: {variable}={re.escape(value)}"
    with pytest.raises(build.BuildError, match=message):
        build.core.__wrapped__()


@pytest.mark.parametrize("blank", ["", " \t"])
def test_an_empty_variable_is_unset(monkeypatch, blank):
    for variable in ("CXX", "KERAS_LINREC_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    unset = build.cxx(), cache.folder()
    for variable in (
        *("CXX", "KERAS_LINREC_CACHE_DIR", "XDG_CACHE_HOME"),
        *("KERAS_LINREC_NUM_THREADS", "KERAS_LINREC_INSTRUCTION_SET"),
    ):
        monkeypatch.setenv(variable, blank)
    assert (build.cxx(), cache.folder()) == unset
    build._check_variables()


def test_a_damaged_library_is_rebuilt_with_a_warning(workplace):
    path = build.library("core")
    path.write_text("libr")
    with pytest.warns(RuntimeWarning, match="was damaged"):
        assert build.library("core") == path
    assert path.read_text() == "library" and workplace.links() == 2


def test_a_cache_that_cannot_be_written_is_named(workplace, monkeypatch):
    monkeypatch.setenv("KERAS_LINREC_CACHE_DIR", os.devnull)
    with pytest.raises(build.BuildError, match="KERAS_LINREC_CACHE_DIR"):
        build.library("core")


def test_the_cache_follows_the_xdg_conventions(monkeypatch):
    monkeypatch.delenv("KERAS_LINREC_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.folder() == Path("/somewhere/keras_linrec")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.folder() == Path("/home/someone/.cache/keras_linrec")


def test_only_the_user_may_write_to_the_cache(workplace):
    umask = os.umask(0)
    try:
        library = build.library("core")
    finally:
        os.umask(umask)
    for path in (library, library.parent, workplace.cache):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755


@pytest.mark.parametrize("part", ["cache", "folder", "library"])
def test_what_others_may_write_is_not_loaded(part, workplace):
    library = build.library("core")
    paths = {"library": library, "folder": library.parent}
    path = paths.get(part, workplace.cache)
    path.chmod(0o775)
    with pytest.raises(build.BuildError, match="can be written by other users"):
        build.library("core")
    path.chmod(0o755)
    assert build.library("core") == library


@pytest.mark.parametrize("part", ["cache", "folder", "library"])
def test_what_another_user_owns_is_not_loaded(part, workplace, monkeypatch):
    library = build.library("core")
    paths = {"library": library, "folder": library.parent}
    path = paths.get(part, workplace.cache)
    status = os.stat_result((0o100644, 0, 0, 1, os.geteuid() + 7, *[0] * 5))
    real = Path.lstat
    monkeypatch.setattr(
        Path, "lstat", lambda self: status if self == path else real(self)
    )
    with pytest.raises(build.BuildError, match="belongs to another user"):
        build.library("core")


@pytest.mark.parametrize("part", ["folder", "library"])
def test_links_in_the_cache_are_not_followed(part, workplace):
    library = build.library("core")
    path = library if part == "library" else library.parent
    elsewhere = workplace.folder / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(build.BuildError, match="is a link"):
        build.library("core")


def test_the_target_of_a_linked_lock_keeps_its_content(workplace):
    library = build.library("core")
    precious = workplace.folder / "precious"
    precious.write_text("content")
    library.unlink()
    (library.parent / "lock").unlink()
    (library.parent / "lock").symlink_to(precious)
    with pytest.raises(build.BuildError, match="cannot be written"):
        build.library("core")
    assert precious.read_text() == "content"


def test_the_cache_itself_may_be_a_link(workplace):
    elsewhere = workplace.folder / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    workplace.cache.symlink_to(elsewhere)
    library = build.library("core")
    assert library.parent.parent == elsewhere


def start(*code, **environment):
    return subprocess.Popen(
        [sys.executable, *code],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.rest
def test_processes_that_start_at_once_build_once(workplace):
    command = ("-m", "keras_linrec.kernels", "build", "core")
    processes = [start(*command) for _ in range(3)]
    answers = [process.communicate(timeout=120) for process in processes]
    assert all(process.returncode == 0 for process in processes), answers
    assert len({out.split()[1] for out, _ in answers}) == 1
    assert workplace.links() == 1


@pytest.mark.rest
def test_building_ahead_reports_failures(workplace):
    workplace.compiler(1, broken=True)
    process = start("-m", "keras_linrec.kernels", "build", "core")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "core: not built" in errors and "something is missing" in errors


SCAN_TWICE = """
import warnings
with warnings.catch_warnings(record=True) as record:
    warnings.simplefilter("always")
    import numpy as np, keras
    from keras_linrec import kernels, ops
    for _ in range(2):
        outputs, _ = ops.linear_scan(
            np.array([0.5], "float32"), np.ones((1, 3, 1), "float32")
        )
warned = [str(w.message) for w in record if "keras_linrec" in str(w.message)]
print(keras.ops.convert_to_numpy(outputs).ravel().tolist(), len(warned))
print(*warned)
print(bool(kernels.available()["native"]))
"""


@pytest.mark.rest
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"CC": "/bin/false", "CXX": "/bin/false"}, "no working compiler"),
        ({"KERAS_LINREC_CACHE_DIR": "", "HOME": os.devnull}, "cannot be writ"),
    ],
    ids=["no_compiler", "read_only_home"],
)
def test_without_native_code_scans_run_with_one_warning(
    workplace, environment, reason
):
    process = start("-c", SCAN_TWICE, **{"XDG_CACHE_HOME": "", **environment})
    answer, errors = process.communicate(timeout=300)
    first, *warned, native = answer.splitlines()
    assert first == "[1.0, 1.5, 1.75] 1", (answer, errors)
    assert reason in warned[0] and native == "False"


@pytest.mark.skipif(
    keras.backend.backend() != "torch",
    reason="builds the core itself, which is the same under every backend",
)
@pytest.mark.slow
def test_the_core_survives_a_damaged_cache(native, workplace, monkeypatch):
    monkeypatch.delenv("CXX")
    path = build.library("core")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    process = start("-c", SCAN_TWICE)
    answer, errors = process.communicate(timeout=300)
    first, *warned, native = answer.splitlines()
    assert first == "[1.0, 1.5, 1.75] 1", (answer, errors)
    assert "was damaged" in warned[0] and native == "True"
    assert path.read_bytes() == content


def test_no_line_of_the_sources_is_longer_than_80_columns():
    sources = [
        path
        for path in recipes.SOURCE.rglob("*.*")
        if path.suffix in {".cpp", ".cu", ".h"}
    ]
    assert sources
    long = [
        f"{path.name}:{number}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 80
    ]
    assert long == []
