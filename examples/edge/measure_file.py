"""Run a file over recordings for `measure.py`, and print what it took, as JSON.

python measure_file.py FILE TESTS.npz COUNT
"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np

PROGRAMS = {".onnx": "digits_onnx", ".tflite": "digits_litert"}


def main(path=None, tests=None, count=0):
    if path is None:
        return print(json.dumps({"memory": peak_memory()}))
    program = import_module(PROGRAMS[Path(path).suffix])
    model = program.load(path)
    # Before the recordings are in memory, one of silence.
    *_, _ = program.answers(model, np.zeros(8000, "float32"))
    memory = peak_memory()
    answers, times = [], []
    for sound in recordings(tests)[: int(count)]:
        now = time.perf_counter()
        for probabilities in program.answers(model, sound):
            times.append(time.perf_counter() - now)
            answer = int(probabilities.argmax())
            now = time.perf_counter()
        answers.append(answer)
    found = {
        "answers": answers,
        "milliseconds": 1000 * float(np.median(times)),
        "memory": memory,
    }
    return print(json.dumps(found))


def recordings(path):
    with np.load(path) as file:
        return np.split(file["sounds"], np.cumsum(file["lengths"])[:-1])


def peak_memory():
    """Megabytes that this process has used at most, on Linux."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1000


if __name__ == "__main__":
    main(*sys.argv[1:])
