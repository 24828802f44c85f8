"""The tasks by name, and where their data come from.

Each function of `TASKS` takes the options of the command line and the seed of
the run, and the arguments that its recipe gives; it returns a `Task`.
"""

from types import SimpleNamespace

import keras
import numpy as np
from addition_task import additions
from common import refuse
from copy_memory import SYMBOLS
from copy_memory import copies
from digits import read_task
from recipes import cifar
from recipes import recordings
from recipes import reviews
from recipes.group_words import GroupWords
from recipes.sounds import oversampled
from recipes.sounds import varied
from recipes.tasks import DrawnTask
from recipes.tasks import FixedTask
from recipes.tasks import PaddedTask
from recipes.tasks import TextTask
from recipes.vowels import vowels

TEST_TAKES = range(5)
PULSE_STEPS = 20
PULSE_NOISE = 0.1
# Where longer recordings are cut off.
MAX_SECONDS = 1


def addition(options, seed, steps):
    """The sum of two marked numbers among many."""
    return DrawnTask(
        lambda count, generator: additions(count, steps, generator),
        shape=(steps, 2),
        test_size=1000,
        loss="mean_squared_error",
    )


def copy_memory(options, seed, delay):
    """Ten symbols, to be repeated after a delay."""
    return DrawnTask(
        lambda count, generator: copies(count, delay, generator),
        shape=(delay + 20, SYMBOLS + 2),
        test_size=1000,
        loss=of_logits(),
        metrics=("accuracy",),
    )


def distant_pulses(options, seed, steps, distance):
    """Two pulses in noise, and whether they point the same way."""
    return DrawnTask(
        lambda count, generator: pulses(count, steps, distance, generator),
        shape=(steps, 1),
        test_size=1000,
        loss="sparse_categorical_crossentropy",
        metrics=("accuracy",),
        num_classes=2,
    )


def pulses(count, steps, distance, generator):
    """Noise with two pulses, `distance` steps apart, up or down each.

    Each pulse alone is up in half of the sequences of either class: only both
    together tell the classes apart.

    Returns:
        `(sequences, labels)`: (count, steps, 1), and 1 where both pulses point
        the same way.
    """
    sequences = generator.normal(0.0, PULSE_NOISE, (count, steps, 1))
    signs = generator.choice([-1.0, 1.0], (count, 2))
    latest = steps - distance - PULSE_STEPS
    first = generator.integers(latest + 1, size=count)
    for row, place, pair in zip(sequences, first, signs):
        for start, sign in zip((place, place + distance), pair):
            row[start : start + PULSE_STEPS] += sign
    labels = (signs[:, 0] == signs[:, 1]).astype("int32")
    return sequences.astype("float32"), labels


def group_words(options, seed, degree, steps):
    """Letters that are permutations, and their products."""
    return GroupWords(degree, steps, test_size=1000, loss=of_logits())


def pixels(options, seed, order, logits=False, test_size=None):
    """MNIST, pixel by pixel, as `digits.as_task` orders the pixels.

    Args:
        order: string, a task of `digits.as_task`.
        logits: whether the model gives logits, and not probabilities.
        test_size: integer, the first so many test images. Defaults to all.
    """
    if options.data is None:
        raise SystemExit(
            "--data: expected MNIST as Keras' mnist.npz, which "
            "`keras.datasets.mnist.load_data()` stores in ~/.keras/datasets. "
            "Received: no file"
        )
    train, test, _ = read_task(options.data, order)
    mean, deviation = train[0].mean(), train[0].std()
    test = tuple(part[:test_size] for part in test)
    task = FixedTask(
        *(
            ((sequences - mean) / deviation, labels)
            for sequences, labels in (train, test)
        )
    )
    if logits:
        task.loss = of_logits()
    return task


def pictures(options, seed, form, padded_to=None):
    """CIFAR-10, pixel by pixel or row by row.

    Args:
        form: string, of `cifar.as_sequences`.
        padded_to: integer, so many steps, those behind the picture of normal
            noise. Defaults to `None`, no such steps.
    """
    (train, labels), (test, answers) = cifar.read(options.data)
    train, test = (cifar.as_sequences(part, form) for part in (train, test))
    mean, deviation = train.mean(axis=(0, 1)), train.std(axis=(0, 1))
    train, test = ((part - mean) / deviation for part in (train, test))
    if padded_to is None:
        return FixedTask((train, labels), (test, answers))
    return PaddedTask((train, labels), (test, answers), padded_to)


def film_reviews(options, seed, length):
    """Whether a review, read byte by byte, is for a film or against it."""
    return FixedTask(*reviews.read(options.data, length), multiple=512)


def of_logits():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def text(options, seed, length, ahead=1):
    """The bytes of a text, each from those `ahead` and more steps before."""
    if options.data is None:
        raise SystemExit(
            "--data: expected a text of about a megabyte, such as Tiny "
            "Shakespeare. Received: no file"
        )
    expected = f"a text of more than {20 * length} bytes"
    try:
        content = np.frombuffer(options.data.read_bytes(), "uint8")
    except OSError as error:
        refuse(options.data, expected, error.strerror)
    # Of the test, a tenth, at least two rows.
    if len(content) <= 20 * length:
        refuse(options.data, expected, f"{len(content)} bytes")
    return TextTask(content.astype("int32"), length, ahead)


def list_operation_values(options, seed, train_size, test_size, **rules):
    """The values of nested lists of digits, as in Long Range Arena."""
    # With it comes KerasHub, which other recipes do not need.
    from list_operations import make_set

    rules = SimpleNamespace(**rules)
    parts = []
    for count, number in ((train_size, 0), (test_size, 1)):
        token_ids, values = make_set(count, [0, number], rules)
        lengths = (token_ids > 0).sum(axis=1)
        rows = [row[:n].astype("int32") for row, n in zip(token_ids, lengths)]
        parts.append((rows, values))
    return FixedTask(*parts, multiple=200)


def speech(options, seed, unheard=False, vary=False, oversampling=1):
    """Spoken digits as raw sound, in takes or of a speaker not heard.

    Args:
        unheard: whether the test is on one speaker, the one of the number
            `seed`, and not on the first takes of every speaker.
        vary: whether half of the recordings in training lose the frequencies
            above a random one.
        oversampling: integer, the number of steps for a sample.
    """
    arrays = recordings.read(options.data)
    held_out = np.isin(arrays["takes"], TEST_TAKES)
    if unheard:
        speakers = np.unique(arrays["speakers"])
        held_out = arrays["speakers"] == speakers[seed % len(speakers)]
    recordings.require_parts(options.data, arrays["labels"], held_out)
    ends = np.cumsum(arrays["lengths"])[:-1]
    longest = int(MAX_SECONDS * arrays["rate"])
    sounds = [
        oversampled(recordings.equally_loud(part[:longest]), oversampling)
        for part in np.split(arrays["samples"], ends)
    ]
    labels = arrays["labels"].astype("int32")
    train, test = (
        ([s for s, taken in zip(sounds, rows) if taken], labels[rows])
        for rows in (~held_out, held_out)
    )

    def variation(sound, generator):
        recording = varied(sound[::oversampling], generator)
        return oversampled(recording, oversampling)

    return FixedTask(
        train,
        test,
        multiple=1000 * oversampling,
        vary=variation if vary else None,
        oversampling=oversampling,
    )


TASKS = {
    "addition": addition,
    "copy_memory": copy_memory,
    "distant_pulses": distant_pulses,
    "film_reviews": film_reviews,
    "group_words": group_words,
    "list_operations": list_operation_values,
    "pictures": pictures,
    "pixels": pixels,
    "speech": speech,
    "text": text,
    "vowels": vowels,
}
