"""Two processes that talk by the network give the losses of one.

Each framework starts them as a user would, on this machine's loopback.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

WORKERS = Path(__file__).parent
# As in run.py: spinning threads starve each other.
ENVIRONMENT = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    **os.environ,
    "OMP_NUM_THREADS": "1",
    # Processes that torchrun restarts would read the addresses of the old ones:
    # https://github.com/pytorch/pytorch/issues/135712
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}

pytestmark = pytest.mark.slow


def start(*command):
    return subprocess.Popen(
        [str(part) for part in command],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(processes):
    """What each process has printed last, as JSON."""
    try:
        outputs = [process.communicate(timeout=500) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(text.strip().splitlines()[-1]) for text, _ in outputs]


def free_address():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def assert_same(losses, expected):
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    # The model learns.
    assert expected[-1] < expected[0]


def test_jax_shares_the_time_of_a_sequence():
    def losses(count):
        address = free_address()
        worker = WORKERS / "jax_worker.py"
        return finished(
            [
                start(sys.executable, worker, address, count, rank)
                for rank in range(count)
            ]
        )

    ((one,), two) = losses(1), losses(2)
    assert two[0] == two[1]
    assert_same(two[0], one)


def pytorch_result(folder, count, *killed_at):
    """What the worker wrote; if several processes, started by `torchrun`."""
    folder.mkdir()
    command = [sys.executable]
    if count > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", count, "--max-restarts", 1]
    worker = start(*command, WORKERS / "torch_worker.py", folder, *killed_at)
    try:
        _, errors = worker.communicate(timeout=500)
    finally:
        worker.kill()
    assert worker.returncode == 0, errors[-3000:]
    return json.loads((folder / "result.json").read_text())


def test_torchrun_shares_the_rows_and_resumes_what_was_killed(tmp_path):
    one = pytorch_result(tmp_path / "one", 1)
    two = pytorch_result(tmp_path / "two", 2)
    resumed = pytorch_result(tmp_path / "killed", 2, 3)
    assert_same(two["losses"], one["losses"])
    assert (two["started"], resumed["started"]) == (0, 3)
    assert_same(resumed["losses"], one["losses"])
