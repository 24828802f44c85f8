"""What every test shares."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent.parent / "examples"))

pytest_plugins = ["capabilities"]


@pytest.fixture(autouse=True)
def seed():
    """The same numbers in every run: no test fails by chance."""
    import keras

    keras.utils.set_random_seed(0)


# Tests of one backend's own code; and some that need to run once only: one
# starts a process for every backend itself, some know no framework, or compile
# the same core for each, and an example, the README and the canonical forms, of
# which docstrings' examples run everywhere, do nothing that other tests do not
# do under each. Models of blocks and their analysis compile on JAX for a
# minute; packing, export and the conformance suite run such models there.
ONLY_UNDER = {
    "test_canonical_form.py": "torch",
    "test_devices.py": "jax",
    "test_docs.py": "torch",
    "test_native_nonlinear_scan.py": "torch",
    "test_ldstack.py": "torch",
    "test_ldstack_examples.py": "torch",
    "test_readme.py": "torch",
    "test_stable_examples.py": "torch",
    "test_files_across_backends.py": "jax",
    "test_lssl_measures.py": "torch",
    "test_native_jax.py": "jax",
    "test_nlp_texts.py": "torch",
    "test_pallas.py": "jax",
    "test_native_tensorflow.py": "tensorflow",
    "test_cuda.py": "torch",
    "test_native_build.py": "torch",
    "test_nlp_examples.py": "torch",
    "test_analysis.py": "tensorflow, torch",
    "test_models.py": "tensorflow, torch",
    "test_robustness.py": "tensorflow, torch",
    "test_native_core.py": "torch",
    "test_native_torch.py": "torch",
    "test_sampling_rates.py": "torch",
    "test_saved_files.py": "torch",
    "test_sequential_digits.py": "torch",
}

collect_ignore = [
    *("run.py", "capabilities.py", "file_worker.py", "fork_worker.py"),
    *(f"device_worker_{name}.py" for name in ("jax", "tensorflow", "torch")),
    *(
        name
        for name, backends in ONLY_UNDER.items()
        if os.environ["KERAS_BACKEND"] not in backends.split(", ")
    ),
]
