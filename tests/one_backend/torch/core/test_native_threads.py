"""The threads of the C++ core: how many there are, and how calls share them.

The core is independent of frameworks, so these tests run under PyTorch only.
"""

import subprocess

import pytest
from one_backend.torch.core.test_native_core import run_anew
from support.needs_native import require_native

from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import recipes

require_native()


@pytest.mark.rest
def test_threads_and_calls_at_once_do_not_change_a_bit():
    runs = [
        run_anew(
            ["-m", "support.threads_worker"], KERAS_LINREC_NUM_THREADS=threads
        )
        for threads in ("1", "3")
    ]
    errors = "".join(run.stderr for run in runs)
    (one, same, *alone), (three, still_same, *shared) = (
        run.stdout.split() for run in runs
    )
    assert (one, three) == ("1", "3"), errors
    assert same == still_same == "True"
    assert len(alone) == 6 and alone == shared


@pytest.mark.rest
def test_an_openmp_runtime_that_binds_threads_leaves_all_processors():
    code = (
        "import torch\n"
        "from keras_linrec.kernels.native import build\n"
        "print(build.core().keras_linrec_threads())"
    )
    free, bound = (
        run_anew(["-c", code], OMP_PROC_BIND=bind, OMP_NUM_THREADS="")
        for bind in ("false", "true")
    )
    assert free.stdout and free.stdout == bound.stdout, bound.stderr


@pytest.fixture(scope="module")
def processors_of_quota(tmp_path_factory):
    """The core's function of that name: files of a control group -> number."""
    folder = tmp_path_factory.mktemp("quota")
    source = folder / "main.cpp"
    source.write_text(
        '#include "base/processors.h"\n'
        "#include <cstdio>\n"
        "int main(int, char** given) {\n"
        '  std::printf("%d", keras_linrec::processors_of_quota(\n'
        "      given[1], given[2]));\n"
        "}\n"
    )
    program = folder / "main"
    subprocess.run(
        [*build.cxx(), "-std=c++17", f"-I{recipes.SOURCE}", str(source)]
        + [
            str(recipes.SOURCE / "base/processors.cpp"),
            "-pthread",
            "-o",
            program,
        ],
        check=True,
    )

    def number(groups, files):
        root = tmp_path_factory.mktemp("cgroup")
        (root / "groups").write_text(groups)
        for name, text in files.items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        answer = subprocess.run(
            [program, root / "groups", root], check=True, capture_output=True
        )
        return int(answer.stdout)

    return number


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, 0),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 0),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        # The group that encloses ours allows less.
        (
            "0::/a/b\n",
            {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"},
            3,
        ),
        # Version 1, without a quota; and within a container, which sees its
        # own group as the root.
        (
            "4:memory:/x\n1:cpu:/\n0::/\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            0,
        ),
        (
            "3:cpu,cpuacct:/docker/123\n",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            1,
        ),
    ],
)
def test_a_quota_limits_the_processors(
    processors_of_quota, groups, files, expected
):
    assert processors_of_quota(groups, files) == expected
