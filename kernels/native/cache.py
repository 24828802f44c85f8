"""The folder of compiled libraries, which only its user may write to.

A library runs code as soon as it is loaded. So nothing is loaded that another
user may have written: the folders and files of the cache have to belong to the
user or to root, and to be writable by nobody else. A link inside the cache is
not followed.
"""

import hashlib
import os
import stat
import warnings
from contextlib import contextmanager
from pathlib import Path

from keras_linrec.kernels.native import BuildError

VARIABLE = "KERAS_LINREC_CACHE_DIR"

_ROOT = 0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def folder():
    """The path of the cache."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(home or Path.home() / ".cache") / "keras_linrec"
    except RuntimeError as failure:
        raise BuildError(
            f"there is no home folder to keep compiled kernels in ({failure}): "
            f"set the environment variable {VARIABLE} to a folder"
        ) from failure


def make(name):
    """Make a folder of the cache; returns its path.

    Others may read it, so that an image that root has built serves everyone.
    """
    folder().mkdir(mode=0o755, parents=True, exist_ok=True)
    # The user may have moved the cache elsewhere by a link.
    cache = folder().resolve()
    _require_private(cache)
    path = cache / name
    path.mkdir(mode=0o755, exist_ok=True)
    _require_private(path)
    return path


def find(name, compiler):
    """An intact library in a folder of the cache, or `None`.

    Damaged ones are removed.

    Args:
        name: the name of the folder.
        compiler: the key of the compiler that made it; `None` for any.

    Raises:
        BuildError: if another user may have written the library.
    """
    cache = folder().resolve()
    path = cache / name
    if not os.path.lexists(path):
        return None
    _require_private(cache)
    _require_private(path)
    for library in sorted(path.glob(f"{compiler or '*'}-*.so")):
        try:
            _require_private(library)
            if content_key(library) == library.stem.split("-")[1]:
                return library
            library.unlink()
        except OSError:
            # We may not remove it, or another process has: skip it.
            continue
        warnings.warn(
            f"keras_linrec: the compiled kernel {library} was damaged and has "
            "been removed; it is rebuilt if possible.",
            RuntimeWarning,
            stacklevel=2,
        )
    return None


def content_key(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@contextmanager
def lock(path, waiting):
    """Keep other processes out of a folder; calls `waiting` if one is in it."""
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path / "lock", flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _require_private(path):
    """Raise unless nobody but the user and root may write to a path."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        problem = "is a link, which is not followed"
    elif status.st_uid not in (os.geteuid(), _ROOT):
        problem = f"belongs to another user (number {status.st_uid})"
    elif status.st_mode & _OTHERS_MAY_WRITE:
        mode = stat.filemode(status.st_mode)
        problem = f"can be written by other users ({mode})"
    else:
        return
    raise BuildError(
        f"compiled kernels are not loaded from {path}, because it {problem}: "
        f"remove it, or set the environment variable {VARIABLE} to a folder "
        "that only you can write to"
    )
