"""python -m keras_linrec.kernels.native.cuda_resources

Compiles the CUDA kernels as `python -m keras_linrec.kernels build cuda` does,
and prints what each takes on each generation of GPUs: registers of a thread,
and bytes that do not fit into registers ("spills"), if there are any.
"""

import re
import subprocess
import tempfile
from pathlib import Path

from keras_linrec.kernels.native import build
from keras_linrec.kernels.native import recipes

_KERNEL = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")
_SPILL = re.compile(r"(\d+) bytes spill stores")
_REGISTERS = re.compile(r"Used (\d+) registers")


def measured():
    """`{kernel: {capability: (registers, bytes of spills)}}`."""
    compiler = build.nvcc()
    with tempfile.TemporaryDirectory() as folder:
        source = recipes.SOURCE / "cuda/cuda_kernels.cu"
        answer = subprocess.run(
            [*compiler, *recipes.CUDA_FLAGS, "-Xptxas=-v", "-fatbin", source]
            + [f"-I{recipes.SOURCE}", "-o", Path(folder) / "kernels"],
            capture_output=True,
            text=True,
            check=True,
        )
    return parsed(answer.stdout + answer.stderr)


def parsed(report):
    """The same, from the compiler's report."""
    resources = {}
    kernel = capability = spill = None
    for line in report.splitlines():
        if found := _KERNEL.search(line):
            kernel, capability = found[1], int(found[2])
        elif found := _SPILL.search(line):
            spill = int(found[1])
        elif kernel and (found := _REGISTERS.search(line)):
            of_kernel = resources.setdefault(kernel, {})
            of_kernel[capability] = int(found[1]), spill
            kernel = None
    return resources


def table(resources):
    """The same, in Markdown."""
    capabilities = sorted({n for row in resources.values() for n in row})
    lines = [
        ["kernel", *(f"sm_{number}" for number in capabilities)],
        ["---"] * (1 + len(capabilities)),
    ]
    for kernel in sorted(resources):
        cells = (resources[kernel].get(number) for number in capabilities)
        lines.append([f"`{kernel}`", *map(_cell, cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(found):
    if found is None:
        return ""
    registers, spill = found
    return f"{registers}, {spill} B spilled" if spill else str(registers)


if __name__ == "__main__":
    print(table(measured()))
