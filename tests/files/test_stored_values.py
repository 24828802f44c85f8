"""Files whose numbers do not fit are refused before they are read."""

import zlib

import h5py
import keras
import numpy as np
import pytest
from support.units import array

from keras_linrec import saving
from keras_linrec.layers import OrthogonalRNNCell
from keras_linrec.layers import RotRNN
from keras_linrec.optimizers import ParameterGroups


@pytest.fixture(scope="module")
def model():
    """A layer with named weights and a cell with numbered ones."""
    model = keras.Sequential(
        [
            keras.Input((None, 3)),
            RotRNN(4, state_size=4, num_heads=2, return_sequences=True),
            keras.layers.RNN(OrthogonalRNNCell(4)),
        ]
    )
    model.compile(ParameterGroups(keras.optimizers.SGD(0.1), {"theta": 0.5}))
    model.optimizer.build(model.trainable_variables)
    return model


NAMED, NUMBERED, OF_OPTIMIZER = PLACES = (
    "layers/rot_rnn/vars/theta",
    "layers/rnn/cell/vars/0",
    "optimizer/vars/0",
)


def bomb(file, name, shape):
    size = (16384,) * max(len(shape), 1)
    file.create_dataset(name, size, "f", chunks=True, compression="gzip")


def large_chunk(file, name, shape):
    ends, chunk = (None,) * len(shape), (8192,) * len(shape)
    file.create_dataset(
        name, shape, "f", maxshape=ends, chunks=chunk, compression="gzip"
    )


def inflated(file, name, shape):
    """A chunk of the right size, whose content is 16 MB."""
    made = file.create_dataset(name, shape, "f", chunks=shape, compression=9)
    made.id.write_direct_chunk((0,) * len(shape), zlib.compress(bytes(2**24)))


def external(file, name, shape):
    file.create_dataset(name, shape, "f", external="/dev/zero")


def virtual(file, name, shape):
    layout = h5py.VirtualLayout(shape, "f")
    file.create_virtual_dataset(name, layout)


def link(file, name, shape):
    file["elsewhere"] = np.zeros(shape, "f")
    file[name] = h5py.SoftLink("/elsewhere")


def of(dtype, number):
    def put(file, name, shape):
        file[name] = np.full(shape, number, dtype)

    return put


HOSTILE = {
    "shape": bomb,
    "chunk": large_chunk,
    "inflated": inflated,
    "external": external,
    "virtual": virtual,
    "link": link,
    "overflow": of("float64", 1e300),
    "complex": of("complex64", 1 + 5j),
    "integer": of("int64", 2**62),
    "boolean": of("bool", True),
    "text": of("S2", "1"),
}


def changed(model, path, place, put):
    """Save the weights, with one of them changed."""
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        shape = file[place].shape
        del file[place]
        put(file, place, shape)


@pytest.fixture
def reads(monkeypatch):
    """The names of the arrays that are read."""
    names, read = [], h5py.Dataset.__array__

    def reading(dataset, *args, **kwargs):
        names.append(dataset.name.strip("/"))
        return read(dataset, *args, **kwargs)

    monkeypatch.setattr(h5py.Dataset, "__array__", reading)
    return names


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_does_not_fit_is_not_read(model, kind, reads, tmp_path):
    path = tmp_path / "model.weights.h5"
    before = [array(weight) for weight in model.layers[0].weights]
    changed(model, path, NAMED, HOSTILE[kind])
    with pytest.raises(ValueError, match="theta"):
        saving.load_weights(model, path)
    # Only the numbers themselves show that they overflow.
    assert (NAMED in reads) == (kind == "overflow")
    for weight, value in zip(model.layers[0].weights, before):
        np.testing.assert_array_equal(array(weight), value)


@pytest.mark.parametrize("place", PLACES[1:])
def test_nor_are_numbered_weights_and_those_of_an_optimizer(
    model, place, reads, tmp_path
):
    path = tmp_path / "model.weights.h5"
    changed(model, path, place, bomb)
    with pytest.raises(ValueError, match=r"has the shape .*\(16384"):
        saving.load_weights(model, path)
    assert place not in reads


def test_nor_are_weights_in_several_files(model, reads, tmp_path):
    path = tmp_path / "model.weights.json"
    model.save_weights(path, max_shard_size=1e-7)
    shards = sorted(tmp_path.glob("*.h5"))
    assert len(shards) > 2
    for shard in shards:
        with h5py.File(shard, "r+") as file:
            if NAMED in file:
                del file[NAMED]
                bomb(file, NAMED, (2, 1))
    with pytest.raises(ValueError, match=r"theta.*shape .*\(16384"):
        saving.load_weights(model, path)
    assert NAMED not in reads


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", ">f8", "<f4"])
def test_real_numbers_of_any_dtype_are_loaded(model, dtype, tmp_path):
    path = tmp_path / "model.weights.h5"

    def put(file, name, shape):
        made = file.create_dataset(name, data=np.full(shape, 0.5, dtype))
        # As Keras writes it.
        if dtype == "bfloat16":
            made.attrs["dtype"] = dtype

    for place in PLACES[:2]:
        changed(model, path, place, put)
        saving.load_weights(model, path)
    assert (array(model.layers[0].theta) == 0.5).all()
    assert (array(model.layers[1].cell.weights[0]) == 0.5).all()


def test_a_count_of_updates_that_overflows_is_refused(model, tmp_path):
    path = tmp_path / "model.weights.h5"
    for number in (2.0, 2**70):
        put = of(
            "float64" if number == 2.0 else "uint64", min(number, 2**64 - 1)
        )
        changed(model, path, OF_OPTIMIZER, put)
        with pytest.raises(ValueError, match="variable 'iteration'"):
            saving.load_weights(model, path)
