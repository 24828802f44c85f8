"""Tests under the oldest, the newest and the coming versions of what we need.

    python tests/matrix.py oldest
    python tests/matrix.py newest --python python3.13 --backends jax torch
    python tests/matrix.py oldest --all --folder /tmp/matrix
    python tests/matrix.py nightly --backends torch

A row of the matrix is a Python and a set of versions: the lower bounds of
`pyproject.toml`, the newest ones on the package index, or the newest ones with
the night's build of Keras. The row is installed in a virtual environment of its
own, and each backend runs a part of the tests in it: every portable kernel
runs, every unit equals its definition, and trains with the default arguments.
Under `nightly` it is what depends on Keras' own layers: masks, both directions,
cells, states and files. With `--all`, every test.

Warnings are not errors here, since old versions give other ones. Under
PyTorch an environment takes 4 gigabytes: every version but the one that the
tests pin brings CUDA.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BACKENDS = ("jax", "tensorflow", "torch")
# The tests' own needs, whose versions the package does not depend on.
TOOLS = ("hypothesis", "matplotlib", "pytest", "scikit-learn", "scipy")
REPRESENTATIVE = (
    "tests/operations/test_kernels.py::test_every_kernel_runs_here_or_says_why_not",
    "tests/layers/test_units.py",
    "tests/layers/test_defaults.py",
)
OF_KERAS = (
    "tests/layers/test_bidirectional.py",
    "tests/layers/test_rnn.py",
    "tests/layers/test_arguments.py",
    "tests/files/test_saved_files.py",
    "tests/conformance/test_masks.py",
    "tests/conformance/test_directions.py",
    "tests/conformance/test_states.py",
    "tests/conformance/test_stateful.py",
    "tests/conformance/test_configurations.py",
    "tests/conformance/test_dense_parts.py",
    "tests/conformance/test_files.py",
)
PARTS = {
    "oldest": REPRESENTATIVE,
    "newest": REPRESENTATIVE,
    "nightly": OF_KERAS,
}
VERSIONS = """
import importlib.metadata, platform
names = ("keras", "keras-nightly", "numpy", "jax", "tensorflow", "torch")
found = {d.metadata["Name"].lower(): d.version
         for d in importlib.metadata.distributions()}
print("Python", platform.python_version(),
      *(f"{name} {found[name]}" for name in names if name in found), sep=", ")
"""


def requirements(row, backends):
    """The package's dependencies in a row, as pip takes them."""
    text = (ROOT / "pyproject.toml").read_text()
    lines = re.findall(r"^(?:dependencies|" + "|".join(backends) + ") = .*",
                       text, flags=re.MULTILINE)  # fmt: skip
    bounds = re.findall(r'"([\w-]+)>=([\d.]+)"', " ".join(lines))
    if row == "oldest":
        return [f"{name}=={version}" for name, version in bounds]
    return [name for name, _ in bounds]


def install(folder, row, python, backends):
    """The Python of a new environment with a row's versions."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "pip", "--quiet"]
    packages = [*requirements(row, backends), *TOOLS]
    steps = [["install", *packages]]
    if row == "nightly":
        # It has the name of Keras' module, but not of its distribution, which
        # TensorFlow installs.
        steps += [["uninstall", "--yes", "keras"], ["install", "keras-nightly"]]
    for step in (*steps, ["install", "--no-deps", "--editable", ROOT]):
        subprocess.run([*pip, *step], check=True)
    return folder / "bin" / "python"


def test(python, backend, arguments):
    """Whether a backend passes."""
    command = [python, "-m", "pytest", "-q", "-o", "filterwarnings=default"]
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "OMP_NUM_THREADS": "1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        # PyTorch 2.6 may wait for its compiling processes for ever.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    return not subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment
    ).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", choices=tuple(PARTS))
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="the interpreter of the environment (default: this one)",
    )
    parser.add_argument(
        "--backends",
        nargs="+",
        choices=BACKENDS,
        default=BACKENDS[:2],
        help="those to install and test (default: jax and tensorflow)",
    )
    parser.add_argument("--all", action="store_true", help="run every test")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where to keep the environment (default: it is removed)",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "environment"
        python = install(folder, options.row, options.python, options.backends)
        versions = subprocess.check_output([python, "-c", VERSIONS], text=True)
        arguments = () if options.all else PARTS[options.row]
        passed = {
            backend: test(python, backend, arguments)
            for backend in options.backends
        }
    print(f"{options.row}: {versions.strip()}")
    for backend, good in passed.items():
        print(f"{backend}: {'passed' if good else 'failed'}")
    if not all(passed.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
