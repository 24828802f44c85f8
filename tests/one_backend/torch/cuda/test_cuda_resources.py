"""The table of registers that CUDA's compiler reports."""

import shutil

import pytest

from keras_linrec.kernels.native import cuda_resources

REPORT = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'scan_float_real' for 'sm_90'
ptxas info    : Function properties for scan_float_real
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 48 registers, used 1 barriers
ptxas info    : Compiling entry function 'scan_float_real' for 'sm_120'
    8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
"""


def test_a_report_becomes_a_table():
    resources = cuda_resources.parsed(REPORT)
    assert resources == {"scan_float_real": {90: (48, 0), 120: (40, 8)}}
    assert cuda_resources.table(resources).splitlines() == [
        "| kernel | sm_90 | sm_120 |",
        "| --- | --- | --- |",
        "| `scan_float_real` | 48 | 40, 8 B spilled |",
    ]


@pytest.mark.slow
def test_kernels_stay_in_registers_on_every_gpu():
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc here")
    resources = cuda_resources.measured()
    assert len(resources) == 44
    for kernel, found in resources.items():
        assert set(found) == {75, 80, 86, 89, 90, 100, 120}, kernel
        assert max(spill for _, spill in found.values()) <= 32, kernel
