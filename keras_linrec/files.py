"""Files that are replaced whole or not at all."""

import glob
import os
import re
import shutil
import stat
import tempfile
from contextlib import ExitStack
from contextlib import contextmanager
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def require_model_path(filepath):
    """Raise for the path of a model that could not be loaded from there.

    Keras writes HDF5 files (`.h5`) too, and does not find in them the layers of
    a model that is a class of its own.
    """
    # Keras writes a folder there, which has no ending.
    if not str(filepath).startswith("hf://"):
        _require_ending(filepath, ".keras")


def require_weights_path(filepath, is_sharded=False):
    """Raise for the path of weights that could not be loaded from there."""
    others = (".weights.json",) if is_sharded else ()
    _require_ending(filepath, ".weights.h5", *others)


def _require_ending(filepath, *endings):
    is_path = isinstance(filepath, (str, os.PathLike))
    if not (is_path and str(filepath).endswith(endings)):
        wanted = " or ".join(f"`{ending}`" for ending in endings)
        raise ValueError(
            f"`filepath` should be a string or a path that ends in {wanted}; "
            "what is saved with another ending cannot be loaded. "
            f"Received: filepath={filepath}"
        )


@contextmanager
def replacing(path, overwrite=True):
    """A path to write to, whose file replaces the one at `path` at the end.

    The file is written in a temporary folder beside the old one, flushed to
    the disk, and moved. If the scope raises, or the process dies, the old file
    is as it was. The temporary folder of a process that was killed is removed
    by the next call for the same path.

    Symbolic links are followed and kept, as are the permissions of an old
    file. What cannot be moved is written in place: remote paths such as
    `gs://bucket/model.keras`, and devices.

    Args:
        path: string or path.
        overwrite: whether an old file may be replaced.

    Raises:
        FileExistsError: if there is a file and `overwrite` is false.
        OSError: if the file cannot be written, with `path` as its name.
    """
    if "://" in str(path) or _is_special(path):
        yield path
        return
    if not overwrite and os.path.exists(path):
        raise FileExistsError(
            f"The file '{path}' exists. Received: overwrite=False"
        )
    try:
        with (
            _moved_to(Path(os.path.realpath(path))) as made,
            _saying(made, path),
        ):
            yield made
    except (OSError, RuntimeError) as failure:
        number = _number_of(failure)
        if number is None:
            raise
        raise OSError(
            number, f"nothing was saved: {os.strerror(number)}", str(path)
        ) from failure


@contextmanager
def _saying(made, path):
    """A scope in which errors name `path` where they would name `made`."""
    try:
        yield
    except ValueError as failure:
        if str(made) not in str(failure):
            raise
        message = str(failure).replace(str(made), str(path))
        raise ValueError(message) from failure


def _number_of(failure):
    """The number of a system's error, or `None`."""
    # HDF5 raises a RuntimeError if the disk is full when it closes a file.
    found = re.search(r"errno = (\d+)", str(failure))
    return getattr(failure, "errno", None) or (found and int(found[1]))


@contextmanager
def naming(path):
    """A scope in which any error becomes a ValueError that names the file."""
    try:
        yield
    except Exception as failure:
        raise ValueError(
            f"The file '{path}' could not be loaded. "
            f"{type(failure).__name__}: {failure}"
        ) from failure


@contextmanager
def _moved_to(target):
    # A name has at most 255 bytes.
    start = target.name.encode(errors="ignore")[:200].decode(errors="ignore")
    prefix = f".{start}.saving-"
    _remove_abandoned(target.parent, prefix)
    with _scratch(target.parent, prefix) as scratch:
        # The same name, because Keras reads the kind of a file from it.
        made = scratch / target.name
        yield made
        if target.exists():
            made.chmod(stat.S_IMODE(target.stat().st_mode))
        _flush(made)
        made.replace(target)
        _flush(target.parent)


def _is_special(path):
    return os.path.exists(path) and not os.path.isfile(path)


@contextmanager
def _scratch(folder, prefix):
    """A temporary folder, locked so that it is not taken for abandoned."""
    while True:
        with (
            tempfile.TemporaryDirectory(
                dir=folder, prefix=prefix, ignore_cleanup_errors=True
            ) as scratch,
            _lock(scratch, wait=True),
        ):
            # Another process may have removed it before it was locked.
            if os.path.exists(scratch):
                yield Path(scratch)
                return


def _remove_abandoned(folder, prefix):
    """Remove what killed processes left behind."""
    for scratch in folder.glob(f"{glob.escape(prefix)}*"):
        with _lock(scratch, wait=False) as is_held:
            if is_held:
                shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _lock(folder, wait):
    """A lock on a folder, which ends with the process; whether it is held."""
    with ExitStack() as stack:
        is_held = False
        # Some file systems, and Windows, have no such locks.
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            at_once = 0 if wait else fcntl.LOCK_NB
            fcntl.flock(descriptor, fcntl.LOCK_EX | at_once)
            is_held = True
        yield is_held


def _flush(path):
    """Have the disk hold what was written to a file or a folder."""
    if os.name == "nt":  # where this needs a file that is open to be written
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
