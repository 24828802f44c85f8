"""Disks that are full or read-only while models are saved."""

import os
import resource
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import keras

from faults.forks import Child
from keras_linrec import saving
from keras_linrec.layers import RotRNN


@contextmanager
def small_disk(pages):
    """A folder, and whether it is a disk of its own with so many free pages.

    The file `filler` fills the rest of it. Only root may mount one.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not mounted(folder, "size=1m,mode=755"):
            yield folder, False
            return
        try:
            with open(folder / "filler", "wb") as file:
                file.write(bytes((256 - pages) * 4096))
            yield folder, True
        finally:
            subprocess.run(["umount", folder], check=True)


def mounted(folder, options):
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    return not subprocess.run(command, capture_output=True).returncode


def model():
    return keras.Sequential(
        [keras.Input((None, 3)), RotRNN(8, state_size=64, num_heads=2)]
    )


SAVES = (
    (saving.save_model, "model.keras"),
    (saving.save_weights, "model.weights.h5"),
)


def is_whole(path, save, expected):
    """Whether the old file is as it was, alone, and can be replaced."""
    alone = {found.name for found in path.parent.iterdir()} - {"filler"}
    return path.read_bytes() == expected and alone == {path.name}


def saved(save, path, written, report):
    """Save within a limit, and report the error."""
    try:
        save(written, path)
        report("saved")
    except Exception as failure:
        named = getattr(failure, "filename", None) == str(path)
        report("refused" if named else f"{type(failure).__name__}: {failure}")


def limited_files(tries):
    """A file may have only so many bytes, from none to nearly all.

    Returns:
        The saves that were refused with the name of the file, where the old
        file stayed whole, and all saves.
    """
    survived, written = 0, model()
    with tempfile.TemporaryDirectory() as name:
        for save, file in SAVES:
            folder = Path(name) / file
            folder.mkdir()
            path = folder / file
            save(written, path)
            expected = path.read_bytes()
            for index in range(tries):
                limit = index * len(expected) // tries

                def work(report, limit=limit, save=save, path=path):
                    resource.setrlimit(
                        resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)
                    )
                    saved(save, path, written, report)

                survived += refused(Child(work).end(60), path, save, expected)
    return survived, tries * len(SAVES)


def refused(ended, path, save, expected):
    code, lines = ended
    good = code == 0 and lines == ["refused"]
    good = good and is_whole(path, save, expected)
    if not good:
        print(f"  {path.name}: {code} {lines[-1:]}")
    return good


def full_disks(tries):
    """As `limited_files`, on a disk with room for a part of the new file."""
    survived, written = 0, model()
    for save, file in SAVES:
        for pages in range(tries):
            with small_disk(256) as (folder, is_small):
                if not is_small:
                    return 0, 0
                path = folder / file
                save(written, path)
                expected = path.read_bytes()
                free = os.statvfs(folder).f_bavail - pages * 4 // tries - 1
                (folder / "filler").write_bytes(bytes(free * 4096))

                def work(report, save=save, path=path):
                    saved(save, path, written, report)

                survived += refused(Child(work).end(60), path, save, expected)
    return survived, tries * len(SAVES)


def read_only_disks():
    """A disk becomes read-only: nothing is saved, and the file is named."""
    survived, written = 0, model()
    for save, file in SAVES:
        with small_disk(256) as (folder, is_small):
            if not is_small:
                return 0, 0
            path = folder / file
            save(written, path)
            expected = path.read_bytes()
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)

            def work(report, save=save, path=path):
                saved(save, path, written, report)

            survived += refused(Child(work).end(60), path, save, expected)
    return survived, len(SAVES)
