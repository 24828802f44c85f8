"""What the models of the recipes learn, are built of and measured for."""

import wave
from itertools import permutations
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import reproduce
import robustness
import torch
from recipes import data
from recipes import measurements
from recipes import networks
from recipes import record
from recipes import recordings
from recipes import training
from recipes.group_words import multiplication_table
from recipes.sounds import interpolated
from recipes.sounds import oversampled
from recipes.sounds import varied
from recipes.table import RECIPES
from recipes.tasks import FixedTask
from recipes.tasks import IrregularTask
from recipes.tasks import TextTask
from recipes.vowels import read
from recipes.vowels import with_gaps

from keras_linrec import layers
from keras_linrec import saving

pytestmark = pytest.mark.rest


def lengths_task(count=30):
    """Sequences of various lengths that hold their own number."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(5, 60, count)
    sequences = [
        np.full((n, 1), i, "float32") for i, n in enumerate(lengths, 1)
    ]
    labels = np.arange(count) % 3
    return FixedTask((sequences, labels), (sequences, labels), multiple=20)


def test_an_epoch_has_every_example_once_and_the_next_another_order():
    task = lengths_task()
    epochs = [
        [task.batch(seed, 6 * epoch + step, 5)[0] for step in range(6)]
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    orders = []
    for batches in epochs:
        numbers = [b["sequences"][:, 0, 0] for b in batches]
        orders.append(np.concatenate(numbers).tolist())
        assert sorted(orders[-1]) == list(range(1, 31))
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_a_batch_follows_from_the_seed_and_its_number():
    first, second = lengths_task(), lengths_task()
    second.batch(0, 3, 5)
    for number in (9, 2):
        (one, labels), (other, others) = (
            task.batch(7, number, 5) for task in (first, second)
        )
        np.testing.assert_array_equal(one["sequences"], other["sequences"])
        np.testing.assert_array_equal(labels, others)


def test_padding_is_masked_and_the_first_two_batches_differ_in_width():
    task = lengths_task()
    for seed in range(5):
        batches = [task.batch(seed, step, 5)[0] for step in range(6)]
        widths = [b["mask"].shape[1] for b in batches]
        assert widths[0] != widths[1]
        for batch in batches:
            steps = batch["sequences"][..., 0]
            assert steps.shape[1] % 20 == 0
            assert ((steps > 0) == batch["mask"]).all()


def test_the_test_has_every_example_once():
    task = lengths_task(230)
    numbers = [batch["sequences"][:, 0, 0] for batch, _ in task.tests()]
    assert len(numbers) == 3
    assert sorted(np.concatenate(numbers)) == list(range(1, 231))


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("addition", {"steps": 9}),
        ("copy_memory", {"delay": 4}),
        ("distant_pulses", {"steps": 60, "distance": 30}),
    ],
)
def test_drawn_sequences_follow_from_the_seed_and_their_number(name, arguments):
    task = data.TASKS[name](None, 0, **arguments)

    def drawn(seed, number):
        return task.batch(seed, number, 3)[0]["sequences"]

    np.testing.assert_array_equal(drawn(1, 2), drawn(1, 2))
    for other in (drawn(1, 3), drawn(2, 2)):
        assert (other != drawn(1, 2)).any()
    tests = [batch["sequences"] for batch, _ in task.tests()]
    assert sum(map(len, tests)) == task.test_size
    assert (tests[0] != tests[1]).any()
    assert tests[0].shape[1:] == task.inputs["sequences"]


@pytest.fixture
def speech(tmp_path):
    """A file of two digits by two speakers in ten takes, as tones."""
    generator = np.random.default_rng(0)
    labels, speakers, takes = (
        grid.ravel().astype("uint8")
        for grid in np.meshgrid(range(2), range(2), range(10), indexing="ij")
    )
    lengths = generator.integers(900, 2100, len(labels)).astype("int32")
    tones = [
        np.sin((0.3 + label) * np.arange(length) + generator.uniform(0, 6))
        for label, length in zip(labels, lengths)
    ]
    path = tmp_path / "digits.npz"
    np.savez(
        path,
        samples=(3e4 * np.concatenate(tones)).astype("int16"),
        lengths=lengths,
        labels=labels,
        speakers=speakers,
        takes=takes,
        rate=np.int32(8000),
    )
    return path


def speech_options(path):
    return reproduce.parse(["speech-lssl", "--data", str(path)])


def test_words_of_a_group_ask_for_the_product_up_to_each_letter():
    task = data.TASKS["group_words"](None, 0, degree=3, steps=7)
    inputs, products = task.batch(1, 2, 5)
    assert inputs["sequences"].dtype == products.dtype == "int32"
    elements = np.array(list(permutations(range(3))))
    for letters, expected in zip(inputs["sequences"], products):
        objects = np.arange(3)
        for letter, product in zip(letters, expected):
            objects = elements[letter][objects]
            assert (objects == elements[product]).all()
    longer, _ = next(task.of_length(9).tests())
    assert longer["sequences"].shape == (100, 9)


def test_batches_of_words_have_as_many_letters_at_every_length():
    task = data.TASKS["group_words"](None, 0, degree=3, steps=64)
    shapes = {
        task.batch(0, number, 2)[0]["sequences"].shape for number in range(40)
    }
    assert shapes == {(32, 4), (16, 8), (8, 16), (4, 32), (2, 64)}


def test_letters_of_a_group_do_not_commute():
    table = multiplication_table(3)
    assert (table != table.T).any()
    # Every product can be undone.
    assert all(sorted(row) == list(range(6)) for row in table)
    assert (table[0] == np.arange(6)).all()


def test_only_both_pulses_together_tell_the_classes_apart():
    noise = data.PULSE_NOISE
    sequences, labels = data.pulses(400, 100, 60, np.random.default_rng(0))
    sums = np.stack(
        [
            np.convolve(row[:, 0], np.ones(data.PULSE_STEPS), "valid")
            for row in sequences
        ]
    )
    # The two windows that hold whole pulses, in each row.
    first = np.argmax(np.abs(sums[:, :21]) + np.abs(sums[:, 60:]), axis=1)
    rows = np.arange(len(sums))
    one, other = sums[rows, first], sums[rows, first + 60]
    assert np.abs(np.abs(np.stack([one, other])) - data.PULSE_STEPS).max() < (
        5 * noise * data.PULSE_STEPS**0.5
    )
    assert np.array_equal(one * other > 0, labels == 1)
    for signs in (one > 0, other > 0):
        assert abs(labels[signs].mean() - 0.5) < 0.1


def test_recordings_are_split_by_takes_or_by_the_speaker(speech):
    options = speech_options(speech)
    by_takes = data.speech(options, seed=0)
    assert len(by_takes.train[1]) == len(by_takes.test[1]) == 20
    assert by_takes.num_classes == 2
    for seed in range(2):
        unheard = data.speech(options, seed, unheard=True)
        assert len(unheard.train[1]) == len(unheard.test[1]) == 20
    # Neither test has a recording that was trained on.
    for task in (by_takes, unheard):
        trained = {recording.tobytes() for recording in task.train[0]}
        assert not trained & {recording.tobytes() for recording in task.test[0]}


def test_recordings_are_equally_loud_and_not_too_long(speech, monkeypatch):
    monkeypatch.setattr(data, "MAX_SECONDS", 1 / 8)
    task = data.speech(speech_options(speech), 0)
    assert max(map(len, task.train[0])) == 1000
    for recording in task.train[0]:
        assert recording.mean() == pytest.approx(0, abs=1e-5)
        assert recording.std() == pytest.approx(1, abs=1e-5)


def test_recordings_vary_in_training_alone_and_by_seed_and_step(speech):
    plain, varied = (
        data.speech(speech_options(speech), 0, vary=vary)
        for vary in (False, True)
    )
    for (before, _), (after, _) in zip(plain.tests(), varied.tests()):
        np.testing.assert_array_equal(before["sequences"], after["sequences"])
    before, labels = plain.batch(0, 3, 4)
    after, same_labels = varied.batch(0, 3, 4)
    np.testing.assert_array_equal(labels, same_labels)
    np.testing.assert_array_equal(before["mask"], after["mask"])
    assert (before["sequences"] != after["sequences"]).any()
    again, _ = varied.batch(0, 3, 4)
    np.testing.assert_array_equal(after["sequences"], again["sequences"])
    other, _ = varied.batch(1, 3, 4)
    assert other["sequences"].std() != after["sequences"].std()


def test_a_varied_sound_may_lack_high_tones():
    times = np.arange(4000)[:, None]
    high = np.sin(2.5 * times).astype("float32")
    generator = np.random.default_rng(0)
    sounds = [varied(high, generator) for _ in range(40)]
    assert 10 < sum((sound == high).all() for sound in sounds) < 30
    quiet = [sound[100:-100].std() < 0.05 for sound in sounds]
    assert 8 < sum(quiet) < 30


def test_an_interpolated_sound_has_the_means_of_neighbours_between_them():
    sound = np.array([[1.0], [3.0], [2.0]], "float32")
    np.testing.assert_allclose(
        interpolated(sound, 2)[:, 0], [1, 2, 3, 2.5, 2, 2], atol=1e-6
    )


def test_an_oversampled_sound_has_the_same_frequencies(speech):
    times = np.arange(4000)[:, None]
    sound, finer = (
        np.sin(1.3 * t).astype("float32") for t in (times, times[::1] / 3)
    )
    between = oversampled(sound, 3)[100:-100]
    assert len(between) == 3 * 4000 - 200
    np.testing.assert_allclose(between[:3000], finer[100:3100], atol=0.01)
    assert oversampled(sound, 1) is sound
    plain, doubled = (
        data.speech(speech_options(speech), 0, vary=True, oversampling=factor)
        for factor in (1, 2)
    )
    batches = [task.batch(0, 3, 4)[0] for task in (plain, doubled)]
    few, many = (batch["mask"].sum(axis=1) for batch in batches)
    np.testing.assert_array_equal(many, 2 * few)
    few, many = (batch["sequences"] for batch in batches)
    assert many.shape[1] == 2 * few.shape[1]
    # But for the ends, where sounds begin and end abruptly.
    apart = np.abs(many[:, 200:1600:2] - few[:, 100:800])
    assert apart.max() < 0.1


@pytest.fixture
def folder(speech, tmp_path):
    """A folder with the recordings of the file."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    arrays = recordings.read(speech)
    sounds = np.split(arrays["samples"], np.cumsum(arrays["lengths"])[:-1])
    places = zip(arrays["labels"], arrays["speakers"], arrays["takes"])
    for sound, (digit, speaker, take) in zip(sounds, places):
        path = folder / f"{digit}_{'ab'[speaker]}_{take}.wav"
        write_recording(path, sound)
    return folder


def write_recording(path, sound, rate=8000, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(sound.astype("<i2").tobytes())


def test_a_folder_of_recordings_has_what_the_file_has(speech, folder):
    of_file, of_folder = recordings.read(speech), recordings.read(folder)
    assert of_file.keys() == of_folder.keys()
    for name, values in of_file.items():
        np.testing.assert_array_equal(of_folder[name], values, name)


def test_a_folder_that_does_not_fit_is_refused(folder, tmp_path):
    sound = np.arange(10)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match=r"TAKE\.wav\. Received: a folder w"):
        recordings.read(tmp_path / "empty")
    for given, arguments, message in (
        (sound, {"rate": 9000}, r"one rate\. Received: \[8000, 9000\] Hz"),
        (sound, {"channels": 2}, r"16 bits\. Received: 2 channels, 16 bits"),
        (sound[:0], {}, "Received: 1 channels, 16 bits, 0 samples"),
    ):
        write_recording(folder / "0_a_11.wav", given, **arguments)
        with pytest.raises(SystemExit, match=message):
            recordings.read(folder)
    (folder / "0_a_11.wav").write_bytes(b"none")
    with pytest.raises(SystemExit, match="0_a_11.wav: expected a recording"):
        recordings.read(folder)
    (folder / "0_a_11.wav").rename(folder / "zero_a_11.wav")
    with pytest.raises(SystemExit, match="Received: zero_a_11.wav"):
        recordings.read(folder)


def test_speakers_may_have_two_names(folder):
    write_recording(folder / "0_a_b_3.wav", np.arange(10))
    assert recordings.read(folder)["speakers"].max() == 2


def test_recordings_need_a_part_to_train_on_and_one_to_test(folder):
    for path in folder.glob("*_[5-9].wav"):
        path.unlink()
    with pytest.raises(SystemExit, match="Received: 0 for training, 20 for"):
        data.speech(speech_options(folder), 0)
    # A label of the test alone.
    write_recording(folder / "0_a_5.wav", np.arange(10))
    with pytest.raises(SystemExit, match="10 of them with labels of their own"):
        data.speech(speech_options(folder), 0)


def test_a_second_is_as_long_at_every_rate(folder):
    for path in folder.glob("*.wav"):
        sound, _ = recordings.read_recording(path)
        write_recording(path, sound, rate=1000)
    task = data.speech(speech_options(folder), 0)
    assert max(map(len, task.train[0])) == 1000


def test_a_file_that_does_not_fit_is_refused(speech, tmp_path):
    with np.load(speech) as file:
        arrays = dict(file)
    path = tmp_path / "other.npz"
    np.savez(path, **{**arrays, "lengths": arrays["lengths"] + 1})
    with pytest.raises(SystemExit, match="that sum to"):
        data.speech(speech_options(path), 0)
    del arrays["takes"]
    np.savez(path, **arrays)
    with pytest.raises(SystemExit, match="a file without takes"):
        data.speech(speech_options(path), 0)
    for task in (data.speech, lambda *given: data.pixels(*given, "pixels")):
        with pytest.raises(SystemExit, match="Received: no file"):
            task(reproduce.parse(["speech-lssl"]), 0)


def test_gaps_take_away_values_and_steps_and_say_so():
    sequence = np.arange(1.0, 241.0).reshape(20, 12)
    whole = with_gaps(sequence, 0.0, 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(whole[:, :12], sequence)
    assert (whole[:, 12:] == 1).all()
    holes = with_gaps(sequence, 0.5, 0.5, np.random.default_rng(0))
    values, present, deltas = holes[:, :12], holes[:, 12:24], holes[:, 24]
    assert 0 < len(holes) < 20 and 0 < present.sum() < present.size
    # Each step lasts since the one before it: their sums are their places.
    places = np.cumsum(deltas).astype(int) - 1
    expected = np.where(present, sequence[places], 0)
    np.testing.assert_array_equal(values, expected)
    assert len(with_gaps(sequence, 0.0, 1.0, np.random.default_rng(0))) == 1


def test_sensors_are_read_step_by_step(tmp_path):
    lines = ["# words", "@data", "1,2,3:4,5,6:2", "7,8:9,10:1"]
    (tmp_path / "JapaneseVowels_TRAIN.ts").write_text("\n".join(lines))
    (first, second), labels = read(tmp_path, "TRAIN")
    np.testing.assert_array_equal(first, [[1, 4], [2, 5], [3, 6]])
    np.testing.assert_array_equal(second, [[7, 9], [8, 10]])
    assert labels.tolist() == [1, 0]
    with pytest.raises(SystemExit, match="no such file"):
        read(tmp_path, "TEST")


def test_the_lengths_of_steps_are_an_input_where_asked_for():
    examples = ([np.ones((3, 2)), np.full((5, 2), 4.0)], np.arange(2))
    for asked in (False, True):
        task = IrregularTask(examples, examples, asked)
        inputs, _ = next(task.tests())
        assert inputs.keys() == task.inputs.keys()
        assert ("time_deltas" in inputs) == asked
    short, long = inputs["time_deltas"]
    assert (short == 1).all()
    # Padding lasts a step.
    assert long.tolist() == 5 * [4] + 5 * [1]


def test_a_text_that_is_not_there_or_too_short_is_refused(tmp_path):
    for path, message in (
        (tmp_path / "none.txt", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(SystemExit, match=message):
            data.text(SimpleNamespace(data=path), 0, 7)
    short = tmp_path / "short.txt"
    short.write_text("x" * 140)
    with pytest.raises(SystemExit, match="more than 140 bytes. Received: 140"):
        data.text(SimpleNamespace(data=short), 0, 7)


def test_the_targets_of_a_text_are_its_next_bytes():
    task = TextTask(np.arange(200), length=7)
    batches = [task.batch(0, number, 5) for number in range(2)]
    tests = list(task.tests())
    for inputs, targets in [*batches, *tests]:
        np.testing.assert_array_equal(targets, inputs["sequences"] + 1)
    assert (batches[0][1] != batches[1][1]).any()
    # The last tenth is the test, and no training row reaches it.
    assert min(targets.min() for _, targets in tests) > 180
    many, _ = task.batch(0, 5, 1000)
    assert many["sequences"].max() == 178


@pytest.mark.parametrize("whole", [True, False])
def test_the_lstm_of_torch_is_that_of_torch_from_a_file_too(tmp_path, whole):
    layer = networks.TorchLSTM(5, return_sequences=whole)
    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, layer(inputs))
    sequences = torch.randn(2, 7, 3)
    lstm = torch.nn.LSTM(3, 5, batch_first=True)
    lstm.load_state_dict(layer.module.module.state_dict())
    with torch.no_grad():
        expected = lstm(sequences)[0].numpy()
    expected = expected if whole else expected[:, -1]
    forget = lstm.bias_ih_l0[5:10] + lstm.bias_hh_l0[5:10]
    assert (forget == 1.0).all()
    saving.save_model(model, tmp_path / "lstm.keras")
    loaded = saving.load_model(tmp_path / "lstm.keras")
    for one in (model, loaded):
        given = one.predict(sequences.numpy(), verbose=0)
        np.testing.assert_allclose(given, expected, atol=1e-6)
    assert model.output_shape == ((None, None, 5) if whole else (None, 5))


def test_the_transformer_reads_no_later_token():
    layer = networks.Transformer(5, units=8, num_layers=2, num_heads=2)
    tokens = np.array([[0, 1, 2, 3, 4, 0]])
    changed = np.array([[0, 1, 2, 4, 4, 1]])
    one, other = (
        keras.ops.convert_to_numpy(layer(t)) for t in (tokens, changed)
    )
    np.testing.assert_allclose(one[:, :3], other[:, :3], atol=1e-6)
    assert np.abs(one[:, 3] - other[:, 3]).max() > 1e-3


def test_thinned_sounds_keep_low_tones_and_lose_high_ones():
    times = np.arange(4000)[:, None]
    low, high = (np.sin(w * times).astype("float32") for w in (0.2, 2.5))
    task = FixedTask(([low], np.array([0])), ([low, high], np.array([0, 1])))
    (slow_low, slow_high), _ = measurements.slower(task, 2).test
    middle = slice(100, -100)
    np.testing.assert_allclose(slow_low[middle], low[::2][middle], atol=0.01)
    assert np.abs(slow_high[middle]).max() < 0.01
    task = with_oversampling(task, 2)
    (slow_low, slow_high), _ = measurements.slower(task, 2).test
    # The samples at half the rate, and one step between two of them.
    middle = slice(200, -200)
    np.testing.assert_allclose(slow_low[middle], low[middle], atol=0.02)
    assert np.abs(slow_high[middle]).max() < 0.02


def with_oversampling(task, factor):
    parts = (
        ([oversampled(sound, factor) for sound in sounds], labels)
        for sounds, labels in (task.train, task.test)
    )
    return FixedTask(*parts, oversampling=factor)


def small_classifier(unit, task):
    listed = {"num_layers": 2, "units": 4, "unit": unit}
    listed["unit_arguments"] = {"state_size": 4}
    return networks.build(task, [("SequenceClassifier", listed)])


def test_sampling_rates_are_measured_with_and_without_the_timescale(
    monkeypatch,
):
    task = lengths_task(6)
    model = small_classifier("lssl", task)
    kind, scores = type(model.layers[-1]), keras.ops.ones((6, 3)) / 3
    seen = []

    def classify(classifier, sequences, mask):
        seen.append((mask.sum(), classifier.step_rescale))
        return scores

    monkeypatch.setattr(kind, "__call__", classify)
    figures = measurements.sampling_rates(model, task)
    assert list(figures) == [
        "half rate",
        "half rate, unscaled",
        "half rate, resampled",
        "quarter rate",
        "quarter rate, unscaled",
        "quarter rate, resampled",
    ]
    assert [rescale for _, rescale in seen] == [2.0, 1.0, 1.0, 4.0, 1.0, 1.0]
    half, quarter = (
        [-(-len(s) // factor) for s in task.test[0]] for factor in (2, 4)
    )
    steps = [half, half, [2 * n for n in half]]
    steps += [quarter, quarter, [4 * n for n in quarter]]
    assert [count for count, _ in seen] == list(map(sum, steps))
    # Always the first class, a third of the test.
    assert list(figures.values()) == pytest.approx([1 / 3] * 6)


def test_norms_are_measured_for_each_layer():
    sequences = np.random.default_rng(0).normal(size=(4, 16, 1))
    examples = (sequences.astype("float32"), np.arange(4))
    task = FixedTask(examples, examples)
    found = measurements.norms(small_classifier("rotrnn", task), task)
    assert list(found) == ["layer 1", "layer 2"]
    assert all(norm > 0 for norm in found.values())


def test_norms_of_tokens_are_those_of_their_features_without_padding():
    rows = [np.arange(1, 6, dtype="int32"), np.arange(1, 9, dtype="int32")]
    task = FixedTask((rows, np.arange(2)), (rows, np.arange(2)))
    classifier = {"num_layers": 1, "units": 4, "unit": "rotrnn"}
    model = networks.build(
        task,
        (
            ("Embedding", {"input_dim": 9, "output_dim": 3}),
            ("SequenceClassifier", classifier),
        ),
    )
    found = measurements.norms(model, task)
    (inputs, _) = next(iter(task.tests()))
    inputs["sequences"][~inputs["mask"]] = 7
    task.tests = lambda: [(inputs, None)]
    assert measurements.norms(model, task) == pytest.approx(found)
    assert found["layer 1"] > 0


def small_task(recipe):
    """A task with the inputs of a recipe's and hardly any data."""
    given, labels = recipe.task_arguments, np.arange(10)
    drawn = "addition", "copy_memory", "distant_pulses", "group_words"
    if recipe.task in drawn:
        return data.TASKS[recipe.task](None, 0, **given)
    if recipe.task == "text":
        return TextTask(np.arange(4000) % 256, given["length"])
    if recipe.task == "pixels":
        shape = (98, 8) if given["order"] == "eight-pixels" else (784, 1)
        examples = (np.zeros((10, *shape), "float32"), labels)
        return FixedTask(examples, examples)
    shape = {"speech": (9, 1), "vowels": (9, 25), "list_operations": (9,)}
    dtype = "int32" if recipe.task == "list_operations" else "float32"
    examples = (list(np.zeros((10, *shape[recipe.task]), dtype)), labels)
    if recipe.task == "vowels":
        durations = given.get("time_deltas", False)
        return IrregularTask(examples, examples, durations)
    return FixedTask(examples, examples)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds(name):
    recipe = RECIPES[name]
    model = networks.build(small_task(recipe), recipe.layers)
    optimizer = training.make_optimizer(recipe, recipe.steps or 100)
    optimizer.build(model.trainable_variables)
    # A .keras file of this many float32 weights.
    assert 4 * model.count_params() < record.LARGEST_MODEL


def test_attacks_are_measured_of_a_model_that_is_not_compiled():
    generator = np.random.default_rng(0)
    sequences = generator.standard_normal((8, 4, 2)).astype("float32")
    examples = sequences, np.arange(8) % 2
    task = SimpleNamespace(
        train=examples,
        test=examples,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=("accuracy",),
    )
    model = keras.Sequential(
        [keras.Input((4, 2)), layers.LipschitzRNN(3), keras.layers.Dense(2)]
    )
    found = measurements.under_attack(model, task)
    assert list(found) == list(robustness.COLUMNS[1:])
    assert np.isfinite(list(found.values())).all()
