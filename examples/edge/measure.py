"""Spoken digits on small machines: size, time, memory and accuracy of files.

    python examples/edge/measure.py --data DATA --files FOLDER

FOLDER has the files of `export_digits.py`; those that are missing are written
first, which takes minutes for each model, form and runtime. DATA are the
recordings of the Free Spoken Digit Dataset. Each file runs in a process of its
own, on one thread, by `digits_onnx.py` or `digits_litert.py`. Of the table:

- ms: the median time of a call, for a block of 64 samples or for one sample;
  and the share of a core that a stream of 8 kHz takes.
- MB: the most memory that the process has used after a recording (VmHWM), and
  in the first line what Python takes with NumPy alone.
- accuracy: of the 300 recordings of the recipe's test, or of `--steps` of them
  for files that read single samples; and how many answers are those of Keras
  in float32.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

ROOT = Path(__file__).parents[2]
EXPORT = Path(__file__).with_name("export_digits.py")
WORKER = Path(__file__).with_name("measure_file.py")
MODELS = ("speech-rotrnn", "speech-s5", "speech-lstm")
FORMS = {"block": 64, "step": 1}
BACKENDS = {"onnx": "torch", "tflite": "tensorflow"}
RATE = 8000


def main():
    options = parse()
    for name in options.models:
        for form in options.form:
            for suffix, backend in BACKENDS.items():
                if not (options.files / f"{name}-{form}.{suffix}").exists():
                    export(name, form, backend, options)
    print_row("file", "bytes", "ms", "of a core", "MB", "accuracy", "as Keras")
    print_row(*["---"] * 7)
    print_row("Python with NumPy", "", "", "", f"{measured()['memory']:.0f}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            measure(name, Path(folder, "tests.npz"), options)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--files", type=Path, default=Path("build/edge"))
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument(
        "--form", nargs="+", choices=(*FORMS,), default=[*FORMS]
    )
    parser.add_argument("--recordings", type=int, default=300)
    parser.add_argument("--steps", type=int, default=30)
    return parser.parse_args()


def print_row(*cells):
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def export(name, form, backend, options):
    model = ROOT / "docs" / "results" / f"{name}.keras"
    command = [sys.executable, EXPORT, model, "--form", form]
    command += ["--data", options.data, "--output", options.files]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    # Converters say much.
    subprocess.run(command, env=environment, check=True, capture_output=True)


def measure(name, tests, options):
    """Rows of a model: Keras, and its files."""
    sounds, labels = test_recordings(options.data, options.recordings)
    answers = answers_of_keras(name, sounds)
    np.savez(tests, sounds=np.concatenate(sounds), lengths=[*map(len, sounds)])
    accuracy = np.mean(answers == labels)
    print_row(f"{name}, Keras", "", "", "", "", f"{accuracy:.2%}", len(sounds))
    for form, samples in FORMS.items():
        if form not in options.form:
            continue
        count = options.steps if form == "step" else options.recordings
        for path in sorted(options.files.glob(f"{name}-{form}*")):
            found = measured(path, tests, count)
            given = np.array(found["answers"])
            count = len(given)
            print_row(
                path.name,
                f"{path.stat().st_size:,}",
                f"{found['milliseconds']:.3f}",
                f"{found['milliseconds'] * RATE / samples / 1000:.1%}",
                f"{found['memory']:.0f}",
                f"{np.mean(given == labels[:count]):.2%}",
                f"{np.sum(given == answers[:count])} of {count}",
            )


def measured(*arguments):
    """What the worker prints of a file, or of itself."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, WORKER, *map(str, arguments)]
    output = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout
    return json.loads(output.splitlines()[-1])


# Keras.


def test_recordings(data, count):
    """Recordings of every digit and speaker, in a fixed random order."""
    from recipes.data import speech

    sounds, labels = speech(SimpleNamespace(data=data), 0).test
    order = np.random.default_rng(0).permutation(len(labels))[:count]
    return [sounds[place][:, 0] for place in order], labels[order]


def answers_of_keras(name, sounds):
    import keras
    from recipes.tasks import padded

    from keras_linrec.saving import load_model

    model = load_model(ROOT / f"docs/results/{name}.keras", compile=False)
    longest = max(map(len, sounds))
    inputs = padded([sound[:, None] for sound in sounds], longest)
    outputs = model.predict(inputs, batch_size=50, verbose=0)
    return keras.ops.convert_to_numpy(outputs).argmax(axis=-1)


if __name__ == "__main__":
    main()
