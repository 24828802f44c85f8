"""Files of earlier versions, damaged files and malicious ones."""

import base64
import inspect
import io
import json
import marshal
import zipfile

import h5py
import keras
import numpy as np
import pytest
from support import TESTS
from support.units import array

import keras_linrec
from keras_linrec.layers import LSSL
from keras_linrec.layers import LDStack
from keras_linrec.layers import LipschitzRNN
from keras_linrec.layers import RotRNN
from keras_linrec.models import ResidualBlock
from keras_linrec.models import SequenceClassifier

FIXTURES = TESTS / "fixtures"
VERSIONS = sorted(path.parent for path in FIXTURES.glob("*/model.keras"))


def test_this_version_has_files_of_its_own():
    folders = [folder.name for folder in VERSIONS]
    assert keras_linrec.__version__ in folders, (
        "Run `python tests/fixtures/make.py`: later versions must read the "
        "files of this one."
    )


def test_the_files_of_this_version_hold_every_public_layer():
    file = FIXTURES / keras_linrec.__version__ / "model.keras"
    config = zipfile.ZipFile(file).read("config.json").decode()
    for name, value in vars(keras_linrec.layers).items():
        if inspect.isclass(value):
            assert f'"keras_linrec>{name}"' in config


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_files_of_every_version_load(folder):
    expected = np.load(folder / "expected.npz")
    model = keras.models.load_model(folder / "model.keras")
    got = model.predict(expected["inputs"], verbose=0)
    assert np.abs(got - expected["outputs"]).max() < 1e-5
    # The weights alone, into a model whose weights were zeroed.
    for weight in model.weights:
        weight.assign(array(weight) * 0)
    model.load_weights(folder / "model.weights.h5")
    got = model.predict(expected["inputs"], verbose=0)
    assert np.abs(got - expected["outputs"]).max() < 1e-5


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small model's file, as bytes."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((None, 3)),
            RotRNN(4, state_size=4, num_heads=2, name="rotrnn"),
            LipschitzRNN(2, name="lipschitz"),
        ]
    )
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    return path.read_bytes()


def altered(saved, path, weights=None, config=None):
    """A copy of a file with changed weights or a changed configuration."""
    source = zipfile.ZipFile(io.BytesIO(saved))
    parts = {name: source.read(name) for name in source.namelist()}
    if weights is not None:
        file = io.BytesIO(parts["model.weights.h5"])
        with h5py.File(file, "r+") as groups:
            weights(groups["layers"])
        parts["model.weights.h5"] = file.getvalue()
    if config is not None:
        changed = json.loads(parts["config.json"])
        config({c["config"]["name"]: c for c in changed["config"]["layers"]})
        parts["config.json"] = json.dumps(changed).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def replaced(name, value):
    """A function that replaces a weight of the RotRNN, or removes it."""

    def change(layers):
        (group,) = (g["vars"] for g in layers.values() if name in g["vars"])
        del group[name]
        if value is not None:
            group[name] = value

    return change


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file_does_not_load(saved, share, tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(saved[: int(share * len(saved))])
    with pytest.raises(ValueError, match="an accessible `.keras` zip file"):
        keras.models.load_model(path)


def test_truncated_weights_do_not_load(saved, tmp_path):
    model = keras.models.load_model(altered(saved, tmp_path / "model.keras"))
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(OSError, match="truncated"):
        model.load_weights(path)


def test_a_weight_of_another_shape_is_named(saved, tmp_path):
    wrong = replaced("theta", np.zeros((2, 7), "float32"))
    path = altered(saved, tmp_path / "model.keras", wrong)
    with pytest.raises(ValueError, match=r"theta.*\(2, 1\).*\(2, 7\)"):
        keras.models.load_model(path)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_named(saved, number, tmp_path):
    wrong = replaced("gamma_log", np.array([0.0, number], "float32"))
    path = altered(saved, tmp_path / "model.keras", wrong)
    with pytest.raises(
        ValueError, match="gamma_log' of layer 'rotrnn'.*not finite"
    ):
        keras.models.load_model(path)


def test_a_weight_within_blocks_that_does_not_fit_is_named(tmp_path):
    """Keras comes to a block by two paths, the second time with nothing."""
    model = SequenceClassifier(2, 1, 4, unit="rotrnn")
    model(np.zeros((1, 5, 3), "float32"))
    weight = model.blocks[0].unit.gamma_log
    value = array(weight)
    weight.assign(np.full_like(value, np.nan))
    path = tmp_path / "model.keras"
    with pytest.warns(RuntimeWarning, match="gamma_log"):
        model.save(path)
    with pytest.raises(ValueError, match="gamma_log' .*not finite"):
        keras.models.load_model(path)
    # A file that fits is loaded all the same.
    weight.assign(value)
    model.save(path)
    model.load_weights(path)


def test_a_missing_weight_is_named(saved, tmp_path):
    path = altered(saved, tmp_path / "model.keras", replaced("theta", None))
    with pytest.raises(ValueError, match="'rotrnn' has the weights .*theta"):
        keras.models.load_model(path)


def test_nothing_is_loaded_of_a_layer_that_does_not_fit(saved, tmp_path):
    model = keras.models.load_model(altered(saved, tmp_path / "model.keras"))
    before = model.layers[0].get_weights()
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    model.layers[0].set_weights([value + 1 for value in before])
    with h5py.File(path, "r+") as groups:
        replaced("output_kernel", np.full((4, 4), np.nan))(groups["layers"])
    with pytest.raises(ValueError, match="not finite"):
        model.load_weights(path)
    for got, value in zip(model.layers[0].get_weights(), before):
        assert np.allclose(got, value + 1)


SIZES = [
    ("rotrnn", "units", 10**12),
    ("rotrnn", "state_size", 10**12),
    ("rotrnn", "state_size", 2 * 10**6),
    ("lipschitz", "units", 10**12),
    ("lipschitz", "units", 10**6),
    ("rotrnn", "units", -1),
    ("rotrnn", "units", "many"),
    ("rotrnn", "num_heads", 1.5),
]


@pytest.mark.parametrize(("layer", "name", "size"), SIZES)
def test_an_absurd_size_is_refused(saved, layer, name, size, tmp_path):
    def change(layers):
        layers[layer]["config"][name] = size

    path = altered(saved, tmp_path / "model.keras", config=change)
    # Nothing is allocated first: these sizes would take terabytes. Keras turns
    # errors in constructors into TypeErrors that quote them.
    with pytest.raises((TypeError, ValueError)) as caught:
        keras.models.load_model(path)
    words = str(caught.value).splitlines()[-1]
    assert "Received: " in words and f"{size}"[-6:] in words


def touch(*_, **__):
    """What code in a file would do."""
    __import__("pathlib").Path("run").touch()


# Whatever is run makes the file "run".
CODE = {
    "a_lambda": {
        "class_name": "__lambda__",
        "config": {
            "value": base64.b64encode(marshal.dumps(touch.__code__)).decode(),
            "defaults": None,
            "closure": None,
        },
    },
    "a_function_of_python": {
        "module": __name__,
        "class_name": "function",
        "config": "touch",
        "registered_name": "touch",
    },
    "a_class_of_python": {
        "module": "subprocess",
        "class_name": "Popen",
        "config": {"args": ["touch", "run"]},
        "registered_name": None,
    },
}


@pytest.mark.parametrize("code", CODE.values(), ids=CODE)
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("lipschitz", "activation"),
        ("lipschitz", "kernel_initializer"),
        ("rotrnn", "rotation_initializer"),
        ("rotrnn", "kernel_regularizer"),
        ("rotrnn", "kernel_constraint"),
    ],
)
def test_no_code_in_a_file_is_run(
    saved, layer, name, code, tmp_path, monkeypatch
):
    def change(layers):
        layers[layer]["config"][name] = code

    monkeypatch.chdir(tmp_path)
    path = altered(saved, tmp_path / "model.keras", config=change)
    refused = (
        "arbitrary code|Could not interpret|should be the name"
        # Of Keras 3.16.
        "|Could not locate (class|function)"
    )
    with pytest.raises((TypeError, ValueError), match=refused):
        keras.models.load_model(path)
    assert not (tmp_path / "run").exists()


def test_no_code_in_a_block_is_run(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((None, 3)),
            ResidualBlock(RotRNN(state_size=4, num_heads=2)),
        ]
    )
    model.save(tmp_path / "model.keras")

    def change(layers):
        (block,) = [c for c in layers.values() if "unit" in c["config"]]
        block["config"]["unit"] = {
            "module": "keras.layers",
            "class_name": "Lambda",
            "config": {"function": CODE["a_lambda"]},
            "registered_name": None,
        }

    saved = (tmp_path / "model.keras").read_bytes()
    path = altered(saved, tmp_path / "altered.keras", config=change)
    with pytest.raises(ValueError, match="arbitrary code"):
        keras.models.load_model(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda function: LSSL(activation=function),
        lambda function: LDStack(activation=function),
        lambda function: LipschitzRNN(2, activation=function),
        lambda function: SequenceClassifier(2, activation=function),
    ],
)
def test_a_lambda_is_not_saved(make):
    with pytest.raises(ValueError, match="A lambda cannot be saved"):
        make(lambda x: x).get_config()
