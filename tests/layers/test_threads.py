"""One layer, called from several threads at once."""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import keras
import pytest
from support.conformance_cases import assert_close
from support.conformance_cases import built
from support.language_models import PROMPTS
from support.language_models import make_model
from support.language_models import some_inputs
from support.threads import THREADS
from support.threads import in_threads
from support.units import UNITS
from support.units import array
from support.units import sequences

from keras_linrec import kernels
from keras_linrec import models

ROUNDS = 12
EVERY_PATH = pytest.mark.parametrize(
    "name", ["linear_dynamical_system", "lipschitz_rnn", "lssl", "rotrnn"]
)


@pytest.fixture(autouse=True)
def threads_that_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def ways_to_call(layer):
    """One thread's calls: whole sequences, parts of them, single steps."""
    inputs = sequences(7)
    states = layer.get_initial_state(2)
    return (
        lambda: layer(inputs),
        lambda: layer.call_with_states(inputs, states),
        lambda: layer.step(inputs[:, 0], states),
    )


@EVERY_PATH
def test_each_thread_gets_the_results_of_a_single_thread(name):
    layer = built(name)
    ways = ways_to_call(layer)
    expected = [keras.tree.map_structure(array, way()) for way in ways]

    def work(index):
        which = [(index + turn) % len(ways) for turn in range(ROUNDS)]
        return [
            (one, keras.tree.map_structure(array, ways[one]())) for one in which
        ]

    for results in in_threads(work):
        for one, got in results:
            keras.tree.assert_same_structure(got, expected[one])
            assert_close(got, expected[one], 1e-6)


@EVERY_PATH
def test_a_call_that_ends_leaves_another_to_be_rematerialized(
    name, monkeypatch
):
    with keras.RematScope(mode="full"):
        layer = UNITS[name]()
    inputs = sequences(7)
    expected = array(layer(inputs))
    rematerialized, remat, call = [], keras.remat, layer.call
    has_begun, other_is_over = Event(), Event()

    def counted(function):
        rematerialized.append(function)
        return remat(function)

    def call_of_one_that_waits(sequences, *args, **kwargs):
        if sequences.shape[0] == 1:
            has_begun.set()
            assert other_is_over.wait(60)
        return call(sequences, *args, **kwargs)

    monkeypatch.setattr(keras, "remat", counted)
    monkeypatch.setattr(layer, "call", call_of_one_that_waits)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(layer, inputs[:1])
        assert has_begun.wait(60)
        assert_close(layer(inputs), expected, 1e-6)
        other_is_over.set()
        assert_close(waiting.result(), expected[:1], 1e-6)
    assert len(rematerialized) == 2


def test_a_model_is_called_beside_its_own_stream():
    model = models.SequenceClassifier(
        3, num_layers=1, units=4, unit="rotrnn", dropout=0.3
    )
    inputs = sequences(7)
    expected = array(model(inputs))
    states = model.get_initial_state(2)
    streamed = array(model.call_with_states(inputs, states)[0])

    def work(index):
        for turn in range(ROUNDS):
            if (index + turn) % 2:
                assert_close(model(inputs), expected, 1e-6)
            else:
                outputs, after = model.call_with_states(inputs, states)
                assert_close(outputs, streamed, 1e-6)
                keras.tree.assert_same_structure(after, states)

    in_threads(work)


# JAX and TensorFlow compile it for a minute.
@pytest.mark.weekly("jax", "tensorflow")
@pytest.mark.rest
def test_texts_are_generated_while_the_model_is_called():
    model = make_model(dropout=0.3)
    inputs = some_inputs()
    expected = array(model(inputs))
    texts = model.generate(PROMPTS[:1], max_length=12)
    for _ in range(3):
        # The first calls of `generate` make the function that the others run.
        model.generate_function = None

        def work(index):
            assert model.generate(PROMPTS[:1], max_length=12) == texts
            assert_close(model(inputs), expected, 1e-6)

        in_threads(work)


@pytest.mark.rest
def test_an_explanation_is_of_its_own_thread_alone():
    names = ("rotrnn", "lipschitz_rnn") * (THREADS // 2)
    layers = [built(name) for name in names]
    alone = [kernels.explain(layer, (2, 7, 3)) for layer in layers]

    def repeatedly(index):
        return [
            kernels.explain(layers[index], (2, 7, 3)) for _ in range(ROUNDS)
        ]

    for explanations, expected in zip(in_threads(repeatedly), alone):
        assert explanations == [expected] * ROUNDS
