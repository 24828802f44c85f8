"""The Free Spoken Digit Dataset: its folder of recordings, or one file."""

import re
import wave

import numpy as np
from common import refuse
from common import require_archive

ARRAYS = ("samples", "lengths", "labels", "speakers", "takes", "rate")
FILE = f"a NumPy .npz file with the arrays {', '.join(ARRAYS)}"
FOLDER = "a folder with recordings named DIGIT_SPEAKER_TAKE.wav"


def read(path):
    """The arrays of `ARRAYS`, one recording after another."""
    if path is None:
        raise SystemExit(
            "--data: expected the recordings of the Free Spoken Digit Dataset, "
            f"{FOLDER}, or {FILE}. Received: no file"
        )
    return read_folder(path) if path.is_dir() else read_file(path)


def read_folder(folder):
    # In an order that does not depend on the file system.
    paths = sorted(folder.glob("*.wav"))
    if not paths:
        refuse(folder, FOLDER, "a folder without one")
    names = [parts_of(path) for path in paths]
    speakers = sorted({speaker for _, speaker, _ in names})
    sounds, rates = zip(*map(read_recording, paths))
    if len(set(rates)) > 1:
        refuse(folder, "recordings of one rate", f"{sorted(set(rates))} Hz")
    return {
        "samples": np.concatenate(sounds),
        "lengths": np.array([len(sound) for sound in sounds]),
        "labels": np.array([digit for digit, _, _ in names]),
        "speakers": np.array([speakers.index(name) for _, name, _ in names]),
        "takes": np.array([take for _, _, take in names]),
        "rate": np.array(rates[0]),
    }


def parts_of(path):
    """The digit, the speaker and the take in the name of a recording."""
    found = re.fullmatch(r"(\d+)_(.+)_(\d+)", path.stem)
    if not found:
        refuse(path, "a name like 3_jackson_12.wav", path.name)
    return int(found[1]), found[2], int(found[3])


def read_recording(path):
    """The samples of a recording, and how many there are in a second."""
    try:
        with wave.open(str(path)) as file:
            form = file.getnchannels(), 8 * file.getsampwidth()
            content = file.readframes(file.getnframes())
            rate = file.getframerate()
    except (wave.Error, EOFError) as error:
        refuse(path, "a recording in WAV format", error)
    if form != (1, 16) or not content:
        received = "{} channels, {} bits, {} samples".format(
            *form, len(content) // 2
        )
        refuse(path, "samples of one channel and 16 bits", received)
    return np.frombuffer(content, "<i2"), rate


def read_file(path):
    require_archive(path, FILE)
    with np.load(path, allow_pickle=False) as file:
        missing = [name for name in ARRAYS if name not in file]
        if missing:
            refuse(path, FILE, f"a file without {', '.join(missing)}")
        arrays = {name: file[name] for name in ARRAYS}
    lengths, samples = arrays["lengths"], arrays["samples"]
    for name in ("lengths", "labels", "speakers", "takes"):
        values = arrays[name]
        if values.dtype.kind not in "iu" or values.shape != lengths.shape:
            refuse(
                path,
                f"`{name}` with a whole number for each recording",
                f"{values.dtype}, of the shape {values.shape}",
            )
    if lengths.min() < 1 or lengths.sum() != len(samples):
        refuse(
            path,
            f"lengths above 0 that sum to the {len(samples)} samples",
            f"lengths from {lengths.min()} that sum to {lengths.sum()}",
        )
    return arrays


def require_parts(path, labels, held_out):
    """Exit unless there are recordings to train on, and for the test."""
    known = np.isin(labels[held_out], labels[~held_out])
    if held_out.all() or not held_out.any() or not known.all():
        refuse(
            path,
            "recordings for training and for the test, with the same labels",
            f"{np.sum(~held_out)} for training, {np.sum(held_out)} for the "
            f"test, {np.sum(~known)} of them with labels of their own",
        )


def equally_loud(recording):
    """A recording (samples, 1) with mean 0 and standard deviation 1."""
    recording = recording.astype("float32")
    recording = recording - recording.mean()
    return (recording / max(recording.std(), 1.0))[:, None]
