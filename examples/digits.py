"""Handwritten digits as sequences: scikit-learn's, or a file like MNIST's."""

import sys
from pathlib import Path

import numpy as np
from common import refuse
from common import require_archive
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

# Functions import Keras themselves, after a backend has been chosen.

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
EXPECTED_FILE = f"a NumPy .npz file with the arrays {', '.join(ARRAYS)}"
CLASSES_MAX = 1000
TEST_BATCH_SIZE = 200


def add_data(parser):
    """Add the option for a file of images."""
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE.npz",
        help="images to use instead of scikit-learn's 8x8 digits: a NumPy "
        f"file like Keras' mnist.npz, with the arrays {', '.join(ARRAYS)}",
    )


def read(path=None):
    """Training and test images with labels, and the number of classes."""
    arrays = read_file(path) if path else read_digits()
    train_images, train_labels, test_images, test_labels = arrays
    classes = int(max(train_labels.max(), test_labels.max())) + 1
    return (train_images, train_labels), (test_images, test_labels), classes


def read_task(path, task):
    """As `read`, but as sequences for a task, with pixels from 0 to 1."""
    *parts, classes = read(path)
    highest = parts[0][0].max()
    train, test = (
        (as_task(images / highest, task), labels) for images, labels in parts
    )
    return train, test, classes


def read_digits():
    """Training images and labels, test images and labels."""
    images, labels = load_digits(return_X_y=True)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.25, stratify=labels, random_state=0
    )
    return train_images, train_labels, test_images, test_labels


def read_file(path):
    """The same as `read_digits`, from a file like mnist.npz."""
    require_archive(path, EXPECTED_FILE)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {
                name: np.asarray(file[name]) for name in ARRAYS if name in file
            }
    except Exception:  # A damaged file fails in many ways.
        refuse(path, EXPECTED_FILE, "arrays that are damaged or no numbers")
    missing = [name for name in ARRAYS if name not in arrays]
    if missing:
        refuse(path, EXPECTED_FILE, f"a file without {', '.join(missing)}")

    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if (
            images.ndim != 3
            or images.size == 0
            or images.dtype.kind not in "uif"
            or not np.isfinite(images).all()
        ):
            refuse(
                path,
                f"x_{part} with finite numbers (images, height, width)",
                describe(images),
            )
        if (
            labels.shape != images.shape[:1]
            or labels.dtype.kind not in "ui"
            or not 0 <= labels.min() <= labels.max() < CLASSES_MAX
        ):
            refuse(
                path,
                f"y_{part} with {len(images)} whole numbers from 0 to "
                f"{CLASSES_MAX - 1}, one for each image",
                describe(labels),
            )
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        refuse(
            path,
            "x_train and x_test with images of one size",
            f"{describe(arrays['x_train'])} and {describe(arrays['x_test'])}",
        )
    train_images = arrays["x_train"]
    # Pixels are divided by the highest, or by their deviation.
    if not 0 < train_images.max() > train_images.min():
        refuse(
            path,
            "x_train with pixels that differ, some of them above 0",
            describe(train_images),
        )
    for name in ("y_train", "y_test"):
        # PyTorch hardly supports unsigned integers of 16 bits and more.
        arrays[name] = arrays[name].astype("int32")
    return tuple(arrays[name] for name in ARRAYS)


def describe(array):
    text = f"{array.dtype} of shape {array.shape}"
    if array.size and array.dtype.kind in "uif":
        text += f" from {array.min()} to {array.max()}"
    return text


def as_sequences(images, permute):
    """Images as sequences (images, pixels, 1), one pixel per step."""
    sequences = images.reshape(len(images), -1, 1).astype("float32")
    if permute:
        # A fixed seed: loading a model requires the same order.
        order = np.random.default_rng(0).permutation(sequences.shape[1])
        sequences = sequences[:, order]
    return sequences


def as_task(images, task):
    """Images as sequences (images, steps, features)."""
    if task == "noise-padded":
        # scikit-learn's images are flat.
        height = images.shape[1] if images.ndim == 3 else 8
        return images.reshape(len(images), height, -1).astype("float32")
    pixels = as_sequences(images, permute=task == "permuted")
    if task != "eight-pixels":
        return pixels
    if pixels.shape[1] % 8:
        sys.exit(
            "--task eight-pixels: expected images whose number of pixels is "
            f"a multiple of 8. Received: {pixels.shape[1]} pixels"
        )
    return pixels.reshape(len(pixels), -1, 8)


def scaled_pixels(pixels):
    """The first layers of every model."""
    import keras

    return [
        keras.Input(pixels.shape[1:]),
        keras.layers.Normalization(
            axis=None,
            mean=float(pixels.mean()),
            variance=float(pixels.var()),
        ),
    ]


def first(size, data, option, kind):
    """The first `size` images and their labels; all if `size` is `None`."""
    pixels, labels = data
    size = len(pixels) if size is None else size
    if size > len(pixels):
        sys.exit(
            f"{option}: expected at most {len(pixels)}, the number of "
            f"{kind} images. Received: {size}"
        )
    return pixels[:size], labels[:size]


def compile_model(model, optimizer=None):
    import keras

    model.compile(
        optimizer,
        loss="sparse_categorical_crossentropy",
        metrics=[keras.metrics.SparseCategoricalAccuracy("accuracy")],
    )
