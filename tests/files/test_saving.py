"""Saving whole files, looking at diverged models, and resuming training."""

import errno
import os
import stat
from functools import partial

import keras
import numpy as np
import pytest
from support.units import array

from keras_linrec import saving
from keras_linrec.export import export_step
from keras_linrec.files import replacing
from keras_linrec.layers import RotRNN
from keras_linrec.models import SequenceClassifier


def sequential():
    return keras.Sequential(
        [
            keras.Input((None, 3)),
            RotRNN(4, state_size=4, num_heads=2, name="rotrnn"),
        ]
    )


def classifier():
    model = SequenceClassifier(2, 1, 4, unit="rotrnn")
    model(np.zeros((1, 5, 3), "float32"))
    return model


def values(model):
    return [array(weight) for weight in model.weights]


def assert_same(one, other):
    for got, expected in zip(values(one), values(other), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.fixture(scope="module")
def model():
    return sequential()


class Interrupted(Exception):
    pass


def interrupt(path):
    """Break off half-way through writing."""
    with replacing(path) as made:
        made.write_bytes(b"half")
        raise Interrupted


def test_what_is_saved_loads(model, tmp_path):
    saving.save_model(model, tmp_path / "model.keras")
    assert_same(saving.load_model(tmp_path / "model.keras"), model)
    path = str(tmp_path / "model.weights.h5")
    saving.save_weights(model, path)
    other = sequential()
    saving.load_weights(other, path)
    assert_same(other, model)


def test_an_interrupted_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(b"old")
    with pytest.raises(Interrupted):
        interrupt(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.keras"]


def test_what_a_killed_process_left_is_removed_by_the_next_save(tmp_path):
    left = tmp_path / ".model.keras.saving-abc"
    left.mkdir()
    (left / "model.keras").write_bytes(b"half")
    kept = tmp_path / ".other.keras.saving-abc"
    kept.mkdir()
    with replacing(tmp_path / "model.keras") as made:
        # Another process that saves now is not disturbed by a third.
        with replacing(tmp_path / "model.keras") as other:
            other.write_bytes(b"first")
        made.write_bytes(b"second")
    assert sorted(os.listdir(tmp_path)) == [kept.name, "model.keras"]
    assert (tmp_path / "model.keras").read_bytes() == b"second"


def test_permissions_and_links_are_kept(tmp_path):
    path, link = tmp_path / "real" / "model.keras", tmp_path / "link.keras"
    path.parent.mkdir()
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    with replacing(link) as made:
        made.write_bytes(b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_permissions(tmp_path):
    with replacing(tmp_path / "new") as made:
        made.write_bytes(b"")
    (tmp_path / "usual").write_bytes(b"")
    new, usual = ((tmp_path / n).stat().st_mode for n in ("new", "usual"))
    assert new == usual


def test_a_file_is_not_replaced_unasked(model, tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError, match="overwrite=False"):
        saving.save_model(model, path, overwrite=False)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("path", ["gs://bucket/model.keras", "/dev/null"])
def test_what_cannot_be_moved_is_written_in_place(path):
    with replacing(path) as made:
        assert made == path


def test_an_error_of_the_disk_names_the_file(tmp_path):
    path = tmp_path / "model.keras"
    with pytest.raises(OSError) as caught, replacing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        interrupt(tmp_path / "nowhere" / "model.keras")


def test_a_name_may_be_as_long_as_the_system_takes(model, tmp_path):
    path = tmp_path / ("\u6a21" * 79 + ".keras")
    saving.save_model(model, path)
    assert os.listdir(tmp_path) == [path.name]


def test_an_error_names_the_path_that_was_given(tmp_path):
    for save, name in (
        (saving.save_model, "model"),
        (saving.save_weights, "weights.h5"),
    ):
        with pytest.raises(ValueError) as raised:
            save(sequential(), tmp_path / name)
        assert f"filepath={tmp_path / name}" in str(raised.value)


def test_models_of_this_package_save_whole_files(monkeypatch, tmp_path):
    model = classifier()
    paths = [tmp_path / "model.keras", tmp_path / "model.weights.h5"]
    model.save(paths[0])
    model.save_weights(paths[1])
    before = [path.read_bytes() for path in paths]

    def save_own_variables(store):
        raise Interrupted

    monkeypatch.setattr(
        model.blocks[0].unit, "save_own_variables", save_own_variables
    )
    for save, path in zip((model.save, model.save_weights), paths):
        with pytest.raises(Interrupted):
            save(path)
    assert [path.read_bytes() for path in paths] == before
    assert_same(keras.models.load_model(paths[0]), model)


MODEL_PATHS = ["c.h5", "c.hdf5", "c.KERAS", "c", "gs://bucket/c.h5"]
WEIGHTS_PATHS = ["c.h5", "weights.h5", "c.weights.json", "c.keras", "c"]


def test_nothing_is_written_that_could_not_be_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = classifier()
    wrong = [
        *((model.save, path) for path in MODEL_PATHS),
        *((export_step(model).save, path) for path in MODEL_PATHS),
        *((partial(saving.save_model, model), path) for path in MODEL_PATHS),
        *((model.save_weights, path) for path in WEIGHTS_PATHS),
        *((partial(saving.save_weights, model), p) for p in WEIGHTS_PATHS),
        (partial(model.save_weights, max_shard_size=1), "xweights.json"),
    ]
    for save, path in wrong:
        with pytest.raises(ValueError, match="`filepath` should be .* ends in"):
            save(path)
    assert not os.listdir()


def test_what_keras_loads_back_is_saved(model, tmp_path):
    # Keras finds layers of this package in its own old files.
    model.save(tmp_path / "old.h5")
    assert_same(keras.models.load_model(tmp_path / "old.h5"), model)
    ours = classifier()
    ours.save(tmp_path / "folder.h5", zipped=False)
    assert_same(keras.models.load_model(tmp_path / "folder.h5"), ours)
    ours.save_weights(tmp_path / "shards.weights.json", max_shard_size=1)
    ours.load_weights(tmp_path / "shards.weights.json")


def test_a_model_of_this_package_can_be_saved_as_a_folder(tmp_path):
    model = classifier()
    model.save(tmp_path / "folder", zipped=False)
    assert_same(saving.load_model(tmp_path / "folder"), model)


# Weights that are not finite.


def diverged():
    model = sequential()
    layer = model.layers[0]
    layer.gamma_log.assign([0.0, np.nan])
    return model


def test_saving_a_diverged_model_names_its_weights(tmp_path):
    with pytest.warns(RuntimeWarning, match="'rotrnn' .* in 'gamma_log'"):
        diverged().save(tmp_path / "model.keras")


def test_a_diverged_model_can_be_looked_at(tmp_path):
    model, path = diverged(), tmp_path / "model.keras"
    weights = tmp_path / "model.weights.h5"
    with pytest.warns(RuntimeWarning, match="not finite"):
        saving.save_model(model, path)
        saving.save_weights(model, weights)
    with pytest.raises(ValueError, match="require_finite=False"):
        saving.load_model(path)
    with pytest.raises(ValueError, match="require_finite=False"):
        saving.load_weights(sequential(), weights)
    assert_same(saving.load_model(path, require_finite=False), model)
    other = sequential()
    saving.load_weights(other, weights, require_finite=False)
    assert_same(other, model)


# Errors that name the file.


def test_every_error_in_a_file_names_it(model, tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(b"PK")
    with pytest.raises(ValueError, match=f"'{path}' could not be loaded"):
        saving.load_model(path)
    path = tmp_path / "model.weights.h5"
    path.write_bytes(b"HDF")
    with pytest.raises(ValueError, match="could not be loaded. OSError: "):
        saving.load_weights(model, path)


def test_a_file_that_is_not_there_is_named(model, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing.keras"):
        saving.load_model(tmp_path / "nothing.keras")
    with pytest.raises(FileNotFoundError, match="nothing.weights.h5"):
        saving.load_weights(model, tmp_path / "nothing.weights.h5")


# Resuming a training.


def fit(model, folder, epochs, *callbacks, **arguments):
    generator = np.random.default_rng(0)
    return model.fit(
        generator.standard_normal((4, 5, 3)).astype("float32"),
        generator.standard_normal((4, 5, 4)).astype("float32"),
        batch_size=1,
        epochs=epochs,
        callbacks=[
            saving.BackupAndRestore(folder, **arguments),
            *callbacks,
        ],
        shuffle=False,
        verbose=0,
    )


def compiled():
    model = sequential()
    model.compile("adam", "mse", jit_compile=False)
    return model


class Interruption(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Interrupted


def test_a_resumed_training_ends_as_one_that_was_not_interrupted(tmp_path):
    start = sequential().get_weights()
    models = [compiled() for _ in range(3)]
    for model in models:
        model.set_weights(start)
    fit(models[0], tmp_path / "whole", 4)
    with pytest.raises(Interrupted):
        fit(models[1], tmp_path / "parts", 4, Interruption(3))
    assert os.listdir(tmp_path / "parts") == ["epoch-3.weights.h5"]
    history = fit(models[2], tmp_path / "parts", 4)
    assert history.epoch == [3]
    assert_same(models[2], models[0])
    assert os.listdir(tmp_path) == []


def test_a_backup_of_batches_resumes_its_epoch(tmp_path):
    model = compiled()
    with pytest.raises(Interrupted):
        fit(model, tmp_path, 4, Interruption(2), save_freq=3)
    assert os.listdir(tmp_path) == ["epoch-1.weights.h5"]
    resumed = compiled()
    history = fit(resumed, tmp_path, 3, delete_checkpoint=False)
    assert history.epoch == [1, 2]
    assert os.listdir(tmp_path) == ["epoch-3.weights.h5"]
    # A second `fit` is not held to where the first began.
    assert fit(resumed, tmp_path / "other", 2).epoch == [0, 1]


def test_an_interrupted_resumption_holds_no_other_fit(tmp_path):
    model = compiled()
    for epoch in (2, 3):
        with pytest.raises(Interrupted):
            fit(model, tmp_path, 4, Interruption(epoch))
    assert fit(model, tmp_path / "other", 2).epoch == [0, 1]


def test_a_diverged_training_keeps_its_last_backup(tmp_path):
    class Divergence(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                self.model.layers[0].gamma_log.assign([0.0, np.inf])

    model = compiled()
    with pytest.warns(RuntimeWarning, match="rotrnn/gamma_log"):
        fit(model, tmp_path, 4, Divergence(), delete_checkpoint=False)
    assert os.listdir(tmp_path) == ["epoch-2.weights.h5"]


def test_a_backup_of_another_model_is_named(tmp_path):
    with pytest.raises(Interrupted):
        fit(compiled(), tmp_path, 2, Interruption(1))
    other = keras.Sequential([keras.Input((None, 3)), RotRNN(4, state_size=8)])
    other.compile("adam", "mse", jit_compile=False)
    with pytest.raises(ValueError, match=r"epoch-1.weights.h5' could not"):
        fit(other, tmp_path, 2)


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`save_freq` should be"):
        saving.BackupAndRestore(tmp_path, save_freq=0)
    backup = saving.BackupAndRestore(tmp_path)
    backup.set_model(keras.Sequential([RotRNN(4)]))
    with pytest.raises(ValueError, match="built before `fit`"):
        backup.on_train_begin()
