"""Saving that an interruption cannot damage, and loading with clear errors.

The files are Keras' own: `keras.saving` reads them, and the functions here read
what Keras wrote.
"""

import errno
import os
import re
import warnings
from contextlib import contextmanager
from contextlib import suppress
from pathlib import Path
from typing import Any
from typing import Literal

import keras

from keras_linrec import settings
from keras_linrec.files import naming
from keras_linrec.files import replacing
from keras_linrec.files import require_model_path
from keras_linrec.files import require_weights_path
from keras_linrec.validation import is_finite
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_bools
from keras_linrec.validation import require_count

__all__ = [
    "BackupAndRestore",
    "load_model",
    "load_weights",
    "save_model",
    "save_weights",
]


def save_model(
    model: Any, filepath: str | os.PathLike[str], overwrite: bool = True
) -> None:
    """Save a model as a `.keras` file that is replaced whole or not at all.

    `keras.saving.save_model` empties the old file before it writes the new
    one: a process that is killed in between, or a disk that is full, leaves
    neither. Here the file is written in a temporary folder beside the old one,
    flushed to the disk, and moved. Permissions and symbolic links are kept.

    The models of `keras_linrec.models` and `keras_linrec.nlp` do the same in
    their methods `save` and `save_weights`, and therefore with
    `keras.callbacks.ModelCheckpoint`.

    A layer of this package whose weights are not finite warns, and names them.

    Args:
        model: a Keras model, of this package or not.
        filepath: string or path that ends in `.keras`. Remote paths, such as
            `gs://bucket/model.keras`, are written by Keras in place.
        overwrite: whether an existing file is replaced. Defaults to `True`.

    Raises:
        ValueError: if `filepath` has another ending.
        FileExistsError: if there is a file and `overwrite` is false.
        OSError: if the file cannot be written; an old file is unchanged.

    Example:

    >>> import pathlib, tempfile
    >>> import keras
    >>> from keras_linrec import saving
    >>> from keras_linrec.layers import RotRNN
    >>> model = keras.Sequential([keras.Input((None, 3)), RotRNN(4)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "model.keras"
    ...     saving.save_model(model, path)
    ...     loaded = saving.load_model(path)
    >>> loaded.layers[0].units
    4
    """
    require_bool("overwrite", overwrite)
    require_model_path(filepath)
    with replacing(filepath, overwrite) as path:
        keras.saving.save_model(model, path)


def save_weights(
    model: Any, filepath: str | os.PathLike[str], overwrite: bool = True
) -> None:
    """Save a model's weights in a file that is replaced whole or not at all.

    As `save_model`, for a path that ends in `.weights.h5`.

    Args:
        model: a Keras model that is built.
        filepath: string or path that ends in `.weights.h5`.
        overwrite: whether an existing file is replaced. Defaults to `True`.

    Raises:
        ValueError: if `filepath` has another ending.
        FileExistsError: if there is a file and `overwrite` is false.
        OSError: if the file cannot be written; an old file is unchanged.

    Example:

    >>> import pathlib, tempfile
    >>> import keras
    >>> from keras_linrec import saving
    >>> from keras_linrec.layers import RotRNN
    >>> model = keras.Sequential([keras.Input((None, 3)), RotRNN(4)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "model.weights.h5"
    ...     saving.save_weights(model, path)
    ...     saving.load_weights(model, path)
    """
    require_bool("overwrite", overwrite)
    require_weights_path(filepath)
    with replacing(filepath, overwrite) as path:
        keras.saving.save_weights(model, path)


def load_model(
    filepath: str | os.PathLike[str],
    custom_objects: Any = None,
    compile: bool = True,
    safe_mode: bool = True,
    require_finite: bool = True,
) -> Any:
    """Load a model, as `keras.saving.load_model`; every error names the file.

    Args:
        filepath: string or path.
        custom_objects: dictionary of names and classes, as in Keras. Defaults
            to `None`.
        compile: whether to compile the model if it was. Defaults to `True`.
        safe_mode: whether code in the file is refused. Defaults to `True`.
        require_finite: whether weights of this package's layers that are not
            finite are refused. `False` loads the model of a run that has
            diverged, to look at it. Defaults to `True`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be loaded, for whatever reason. The
            error that says so is its `__cause__`.

    Example: see `save_model`.
    """
    require_bools(
        compile=compile, safe_mode=safe_mode, require_finite=require_finite
    )
    with _loading(filepath, require_finite):
        return keras.saving.load_model(
            filepath, custom_objects, compile, safe_mode
        )


def load_weights(
    model: Any,
    filepath: str | os.PathLike[str],
    skip_mismatch: bool = False,
    require_finite: bool = True,
) -> None:
    """Load weights, as `model.load_weights`; every error names the file.

    Args:
        model: a Keras model that is built.
        filepath: string or path.
        skip_mismatch: whether layers that do not fit are left as they are,
            with a warning. Defaults to `False`.
        require_finite: as in `load_model`. Defaults to `True`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be loaded, for whatever reason. Weights
            of some layers may have been loaded by then.

    Example: see `save_weights`.
    """
    require_bools(skip_mismatch=skip_mismatch, require_finite=require_finite)
    with _loading(filepath, require_finite):
        keras.saving.load_weights(model, filepath, skip_mismatch)


@contextmanager
def _loading(filepath, require_finite):
    is_local = "://" not in str(filepath)
    if is_local and not os.path.exists(filepath):
        raise FileNotFoundError(
            errno.ENOENT, os.strerror(errno.ENOENT), str(filepath)
        )
    with naming(filepath), settings.loading(require_finite):
        yield


class BackupAndRestore(keras.callbacks.Callback):
    """A callback that resumes an interrupted training from its last backup.

    It stands in for `keras.callbacks.BackupAndRestore`, which keeps the
    weights and the epoch in two files and writes each in place: a process that
    is killed meanwhile may leave files that stop every restart, or the epoch
    without its weights. Here a backup is one file that is replaced whole, and
    that has the epoch in its name.

    A backup holds the weights, the optimizer's state and the number of
    completed epochs. Without these, as in a new folder, training starts from
    the beginning. If weights are not finite, because training has diverged,
    the last backup stays, with a warning.

    Args:
        backup_dir: string or path, a folder of this training alone.
        save_freq: `"epoch"`, or the number of batches after which to save.
            Training resumes at the start of the epoch in any case, with the
            weights of the last backup. Defaults to `"epoch"`.
        delete_checkpoint: whether the backup is removed at the end of the
            training. Defaults to `True`.

    Raises:
        ValueError: if `save_freq` is neither, or, in `fit`, if the model is
            not built, or the backup is not this model's.

    Example:

    >>> import tempfile
    >>> import keras
    >>> import numpy as np
    >>> from keras_linrec.layers import RotRNN
    >>> from keras_linrec.saving import BackupAndRestore
    >>> model = keras.Sequential([keras.Input((None, 3)), RotRNN(4)])
    >>> model.compile("adam", "mse")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     history = model.fit(
    ...         np.zeros((2, 5, 3)),
    ...         np.zeros((2, 5, 4)),
    ...         epochs=2,
    ...         callbacks=[BackupAndRestore(folder)],
    ...         verbose=0,
    ...     )
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: int | Literal["epoch"] = "epoch",
        delete_checkpoint: bool = True,
    ):
        super().__init__()
        if not (isinstance(save_freq, str) and save_freq == "epoch"):
            require_count("save_freq", save_freq)
        require_bool("delete_checkpoint", delete_checkpoint)
        if not isinstance(backup_dir, (str, os.PathLike)):
            raise ValueError(
                "`backup_dir` should be a string or a path. "
                f"Received: backup_dir={backup_dir}"
            )
        self.backup_dir = Path(backup_dir)
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint
        self._epoch = 0
        # Batches since the last backup, and of this epoch.
        self._since, self._seen = 0, 0

    def on_train_begin(self, logs=None):
        if not self.model.built:
            raise ValueError(
                "A model should be built before `fit` with a "
                "`BackupAndRestore`: call it on a batch, or give it an input "
                f"shape. Received: the model '{self.model.name}', not built"
            )
        backups = self._backups()
        if not backups:
            return
        self._epoch = max(backups)
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        load_weights(self.model, backups[self._epoch])
        # As Keras' own callback does; there is no public way.
        self.model._initial_epoch = self._epoch

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._seen = epoch, 0
        # Keras has read it. Another `fit` starts where it is told to, also if
        # this one does not end.
        self.model._initial_epoch = None

    def on_train_batch_end(self, batch, logs=None):
        # Several more at once, with `steps_per_execution`.
        self._since += batch + 1 - self._seen
        self._seen = batch + 1
        if self.save_freq != "epoch" and self._since >= self.save_freq:
            self._since = 0
            self._save()

    def on_epoch_end(self, epoch, logs=None):
        self._epoch = epoch + 1
        if self.save_freq == "epoch":
            self._save()

    def on_train_end(self, logs=None):
        # Also if there was no epoch left.
        self.model._initial_epoch = None
        if not self.delete_checkpoint:
            return
        self._remove(self._backups())
        with suppress(OSError):  # if the folder holds anything else
            self.backup_dir.rmdir()

    def _backups(self):
        """The backups' paths by the number of completed epochs."""
        found = {}
        for path in self.backup_dir.glob("epoch-*.weights.h5"):
            number = re.fullmatch(r"epoch-(\d+)\.weights\.h5", path.name)
            if number:
                found[int(number[1])] = path
        return found

    def _save(self):
        model = self.model
        diverged = [w.path for w in model.weights if not is_finite(w)]
        if diverged:
            warnings.warn(
                "No backup is made, and the last one is kept, because weights "
                f"are not finite: {', '.join(diverged)}",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        self.backup_dir.mkdir(parents=True, exist_ok=True)
        earlier = self._backups()
        earlier.pop(self._epoch, None)
        name = f"epoch-{self._epoch}.weights.h5"
        save_weights(model, self.backup_dir / name)
        self._remove(earlier)

    def _remove(self, backups):
        # The oldest first, so that the last backup is the last to go.
        for epoch in sorted(backups):
            backups[epoch].unlink(missing_ok=True)
