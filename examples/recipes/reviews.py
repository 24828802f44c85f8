"""Film reviews (Maas et al. 2011), for or against, as bytes."""

from pathlib import Path

import numpy as np
from common import refuse
from common import require_archive

PARTS = ("train", "test")
ARRAYS = tuple(
    f"{part}_{name}" for part in PARTS for name in ("bytes", "ends", "labels")
)
EXPECTED = (
    "the folder aclImdb, with train/pos, train/neg, test/pos and test/neg, or "
    f"a NumPy .npz file with {', '.join(ARRAYS)}"
)


def read(path, length):
    """`(train, test)`, pairs of lists of tokens and labels, 1 if for.

    Args:
        path: the folder or the file.
        length: integer, the bytes of a review that are read.
    """
    if path is None:
        raise SystemExit(f"--data: expected {EXPECTED}. Received: no file")
    read_part = part_of_folder if path.is_dir() else part_of_file
    return tuple(as_tokens(*read_part(path, part), length) for part in PARTS)


def part_of_folder(path, part):
    texts, labels = [], []
    for label, kind in enumerate(("neg", "pos")):
        found = sorted(Path(path, part, kind).glob("*.txt"))
        if not found:
            refuse(path, EXPECTED, f"nothing in {part}/{kind}")
        texts += [np.frombuffer(f.read_bytes(), "uint8") for f in found]
        labels += [label] * len(found)
    return texts, np.array(labels)


def part_of_file(path, part):
    require_archive(path, EXPECTED)
    with np.load(path, allow_pickle=False) as file:
        missing = [name for name in ARRAYS if name not in file]
        if missing:
            refuse(path, EXPECTED, f"a file without {', '.join(missing)}")
        ends = file[f"{part}_ends"][:-1]
        texts = np.split(file[f"{part}_bytes"], ends)
        return texts, file[f"{part}_labels"]


def as_tokens(texts, labels, length):
    tokens = [text[:length].astype("int32") for text in texts]
    return tokens, labels.astype("int32")
