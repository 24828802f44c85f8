"""Models whose files are replaced whole or not at all."""

from keras_linrec.files import replacing
from keras_linrec.files import require_model_path
from keras_linrec.files import require_weights_path


class SavedWhole:
    """A mixin for models; see `keras_linrec.saving.save_model`."""

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        """Save the model, as `keras.Model.save` does.

        A file is replaced whole or not at all; see
        `keras_linrec.saving.save_model`. `zipped=False` writes a folder, in
        place.

        Args:
            filepath: string or path that ends in `.keras`.
            overwrite: whether an existing file is replaced. Defaults to
                `True`.
            zipped: as in Keras. Defaults to `None`.
            **kwargs: as in Keras.

        Raises:
            ValueError: if `filepath` has another ending, `.h5` for one: Keras
                would write the file, and could not load it.
            FileExistsError: if there is a file and `overwrite` is false, where
                Keras would ask.
            OSError: if the file cannot be written; an old file is unchanged.
        """
        if zipped is False:
            super().save(filepath, overwrite, zipped, **kwargs)
            return
        require_model_path(filepath)
        with replacing(filepath, overwrite) as path:
            super().save(path, True, zipped, **kwargs)

    def save_weights(self, filepath, overwrite=True, max_shard_size=None):
        """Save the weights, as `keras.Model.save_weights` does.

        A file is replaced whole or not at all; see
        `keras_linrec.saving.save_weights`. Shards are written in place.

        Args:
            filepath: string or path that ends in `.weights.h5`, or in
                `.weights.json` if there is a `max_shard_size`.
            overwrite: whether an existing file is replaced. Defaults to
                `True`.
            max_shard_size: as in Keras. Defaults to `None`: one file.

        Raises:
            ValueError: if `filepath` has another ending.
            FileExistsError: if there is a file and `overwrite` is false, where
                Keras would ask.
            OSError: if the file cannot be written; an old file is unchanged.
        """
        is_sharded = max_shard_size is not None
        require_weights_path(filepath, is_sharded)
        if is_sharded:
            super().save_weights(filepath, overwrite, max_shard_size)
            return
        with replacing(filepath, overwrite) as path:
            super().save_weights(path)
