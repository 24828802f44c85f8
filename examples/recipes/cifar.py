"""CIFAR-10: Keras' arrays, or its pictures as JPEG files end to end.

JPEG is slightly lossy: figures from such pictures differ a little from those of
the original ones.
"""

from io import BytesIO

import numpy as np
from common import refuse
from common import require_archive

KERAS = ("x_train", "y_train", "x_test", "y_test")
JPEG = ("bytes", "ends", "labels")
EXPECTED = (
    "a NumPy .npz file with Keras' arrays of CIFAR-10, "
    f"{', '.join(KERAS)}, or a folder with cifar10_train_jpeg.npz and "
    f"cifar10_test_jpeg.npz, each with {', '.join(JPEG)}"
)


def read(path):
    """`(train, test)`, pairs of pictures (count, 32, 32, 3) and labels."""
    if path is None:
        raise SystemExit(f"--data: expected {EXPECTED}. Received: no file")
    if path.is_dir():
        return tuple(
            read_jpeg(path / f"cifar10_{part}_jpeg.npz")
            for part in ("train", "test")
        )
    arrays = read_arrays(path, KERAS)
    return tuple(
        checked(path, arrays[f"x_{part}"], arrays[f"y_{part}"])
        for part in ("train", "test")
    )


def read_jpeg(path):
    # Matplotlib brings it.
    from PIL import Image

    arrays = read_arrays(path, JPEG)
    parts = np.split(arrays["bytes"], arrays["ends"][:-1])
    pictures = [
        np.asarray(Image.open(BytesIO(part.tobytes())).convert("RGB"))
        for part in parts
    ]
    return checked(path, np.stack(pictures), arrays["labels"])


def read_arrays(path, names):
    require_archive(path, EXPECTED)
    with np.load(path, allow_pickle=False) as file:
        missing = [name for name in names if name not in file]
        if missing:
            refuse(path, EXPECTED, f"a file without {', '.join(missing)}")
        return {name: file[name] for name in names}


def checked(path, pictures, labels):
    labels = labels.reshape(-1).astype("int32")
    if pictures.ndim != 4 or pictures.shape[3] != 3:
        refuse(path, "pictures (count, height, width, 3)", pictures.shape)
    if len(pictures) != len(labels):
        refuse(path, "a label for each picture", f"{len(labels)} labels")
    return pictures, labels


def as_sequences(pictures, form):
    """Steps of pictures.

    Args:
        pictures: whole numbers (count, height, width, 3).
        form: `"colour"`, a step for each pixel, of three numbers; `"grey"`, of
            one, the luminance that Long Range Arena takes; or `"rows"`, a step
            for each row.
    """
    pictures = pictures.astype("float32") / 255
    count, height, width, _ = pictures.shape
    if form == "rows":
        # The rows of the three channels side by side.
        rows = pictures.transpose(0, 1, 3, 2)
        return rows.reshape(count, height, 3 * width)
    pixels = pictures.reshape(count, height * width, 3)
    if form == "grey":
        # That of ITU-R 601, as in TensorFlow.
        return pixels @ np.array([[0.299], [0.587], [0.114]], "float32")
    return pixels
