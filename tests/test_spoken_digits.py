"""The example of spoken digits, on made sounds."""

import numpy as np
import pytest
import spoken_digits


@pytest.fixture
def data(tmp_path):
    """A file of two digits in ten takes, tones of two pitches."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(2, dtype="uint8"), 10)
    lengths = generator.integers(30, 60, 20).astype("int32")
    tones = [
        np.sin((0.3 + label) * np.arange(length) + generator.uniform(0, 6))
        for label, length in zip(labels, lengths)
    ]
    path = tmp_path / "digits.npz"
    np.savez(
        path,
        samples=(3e4 * np.concatenate(tones)).astype("int16"),
        lengths=lengths,
        labels=labels,
        takes=np.tile(np.arange(10, dtype="uint8"), 2),
        rate=np.int32(8000),
    )
    return path


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(spoken_digits, "LENGTH_STEP", 20)


def options(data, folder, *others):
    sizes = ["--layers", "2", "--units", "8", "--batch-size", "4"]
    paths = ["--data", str(data), "--output", str(folder)]
    return [*paths, *sizes, *others]


def test_recordings_are_cut_apart_and_equally_loud(data):
    recordings, labels, takes = spoken_digits.read(data, longest=50)
    assert len(recordings) == len(labels) == len(takes) == 20
    assert max(map(len, recordings)) == 50
    for recording in recordings:
        assert recording.mean() == pytest.approx(0, abs=1e-5)
        assert recording.std() == pytest.approx(1, abs=1e-5)


def test_batches_hold_every_recording_once_and_mask_the_padding(data):
    recordings, labels, _ = spoken_digits.read(data, longest=50)
    given = spoken_digits.parse(["--data", str(data), "--batch-size", "6"])
    batches = spoken_digits.Batches(recordings, labels, given, shuffled=True)
    seen = []
    for index in range(len(batches)):
        inputs, digits = batches[index]
        assert inputs["sound"].shape[1] % 20 == 0
        for sound, mask, digit in zip(inputs["sound"], inputs["mask"], digits):
            assert (sound[~mask] == 0).all()
            (row,) = [
                row
                for row, recording in enumerate(recordings)
                if np.array_equal(recording, sound[mask])
            ]
            assert labels[row] == digit
            seen.append(row)
    assert sorted(seen) == list(range(20))


@pytest.mark.parametrize("seed", range(5))
def test_the_first_two_batches_differ_in_width(data, seed):
    recordings, labels, _ = spoken_digits.read(data, longest=60)
    given = spoken_digits.parse(
        ["--data", str(data), "--batch-size", "4", "--seed", str(seed)]
    )
    for shuffled in (False, True):
        batches = spoken_digits.Batches(recordings, labels, given, shuffled)
        widths = [
            batches[index][0]["mask"].shape[1] for index in range(len(batches))
        ]
        assert len(set(widths)) > 1
        assert widths[0] != widths[1]


def test_a_run_that_was_cut_short_goes_on(data, tmp_path, capsys):
    folder = tmp_path / "run"
    spoken_digits.main(options(data, folder, "--epochs", "1"))
    first = spoken_digits.read_curve(folder / spoken_digits.TABLE_FILE)
    spoken_digits.main(options(data, folder, "--epochs", "3"))
    curve = spoken_digits.read_curve(folder / spoken_digits.TABLE_FILE)
    assert curve[:1] == first
    assert [row["epoch"] for row in curve] == [1, 2, 3]
    assert "training on 10 recordings, testing on 10" in capsys.readouterr().out
    assert (folder / spoken_digits.MODEL_FILE).exists()


def test_a_file_that_does_not_fit_is_refused(data, tmp_path):
    with np.load(data) as file:
        arrays = dict(file)
    path = tmp_path / "other.npz"
    np.savez(path, **{**arrays, "lengths": arrays["lengths"] + 1})
    with pytest.raises(SystemExit, match="that sum to"):
        spoken_digits.main(options(path, tmp_path))
    del arrays["takes"]
    np.savez(path, **arrays)
    with pytest.raises(SystemExit, match="a file without takes"):
        spoken_digits.main(options(path, tmp_path))
