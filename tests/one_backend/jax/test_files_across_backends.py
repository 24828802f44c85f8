"""What one backend saves, every backend loads."""

import json
import os
import subprocess
import sys

import pytest
from capabilities import columns
from support import TESTS

pytestmark = pytest.mark.rest

BACKENDS = ("jax", "tensorflow", "torch")


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    """differences[loading][saving][kind]: between what the two predict."""
    folder = tmp_path_factory.mktemp("models")
    workers = {
        backend: subprocess.Popen(
            [sys.executable, "-m", "support.file_worker", folder],
            cwd=TESTS,
            # As in run.py: threads that spin starve each other.
            env={
                **os.environ,
                "KERAS_BACKEND": backend,
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for backend in BACKENDS
    }
    printed = {name: worker.communicate() for name, worker in workers.items()}
    for name, (_, errors) in printed.items():
        assert workers[name].returncode == 0, f"{name}: {errors[-3000:]}"
    return {
        name: json.loads(output.strip().splitlines()[-1])
        for name, (output, _) in printed.items()
    }


# The worker's model has every layer and a cell.
@pytest.mark.capability(
    "from any backend to any other", layers=[*columns()], backends=BACKENDS
)
@pytest.mark.parametrize("loading", BACKENDS)
@pytest.mark.parametrize("saving", BACKENDS)
@pytest.mark.parametrize("kind", ["sequences", "language", "classes"])
def test_a_saved_model_predicts_the_same_elsewhere(
    differences, kind, saving, loading
):
    assert differences[loading][saving][kind] < 1e-5
