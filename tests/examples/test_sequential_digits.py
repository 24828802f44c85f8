"""The example that classifies digits pixel by pixel, run as a user runs it."""

import contextlib
import csv
import importlib
import io
import json
import os
import re

import common
import digits
import keras
import numpy as np
import pytest
import sequential_digits as example

pytestmark = [pytest.mark.rest, pytest.mark.weekly("jax", "tensorflow")]

SIDE = 3


def arrays():
    """Images of nine classes: the label is the position of the bright pixel."""
    generator = np.random.default_rng(0)
    data = {}
    for part, size in (("train", 180), ("test", 90)):
        labels = np.arange(size) % SIDE**2
        images = generator.integers(0, 50, (size, SIDE**2))
        images[np.arange(size), labels] = 255
        data[f"x_{part}"] = images.reshape(-1, SIDE, SIDE).astype("uint8")
        data[f"y_{part}"] = labels.astype("uint8")
    return data


def accuracy_line(output):
    (line,) = re.findall(r"^Test accuracy: \d+\.\d\d%$", output, re.MULTILINE)
    return line


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with permuted pixels: its folder, its data and its output."""
    folder = tmp_path_factory.mktemp("trained")
    data = folder / "tiny.npz"
    np.savez(data, **arrays())
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        example.main(
            [
                f"--data={data}",
                f"--output={folder / 'new'}",
                "--permute",
                "--train-size=160",
                "--epochs=8",
                "--batch-size=20",
            ]
        )
    return folder / "new", data, output.getvalue()


def test_training_reports_every_epoch_and_the_result(trained):
    _, _, output = trained
    assert "Training on 160 images, testing on 90: 9 time steps" in output
    assert re.findall(r"^Epoch (\d+)/8$", output, re.MULTILINE) == [
        str(epoch) for epoch in range(1, 9)
    ]
    assert re.search(
        rf"^Trained for \d+ seconds, backend {keras.backend.backend()}\.$",
        output,
        re.MULTILINE,
    )
    accuracy = float(accuracy_line(output).split()[-1].rstrip("%"))
    assert 50 < accuracy <= 100


def test_training_writes_the_model_and_the_curve(trained):
    folder, _, _ = trained
    assert sorted(file.name for file in folder.iterdir()) == [
        "learning_curve.png",
        "model.keras",
    ]
    assert (folder / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    model = keras.saving.load_model(folder / "model.keras", safe_mode=True)
    names = [type(layer).__name__ for layer in model.layers]
    assert names.index("LSSL") < names.index("RotRNN")


def test_a_loaded_model_has_the_accuracy_it_was_saved_with(trained, capsys):
    folder, data, output = trained
    model = str(folder / "model.keras")
    example.main(["--data", str(data), "--load", model, "--permute"])
    assert capsys.readouterr().out.strip() == accuracy_line(output)

    example.main(["--data", str(data), "--load", model])
    assert accuracy_line(capsys.readouterr().out) != accuracy_line(output)


def test_the_permutation_is_the_same_for_every_image_and_run():
    images = np.arange(2 * SIDE**2).reshape(2, SIDE, SIDE)
    first, second = digits.as_sequences(images, permute=True)[:, :, 0]
    assert sorted(first) == list(range(SIDE**2)) != list(first)
    assert list(second - SIDE**2) == list(first)

    keras.utils.set_random_seed(7)
    again = importlib.reload(digits).as_sequences(images[:1], permute=True)
    assert list(again[0, :, 0]) == list(first)
    plain = digits.as_sequences(images, permute=False)
    assert list(plain[0, :, 0]) == list(range(SIDE**2))


def linear_model(pixels, classes):
    """A model that compiles fast, in place of the real one."""
    return keras.Sequential(
        [
            keras.Input(pixels.shape[1:]),
            keras.layers.Flatten(),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Dense(classes, activation="softmax"),
        ]
    )


def test_without_a_file_the_digits_of_scikit_learn_are_read(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(example, "build_model", linear_model)
    example.main(["--epochs", "1", "--output", str(tmp_path / "a" / "b")])
    output = capsys.readouterr().out
    assert "Training on 1347 images, testing on 450: 64 time steps" in output
    assert accuracy_line(output)
    assert (tmp_path / "a" / "b" / "model.keras").exists()


def test_the_small_model_and_its_training_are_those_of_the_paper():
    pixels = digits.as_sequences(arrays()["x_train"], permute=False)
    model = example.build_small_model(pixels, 9)
    assert model.input_shape == (None, 9, 1)
    assert model.output_shape == (None, 9)
    deep = model.layers[-1]
    assert (deep.num_layers, deep.units, deep.dropout) == (6, 128, 0.2)
    assert deep.pooling == "mean"
    for block in deep.blocks:
        lssl = block.unit
        assert (lssl.state_size, lssl.channels) == (128, 1)
        assert lssl.dt_max == pytest.approx(100 * lssl.dt_min)
        assert lssl.dt_min < 1 / 9 < lssl.dt_max

    for arguments, rate in (([], 4e-3), (["--permute"], 1e-3)):
        options = example.parse(["--model=small", *arguments])
        assert options.batch_size == 50
        assert example.peak_rate(options) == rate
        optimizer = example.make_optimizer(options, rate)
        assert type(optimizer).__name__ == "Adam"
    options = example.parse([])
    assert options.batch_size == 32
    assert type(example.make_optimizer(options, 4e-3)).__name__ == "AdamW"


def test_the_small_model_is_trained_with_the_options_of_the_other(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(example, "build_small_model", linear_model)
    data = tmp_path / "tiny.npz"
    np.savez(data, **arrays())
    example.main(
        [
            "--model=small",
            f"--data={data}",
            f"--output={tmp_path / 'new'}",
            "--epochs=30",
            "--test-size=40",
        ]
    )
    output = capsys.readouterr().out
    assert "Training on 180 images, testing on 40: 9 time steps" in output
    assert len(re.findall(r"^Epoch", output, re.MULTILINE)) == 30
    assert accuracy_line(output)


@pytest.mark.parametrize("model", ["stack", "small"])
def test_training_for_a_time_writes_the_learning_curve(
    model, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(example, "build_model", linear_model)
    monkeypatch.setattr(example, "build_small_model", linear_model)
    data = tmp_path / "tiny.npz"
    np.savez(data, **arrays())
    arguments = [f"--model={model}", f"--data={data}", "--test-size=40"]
    # Compilation takes part of the time.
    minutes = 0.1 if keras.backend.backend() == "torch" else 0.3
    arguments += [f"--minutes={minutes}"]
    example.main([*arguments, f"--output={tmp_path / 'new'}"])
    output = capsys.readouterr().out
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == [
        "learning_curve.csv",
        "learning_curve.png",
        "model.keras",
    ]
    with open(tmp_path / "new" / "learning_curve.csv", newline="") as file:
        rows = [
            {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        ]
    assert list(rows[0]) == [
        "seconds",
        "images",
        "loss",
        "accuracy",
        "val_loss",
        "val_accuracy",
    ]
    assert 2 <= len(rows) <= 20
    for name in ("seconds", "images"):
        values = [row[name] for row in rows]
        assert values == sorted(values)
    assert 60 * minutes <= rows[-1]["seconds"] < 60 * minutes + 30
    assert rows[-1]["images"] > 180
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["val_accuracy"] * 40 == pytest.approx(
        round(rows[-1]["val_accuracy"] * 40), abs=1e-4
    )
    assert f"images {rows[-1]['images']:.0f}, " in output
    assert "Wrote model.keras, learning_curve.csv and " in output

    # The saved model is the one that was tested last.
    saved = str(tmp_path / "new" / "model.keras")
    example.main([f"--data={data}", "--load", saved])
    assert accuracy_line(capsys.readouterr().out) == accuracy_line(output)


def test_the_learning_rate_follows_the_elapsed_time(monkeypatch):
    options = example.parse(["--minutes=2"])
    stopwatch = example.Stopwatch(options, 100, None)
    model = linear_model(np.zeros((1, 9, 1)), 9)
    digits.compile_model(model, keras.optimizers.Adam(1.0))
    stopwatch.set_model(model)
    now = 50.0
    monkeypatch.setattr(example.time, "perf_counter", lambda: now)
    stopwatch.on_train_begin()
    rates = []
    for seconds in (0, 6, 11, 65.4, 120, 500):
        now = 50.0 + seconds
        stopwatch.on_train_batch_begin(0)
        rates.append(float(model.optimizer.learning_rate))
    expected = [0, 2.2e-3, 4e-3, 2e-3, 0, 0]
    assert rates == pytest.approx(expected, rel=0.02, abs=1e-6)


def test_digits_are_split_evenly_and_always_alike():
    train_images, train_labels, test_images, test_labels = digits.read_digits()
    assert train_images.shape == (1347, 64)
    assert test_images.shape == (450, 64)
    shares = np.bincount(test_labels) / np.bincount(train_labels)
    assert np.abs(shares - 1 / 3).max() < 0.02
    assert np.array_equal(test_images, digits.read_digits()[2])


def without(name):
    data = arrays()
    del data[name]
    return data


MALFORMED = {
    "no x_test": (without("x_test"), "a file without x_test"),
    "no labels": (
        {name: value for name, value in arrays().items() if name[0] == "x"},
        "a file without y_train, y_test",
    ),
    "objects": (
        {**arrays(), "x_train": np.array([{}, None])},
        "arrays that are damaged or no numbers",
    ),
    "text": (
        {**arrays(), "x_train": np.full((180, SIDE, SIDE), "7")},
        "Received: <U1 of shape (180, 3, 3)",
    ),
    "flat images": (
        {**arrays(), "x_test": np.zeros((90, SIDE**2))},
        "expected x_test with finite numbers (images, height, width). "
        "Received: float64 of shape (90, 9) from 0.0 to 0.0",
    ),
    "no images": (
        {**arrays(), "x_train": np.zeros((0, SIDE, SIDE))},
        "Received: float64 of shape (0, 3, 3)",
    ),
    "not a number": (
        {**arrays(), "x_test": np.full((90, SIDE, SIDE), np.nan)},
        "float64 of shape (90, 3, 3) from nan to nan",
    ),
    "images of two sizes": (
        {**arrays(), "x_test": np.zeros((90, 4, 4))},
        "images of one size. Received: uint8 of shape (180, 3, 3) from 0 to "
        "255 and float64 of shape (90, 4, 4)",
    ),
    "black images": (
        {**arrays(), "x_train": np.zeros((180, 3, 3), "uint8")},
        "expected x_train with pixels that differ, some of them above 0. "
        "Received: uint8 of shape (180, 3, 3) from 0 to 0",
    ),
    "too few labels": (
        {**arrays(), "y_train": np.zeros(179, "uint8")},
        "expected y_train with 180 whole numbers from 0 to 999, one for each "
        "image. Received: uint8 of shape (179,)",
    ),
    "one-hot labels": (
        {**arrays(), "y_test": np.eye(90, 9, dtype="uint8")},
        "Received: uint8 of shape (90, 9)",
    ),
    "broken labels": (
        {**arrays(), "y_test": np.full(90, 0.5)},
        "Received: float64 of shape (90,) from 0.5 to 0.5",
    ),
    "negative labels": (
        {**arrays(), "y_test": np.full(90, -1)},
        "Received: int64 of shape (90,) from -1 to -1",
    ),
}


def message_of(arguments, capsys):
    """The message of a refused run: one line, no traceback."""
    with pytest.raises(SystemExit) as stop:
        example.main([str(argument) for argument in arguments])
    if isinstance(stop.value.code, str):
        message = stop.value.code
    else:
        assert stop.value.code == 2
        message = capsys.readouterr().err.strip().split("\n")[-1]
    assert "\n" not in message
    return message


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused(case, tmp_path, capsys):
    data, expected = MALFORMED[case]
    path = tmp_path / "bad.npz"
    np.savez(path, **data)
    message = message_of(["--data", path], capsys)
    assert message.startswith(f"{path}: expected ")
    assert expected in message


def test_a_file_that_is_not_an_npz_file_is_refused(tmp_path, capsys):
    expected = (
        "expected a NumPy .npz file with the arrays x_train, y_train, x_test, "
        "y_test. Received: "
    )
    other = "a damaged file, or one of another kind"
    path = tmp_path / "missing.npz"
    message = message_of(["--data", path], capsys)
    assert message == f"{path}: {expected}no such file"

    message = message_of(["--data", tmp_path], capsys)
    assert message == f"{tmp_path}: {expected}{other}"

    path = tmp_path / "array.npy"
    np.save(path, np.zeros(3))
    message = message_of(["--data", path], capsys)
    assert message == f"{path}: {expected}{other}"

    path = tmp_path / "damaged.npz"
    np.savez_compressed(path, **arrays())
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 3] ^= 255
    path.write_bytes(damaged)
    message = message_of(["--data", path], capsys)
    assert message.startswith(f"{path}: {expected}arrays that are damaged")


def test_a_file_that_is_not_a_model_is_refused(trained, tmp_path, capsys):
    path = tmp_path / "model.keras"
    expected = f"{path}: expected a model that this script saved. Received: "
    message = message_of(["--load", path], capsys)
    assert message == f"{expected}no such file"

    content = (trained[0] / "model.keras").read_bytes()
    path.write_bytes(content[: len(content) // 2])
    message = message_of(["--load", path], capsys)
    assert message == f"{expected}a damaged file, or one of another kind"

    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 255
    path.write_bytes(damaged)
    assert message_of(["--load", path], capsys).startswith(
        f"{expected}BadZipFile: "
    )


def test_a_model_for_other_sequences_is_refused(trained, capsys):
    path = trained[0] / "model.keras"
    assert message_of(["--load", path], capsys) == (
        f"{path}: expected a model from (None, 64, 1), the sequences of this "
        "data, to (None, 10), its classes. Received: one from (None, 9, 1) to "
        "(None, 9)"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--epochs", "0"],
            "--epochs: expected a whole number from 1 to 2147483647, "
            "received 0",
        ),
        (["--minutes", "0"], "--minutes: expected a number above 0, received"),
        (["--minutes", "nan"], "--minutes: expected a number above 0"),
        (["--model", "big"], "--model: invalid choice: 'big'"),
        (["--test-size", "0"], "--test-size: expected a whole number"),
        (
            ["--test-size", "451"],
            "--test-size: expected at most 450, the number of test images. "
            "Received: 451",
        ),
        (["--epochs", "many"], "--epochs: invalid int value: 'many'"),
        (["--batch-size", "-4"], "--batch-size: expected a whole number"),
        (["--train-size", "0"], "--train-size: expected a whole number"),
        (
            ["--train-size", "1348"],
            "--train-size: expected at most 1347, the number of training "
            "images. Received: 1348",
        ),
        (["--seed", "-1"], "--seed: expected a whole number from 0 to"),
        (["--seed", str(2**40)], "received 1099511627776"),
        (["--speed", "9"], "unrecognized arguments: --speed 9"),
        (["--output", __file__], f"{__file__}: expected a directory"),
    ],
)
def test_a_wrong_option_is_refused(arguments, expected, capsys):
    assert expected in message_of(arguments, capsys)


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as stop:
        example.main(["--help"])
    assert stop.value.code == 0
    output = capsys.readouterr().out
    for option in (
        "data",
        "permute",
        "epochs",
        "batch-size",
        "train-size",
        "test-size",
        "model",
        "minutes",
        "seed",
        "output",
        "load",
    ):
        assert f"--{option}" in output
    assert "KERAS_BACKEND" in output


@pytest.mark.parametrize(
    ("variable", "settings", "installed", "expected"),
    [
        (None, None, ["jax", "tensorflow", "torch"], "jax"),
        (None, None, ["tensorflow", "torch"], "tensorflow"),
        (None, None, ["torch"], "torch"),
        (None, "tensorflow", ["torch"], "torch"),
        (None, "torch", ["jax", "torch"], None),
        ("tensorflow", "torch", ["jax", "tensorflow"], "tensorflow"),
        ("tensorflow", None, ["jax", "tensorflow"], "tensorflow"),
    ],
)
def test_the_backend_is_an_installed_one_unless_the_user_chose_one(
    variable, settings, installed, expected, tmp_path, monkeypatch
):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND")
    if variable:
        monkeypatch.setenv("KERAS_BACKEND", variable)
    if settings:
        (tmp_path / "keras.json").write_text(json.dumps({"backend": settings}))
    monkeypatch.setattr(
        common.importlib.util, "find_spec", lambda name: name in installed
    )
    common.prepare_backend()
    assert os.environ.get("KERAS_BACKEND") == expected
