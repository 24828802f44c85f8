"""The recipes of the papers' tables take a step on tiny made data."""

import io
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from PIL import Image
from recipes import cifar
from recipes import data
from recipes import networks
from recipes import reviews
from recipes.table import RECIPES
from recipes.tasks import PaddedTask

# Six minutes on two busy cores.
pytestmark = pytest.mark.weekly

SMALL_LISTS = {
    "train_size": 6,
    "test_size": 4,
    "min_length": 5,
    "max_length": 30,
    "max_depth": 3,
}
# What makes the data of a recipe small.
SMALLER = {
    "addition": {"steps": 10},
    "copy_memory": {"delay": 5},
    "list_operations": SMALL_LISTS,
    "film_reviews": {"length": 40},
}
STEPPED = [
    *("pixels-lssl-fixed", "permuted-lssl-fixed"),
    *("cifar-lssl", "image-rotrnn", "image-s5", "image-lssl"),
    *("padded-lipschitz", "reviews-rotrnn", "lists-lru"),
    *("addition-lstm-400", "addition-rnn-400", "addition-orthogonal-400-64"),
    "copying-orthogonal-leaky-100",
    "copying-orthogonal-oplu-100",
    *(n for n in RECIPES if n.startswith(("parts-lssl-", "characters-"))),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A file for each task that reads one."""
    folder = tmp_path_factory.mktemp("made")
    generator = np.random.default_rng(0)
    labels = np.arange(20) % 4
    grey = generator.integers(0, 256, (20, 4, 4), "uint8")
    colours = generator.integers(0, 256, (20, 8, 8, 3), "uint8")
    for name, images, answers in (
        ("pixels", grey, labels),
        # Keras has labels of CIFAR-10 in a column.
        ("pictures", colours, labels[:, None]),
    ):
        np.savez(
            folder / name,
            x_train=images,
            y_train=answers,
            x_test=images,
            y_test=answers,
        )
    np.savez(
        folder / "speech",
        samples=generator.integers(-99, 99, 40 * 60).astype("int16"),
        lengths=np.full(40, 60),
        labels=np.arange(40) % 10,
        speakers=np.arange(40) % 2,
        takes=np.arange(40) // 4,
        rate=np.array(100),
    )
    (folder / "text.npz").write_bytes(b"To be, or not to be. " * 200)
    write_reviews(folder / "film_reviews")
    return folder


def write_reviews(folder):
    for part in reviews.PARTS:
        for kind in ("neg", "pos"):
            (folder / part / kind).mkdir(parents=True)
            for number in range(10):
                text = f"{kind} review {number} " * (number + 1)
                (folder / part / kind / f"{number}.txt").write_text(text)


def task_of(name, folder):
    recipe = RECIPES[name]
    path = folder / recipe.task
    options = SimpleNamespace(
        data=path if path.is_dir() else path.with_suffix(".npz")
    )
    arguments = {**recipe.task_arguments, **SMALLER.get(recipe.task, {})}
    return data.TASKS[recipe.task](options, 0, **arguments)


@pytest.mark.parametrize("name", STEPPED)
def test_a_recipe_takes_a_step(name, folder):
    if RECIPES[name].task == "list_operations":
        pytest.importorskip("keras_nlp")
    task = task_of(name, folder)
    task.hold_out()
    layers = [
        # The outputs behind a shorter delay.
        (kind, {"cropping": (15, 0)} if kind == "Cropping1D" else arguments)
        for kind, arguments in RECIPES[name].layers
    ]
    model = networks.build(task, layers)
    model.compile("sgd", task.loss)
    before = [np.array(w) for w in model.get_weights()]
    loss = model.train_on_batch(*task.batch(0, 0, 2))
    assert np.isfinite(loss)
    changed = zip(before, model.get_weights())
    assert any((one != other).any() for one, other in changed)
    inputs, targets = next(iter(task.validations()))
    assert np.isfinite(model.test_on_batch(inputs, targets))


# Data.


def as_jpeg(pictures, path, labels):
    files = []
    for picture in pictures:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=100)
        files.append(np.frombuffer(file.getvalue(), "uint8"))
    ends = np.cumsum([len(file) for file in files])
    np.savez(path, bytes=np.concatenate(files), ends=ends, labels=labels)


def test_pictures_are_read_as_jpeg_files_end_to_end(tmp_path):
    ramp = np.arange(8, dtype="uint8") * 30
    picture = np.stack([np.tile(ramp, (8, 1))] * 3, axis=-1)
    pictures = np.stack([picture, picture[:, ::-1]])
    for part in ("train", "test"):
        as_jpeg(pictures, tmp_path / f"cifar10_{part}_jpeg", np.array([3, 5]))
    (read, labels), _ = cifar.read(tmp_path)
    assert labels.tolist() == [3, 5]
    # JPEG is lossy.
    assert np.abs(read.astype(int) - pictures).max() < 9


def test_pictures_become_pixels_or_rows():
    pictures = np.zeros((1, 2, 2, 3), "uint8")
    pictures[0, 0, 1] = 255, 0, 51
    colour = cifar.as_sequences(pictures, "colour")
    np.testing.assert_allclose(colour[0, 1], [1, 0, 0.2])
    grey = cifar.as_sequences(pictures, "grey")
    np.testing.assert_allclose(grey[0, :, 0], [0, 0.3218, 0, 0], atol=1e-6)
    rows = cifar.as_sequences(pictures, "rows")
    np.testing.assert_allclose(rows[0, 0], [0, 1, 0, 0, 0, 0.2])


def test_noise_behind_pictures_is_the_same_in_every_test_and_no_other():
    part = np.ones((6, 3, 2), "float32"), np.arange(6) % 2
    one, other = (PaddedTask(part, part, 9) for _ in range(2))
    for get in (
        lambda task: task.batch(0, 1, 2)[0]["sequences"],
        lambda task: next(iter(task.tests()))[0]["sequences"],
    ):
        np.testing.assert_array_equal(get(one), get(other))
        assert (get(one)[:, :3] == 1).all()
        assert np.unique(get(one)[:, 3:]).size == get(one)[:, 3:].size
    noise = [one.batch(0, number, 2)[0]["sequences"] for number in (0, 1)]
    assert (noise[0][:, 3:] != noise[1][:, 3:]).all()


def test_reviews_are_read_from_a_folder_and_from_a_file(tmp_path):
    write_reviews(tmp_path / "aclImdb")
    (texts, labels), _ = reviews.read(tmp_path / "aclImdb", 20)
    assert labels.tolist() == [0] * 10 + [1] * 10
    assert bytes(texts[0].tolist()) == b"neg review 0 "
    assert max(map(len, texts)) == 20
    both = {}
    for part in reviews.PARTS:
        both[f"{part}_bytes"] = np.frombuffer(b"goodbad", "uint8")
        both[f"{part}_ends"] = np.array([4, 7])
        both[f"{part}_labels"] = np.array([1, 0], "uint8")
    np.savez(tmp_path / "reviews.npz", **both)
    (texts, labels), _ = reviews.read(tmp_path / "reviews.npz", 3)
    assert [bytes(t.tolist()) for t in texts] == [b"goo", b"bad"]


@pytest.mark.parametrize("read", [cifar.read, lambda p: reviews.read(p, 9)])
def test_other_files_are_refused(read, tmp_path):
    with pytest.raises(SystemExit, match="Received: no file"):
        read(None)
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(SystemExit, match="without"):
        read(tmp_path / "other.npz")


def test_text_is_predicted_some_steps_ahead():
    task = data.TextTask(np.arange(2000), 10, ahead=5)
    inputs, targets = task.batch(0, 0, 4)
    np.testing.assert_array_equal(inputs["sequences"] + 5, targets)
    last = list(task.tests())[-1][1]
    assert last.max() <= 1999


def test_a_random_transition_lets_no_state_grow():
    start = networks.RandomTransition(3).structured(24)
    assert start.b.shape == (24,)
    layer = keras.layers.deserialize(
        {
            "class_name": "keras_linrec>LSSL",
            "config": {
                "state_size": 24,
                "measure": RECIPES["parts-lssl-random"].layers[0][1][
                    "unit_arguments"
                ]["measure"],
            },
        }
    )
    layer.build((None, None, 1))
    # LagT's real parts are all -1/2.
    assert layer.spectrum().continuous.real.max() < -0.49
    again = type(layer).from_config(layer.get_config())
    assert again.measure.seed == 0
