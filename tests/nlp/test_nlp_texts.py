"""Texts and tokens, wrong calls, and what is the same under every backend."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata

import keras
import keras_hub
import numpy as np
import pytest
from keras_hub.src.tests import test_case
from support.language_models import JIT
from support.language_models import UNIT_ARGUMENTS
from support.language_models import generated
from support.language_models import make_backbone
from support.language_models import make_model
from support.language_models import make_preprocessor
from support.language_models import some_inputs
from support.units import array
from support.units import close

from keras_linrec import nlp
from keras_linrec.layers import LRU
from keras_linrec.layers import Bidirectional
from keras_linrec.layers import RotRNN
from keras_linrec.models import ResidualBlock

pytestmark = pytest.mark.weekly("jax", "tensorflow")


@pytest.mark.parametrize("unit", UNIT_ARGUMENTS)
def test_a_backbone_comes_back_from_its_config(unit):
    backbone = make_backbone(
        unit,
        unit_arguments={
            **UNIT_ARGUMENTS[unit],
            "seed": 3,
            "dropout": 0.1,
        },
        normalization="layer",
        tie_embeddings=False,
        packed=True,
        name="other",
    )
    config = json.loads(json.dumps(backbone.get_config()))
    other = nlp.LinRecBackbone.from_config(config)
    assert other.get_config() == backbone.get_config()
    shapes = [(weight.path, weight.shape) for weight in backbone.weights]
    assert [(weight.path, weight.shape) for weight in other.weights] == shapes
    assert [block.unit.seed for block in other.unit_blocks] == [3, 4]


def test_presets_bring_everything_back(tmp_path):
    model = make_model(num_layers=1, packed=True)
    folder = str(tmp_path)
    model.save_to_preset(folder)
    # KerasHub finds the class by itself.
    loaded = keras_hub.models.CausalLM.from_preset(folder)
    assert isinstance(loaded, nlp.LinRecCausalLM)
    assert loaded.get_config() == model.get_config()
    tokens = some_inputs()["token_ids"]
    close(loaded.score(tokens), model.score(tokens), 1e-5)

    unpacked = nlp.LinRecBackbone.from_preset(folder, packed=False)
    assert sorted(unpacked.input) == ["padding_mask", "token_ids"]
    close(unpacked.hidden_states(tokens), model.backbone.hidden_states(tokens))
    tokenizer = keras_hub.models.Tokenizer.from_preset(folder)
    assert isinstance(tokenizer, nlp.LinRecByteTokenizer)


def trained_paths(model):
    return {weight.path for weight in model.trainable_weights}


def test_what_is_frozen_in_a_backbone_stays_frozen(tmp_path):
    frozen = make_backbone(num_layers=1, trainable=False)
    model = nlp.LinRecTextClassifier(frozen, num_classes=2)
    assert len(trained_paths(model)) == 2
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    model.save_to_preset(str(tmp_path / "preset"))
    preset = nlp.LinRecTextClassifier.from_preset(str(tmp_path / "preset"))
    before = [array(weight) for weight in loaded.backbone.weights]
    loaded.fit(some_inputs(), np.array([0, 1]), verbose=0)
    for weight, old in zip(loaded.backbone.weights, before):
        np.testing.assert_array_equal(array(weight), old)
    for other in (loaded, preset):
        assert len(other.trainable_weights) == 2
        assert not other.backbone.trainable
    # One part, alone.
    backbone = make_backbone()
    backbone.unit_blocks[0].trainable = False
    config = json.loads(json.dumps(backbone.get_config()))
    other = nlp.LinRecBackbone.from_config(config)
    assert trained_paths(other) == trained_paths(backbone)
    assert len(other.trainable_weights) < len(other.weights)
    other.trainable = False
    other.trainable = True
    assert "frozen" not in other.get_config()


def with_optimizer(kind):
    """A compiled model, and what it is trained on."""
    optimizer = keras.optimizers.SGD(0.25, momentum=0.9)
    backbone = make_backbone(num_layers=1)
    if kind == "model":
        model = nlp.LinRecCausalLM(backbone)
        sampler = keras_hub.samplers.TopPSampler(p=0.7, seed=5)
        model.compile(optimizer, sampler=sampler, jit_compile=False)
        return model, some_inputs()["token_ids"]
    model = nlp.LinRecTextClassifier(backbone, num_classes=2)
    model.compile(optimizer, jit_compile=False)
    return model, np.array([0, 1])


@pytest.mark.parametrize("kind", ["model", "classifier"])
def test_training_goes_on_from_a_file(kind, tmp_path):
    model, labels = with_optimizer(kind)

    def train(model):
        history = model.fit(some_inputs(), labels, epochs=2, verbose=0)
        return history.history["loss"]

    train(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert int(array(loaded.optimizer.iterations)) == 2
    np.testing.assert_allclose(train(loaded), train(model), rtol=1e-4)
    if kind == "model":
        assert loaded.sampler.get_config() == model.sampler.get_config()


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_presets_in_mixed_precision_come_back(dtype, tmp_path):
    folder = str(tmp_path)
    backbone = make_backbone(num_layers=1, dtype=dtype)
    preprocessor = nlp.LinRecTextClassifierPreprocessor(
        nlp.LinRecByteTokenizer()
    )
    model = nlp.LinRecTextClassifier(backbone, 2, preprocessor)
    model.save_to_preset(folder)
    for loaded in (
        nlp.LinRecTextClassifier.from_preset(folder),
        nlp.LinRecCausalLM.from_preset(folder, preprocessor=None),
        nlp.LinRecBackbone.from_preset(folder),
    ):
        assert loaded.dtype_policy.name == dtype
    single = nlp.LinRecBackbone.from_preset(folder, dtype="float32")
    assert single.dtype_policy.name == "float32"


def test_a_preset_keeps_its_head_where_a_new_one_cannot_be_written(
    tmp_path, monkeypatch
):
    model = nlp.LinRecTextClassifier(make_backbone(num_layers=1), 2)
    model.save_to_preset(str(tmp_path))
    content = (tmp_path / "task.weights.h5").read_bytes()

    def full(layer, store):
        raise OSError("No space left on device")

    monkeypatch.setattr(keras.layers.Dense, "save_own_variables", full)
    with pytest.raises(OSError, match="No space left"):
        model.save_task_weights(str(tmp_path / "task.weights.h5"))
    assert (tmp_path / "task.weights.h5").read_bytes() == content


def test_initializers_as_objects_come_back_from_a_config():
    constant = keras.initializers.Constant(0.5)
    arguments = {**UNIT_ARGUMENTS["rotrnn"], "kernel_initializer": constant}
    backbone = make_backbone(unit_arguments=arguments)
    config = json.loads(json.dumps(backbone.get_config()))
    other = nlp.LinRecBackbone.from_config(config)
    kernel = array(other.unit_blocks[1].unit.output_kernel)
    assert (kernel == 0.5).all()


def test_a_backbone_copies_a_layer_that_is_given():
    unit = LRU(state_size=6, name="memory")
    backbone = make_backbone(unit)
    units = [block.unit for block in backbone.unit_blocks]
    assert [type(one) for one in units] == [LRU, LRU]
    assert unit not in units and not unit.built
    config = json.loads(json.dumps(backbone.get_config()))
    other = nlp.LinRecBackbone.from_config(config)
    assert other.get_config() == backbone.get_config()
    for one, weight in zip(other.weights, backbone.weights, strict=True):
        one.assign(array(weight))
    inputs = some_inputs()
    close(other(inputs), backbone(inputs))


def test_padding_does_not_enter_the_statistics_of_a_batch():
    backbone = make_backbone(normalization="batch")
    inputs = some_inputs(time=7)
    inputs["padding_mask"][1, 2:5] = 0
    norms = [
        *(block.norm for block in backbone.unit_blocks),
        *(block.norm for block in backbone.feedforward_blocks),
        backbone.output_norm,
    ]
    backbone(inputs, training=True)
    first = [array(norm.moving_mean).copy() for norm in norms]
    mask = inputs["padding_mask"].astype(bool)
    embedded = array(backbone.token_embedding(inputs["token_ids"]))
    close(first[0], 0.1 * embedded[mask].mean(axis=0), 1e-5)
    # Neither do other tokens there change any of them.
    for norm in norms:
        norm.moving_mean.assign(np.zeros_like(first[0]))
    inputs["token_ids"][~mask] = 7
    backbone(inputs, training=True)
    for norm, expected in zip(norms, first, strict=True):
        close(norm.moving_mean, expected, 1e-5)

    # A stream uses the moving ones.
    tokens = inputs["token_ids"]
    states = backbone.get_initial_state(2)
    outputs, states = backbone.call_with_states(tokens[:, :6], states)
    last, states = backbone.step(tokens[:, 6], states)
    whole = array(backbone.hidden_states(tokens))
    close(outputs, whole[:, :6])
    close(last, whole[:, 6])


def test_layers_start_apart():
    one, other = make_backbone().unit_blocks
    assert (array(one.unit.theta) != array(other.unit.theta)).any()
    feedforward = make_backbone().feedforward_blocks[0].unit
    kernels = feedforward.gate_dense.kernel, feedforward.value_dense.kernel
    assert (array(kernels[0]) != array(kernels[1])).any()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"num_layers": 0}, "Received: num_layers=0"),
        ({"hidden_dim": 2.5}, "Received: hidden_dim=2.5"),
        ({"dropout": 1.0}, "Received: dropout=1.0"),
        ({"normalization": "pre"}, "Received: normalization=pre"),
        ({"unit": "gru"}, "'lssl', 'rotrnn',.*Received: unit=gru"),
        ({"unit_arguments": 3}, "dictionary or None. Received: unit_arg"),
        ({"unit_arguments": {"units": 5}}, "Received: 5 features"),
        ({"unit_arguments": {"return_state": True}}, "return_state=False"),
        ({"unit_arguments": {"heads": 2}}, "heads"),
    ],
)
def test_a_wrong_argument_of_a_backbone_is_refused(arguments, expected):
    defaults = {
        "vocabulary_size": 10,
        "num_layers": 1,
        "hidden_dim": 8,
        "intermediate_dim": 8,
    }
    with pytest.raises(ValueError, match=expected):
        nlp.LinRecBackbone(**{**defaults, **arguments})


# Texts and tokens.


def test_any_text_comes_back_from_its_bytes():
    tokenizer = nlp.LinRecByteTokenizer()
    texts = ["Hallå, wörld", "", "\x00 nul", "日本"]
    assert tokenizer.detokenize(tokenizer(texts)) == texts
    assert tokenizer.vocabulary_size() == 259 == len(tokenizer.get_vocabulary())
    special = [tokenizer.token_to_id(t) for t in ("<start>", "<end>", "<pad>")]
    assert special == [256, 257, 258] == sorted(tokenizer.special_token_ids)
    for id in range(259):
        assert tokenizer.token_to_id(tokenizer.id_to_token(id)) == id
    assert tokenizer.detokenize([72, 195]) == "H\ufffd"
    with pytest.raises(ValueError, match="0 to 258. Received: inputs=.259"):
        tokenizer.detokenize([259])


@pytest.mark.rest
def test_kerashub_finds_the_tokenizer_and_the_preprocessors_in_order():
    case = test_case.TestCase("run_preprocessor_test")
    case.run_preprocessing_layer_test(
        nlp.LinRecByteTokenizer, {}, ["To be", "or not"]
    )
    case.init_kwargs = {
        "tokenizer": nlp.LinRecByteTokenizer(),
        "sequence_length": 6,
    }
    x = {
        "token_ids": [[256, 84, 111, 257, 258, 258]],
        "padding_mask": [[1, 1, 1, 1, 0, 0]],
    }
    case.run_preprocessor_test(
        nlp.LinRecCausalLMPreprocessor,
        case.init_kwargs,
        ["To"],
        (x, [[84, 111, 257, 258, 258, 258]], [[1, 1, 1, 0, 0, 0]]),
    )
    case.run_preprocessor_test(
        nlp.LinRecTextClassifierPreprocessor,
        case.init_kwargs,
        (["To"], [1]),
        (x, [1]),
    )


def test_packed_texts_predict_what_they_predict_apart():
    texts = ["abc", "", "defg", "a text that is longer than a row", "hi"]
    apart, labels, weights = make_preprocessor(10)(texts)
    packed, packed_labels, packed_weights = keras.tree.map_structure(
        array, make_preprocessor(10, packed=True)(texts)
    )
    # Three fill the first row, and the last does not fit behind the fourth.
    assert packed["token_ids"].shape == (3, 10)
    begins = [np.flatnonzero(row).tolist() for row in packed["reset_mask"]]
    assert begins == [[0, 4, 5], [0], [0]]
    assert (packed["padding_mask"] == packed_weights).all()
    assert packed_weights.sum() == array(weights).sum()
    counted = array(weights).astype(bool)
    for got, expected in (
        (packed["token_ids"], apart["token_ids"]),
        (packed_labels, labels),
    ):
        counted_here = packed_weights.astype(bool)
        assert (got[counted_here] == array(expected)[counted]).all()


def test_a_single_text_is_packed_into_a_row_without_a_batch():
    x, labels, _ = make_preprocessor(5, packed=True)("ab")
    assert array(x["token_ids"]).tolist() == [256, 97, 98, 258, 258]
    assert array(labels).tolist() == [97, 98, 257, 258, 258]


def test_packing_within_a_graph_is_refused():
    import tensorflow as tf

    texts = tf.data.Dataset.from_tensor_slices(["a", "b"])
    with pytest.raises(ValueError, match="Received: packed=True"):
        texts.map(make_preprocessor(packed=True))


def test_a_tokenizer_without_its_three_tokens_is_refused():
    tokenizer = keras_hub.tokenizers.ByteTokenizer()
    for preprocessor in (
        nlp.LinRecCausalLMPreprocessor,
        nlp.LinRecTextClassifierPreprocessor,
    ):
        with pytest.raises(ValueError, match="Received: ByteTokenizer without"):
            preprocessor(tokenizer)


def test_a_backbone_with_fewer_tokens_than_the_tokenizer_is_refused():
    backbone = make_backbone(vocabulary_size=256, num_layers=1)
    for task in (
        nlp.LinRecCausalLM,
        lambda *given: nlp.LinRecTextClassifier(given[0], 2, given[1]),
    ):
        with pytest.raises(ValueError, match=r"vocabulary_size\(\)=259"):
            task(backbone, make_preprocessor())


def test_another_tokenizer_of_kerashub_will_do(tmp_path):
    tokenizer = keras_hub.tokenizers.GPT2Tokenizer(
        vocabulary={"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3},
        merges=["a b"],
    )
    model = nlp.LinRecCausalLM(
        make_backbone(vocabulary_size=4, num_layers=1),
        nlp.LinRecCausalLMPreprocessor(tokenizer, sequence_length=8),
    )
    model.compile(sampler="greedy", jit_compile=JIT)
    text = model.generate("abab", max_length=6)
    assert text.startswith("abab") and set(text) <= {"a", "b"}
    model.save_to_preset(str(tmp_path))
    loaded = nlp.LinRecCausalLMPreprocessor.from_preset(str(tmp_path))
    assert array(loaded.tokenizer("abab")).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        (keras_hub.samplers.ContrastiveSampler(), "ContrastiveSampler"),
        (keras_hub.samplers.SpeculativeSampler(), "SpeculativeSampler"),
        (
            keras_hub.samplers.BeamSampler(return_all_beams=True),
            "return_all_beams=True",
        ),
    ],
    ids=["contrastive", "speculative", "all_beams"],
)
def test_a_sampler_that_looks_back_is_refused(sampler, name):
    model = nlp.LinRecCausalLM(make_backbone(num_layers=1), compile=False)
    with pytest.raises(ValueError, match=f"Received: sampler=.*{name}"):
        model.compile(sampler=sampler)
    assert not model.compiled


def test_prompts_that_are_none_are_refused():
    model = nlp.LinRecCausalLM(make_backbone(num_layers=1))
    tokens = np.ones((2, 4), "int32")
    for mask, expected in (
        ([[1, 1, 0, 0], [0, 0, 0, 0]], r"without any in the rows \[1\]"),
        ([[0, 1, 1, 0], [1, 1, 0, 0]], r"holes in the rows \[0\]"),
    ):
        inputs = {"token_ids": tokens, "padding_mask": np.array(mask)}
        with pytest.raises(ValueError, match=expected):
            model.generate(inputs, stop_token_ids=None)


def test_prompts_that_fill_their_rows_come_back():
    model = nlp.LinRecCausalLM(make_backbone(num_layers=1))
    inputs = some_inputs(time=4)
    outputs = model.generate(inputs, stop_token_ids=None)
    assert (array(outputs["token_ids"]) == inputs["token_ids"]).all()


BOTH_WAYS = RotRNN(8, state_size=8, num_heads=2, bidirectional=True)


@pytest.mark.parametrize(
    "unit",
    [
        BOTH_WAYS,
        ResidualBlock(BOTH_WAYS),
        ResidualBlock(ResidualBlock(BOTH_WAYS)),
        ResidualBlock(Bidirectional(LRU(4), merge_mode="concat")),
    ],
    ids=["unit", "block", "blocks", "wrapper"],
)
def test_a_unit_that_does_not_read_forwards_makes_no_language_model(unit):
    backbone = make_backbone(num_layers=1, unit=unit)
    assert not backbone.can_stream
    with pytest.raises(ValueError, match="as the backbone.s `unit`"):
        nlp.LinRecCausalLM(backbone)


def test_what_layers_give_can_be_looked_at_and_changed():
    model = make_model()
    tokens = some_inputs()["token_ids"]
    seen = {}

    def look(outputs, index):
        seen[index] = outputs.shape
        return 0.0 * outputs if index == 1 else outputs

    logits = model.score(tokens, layer_intercept_fn=look)
    assert seen == dict.fromkeys((-1, 0, 1), (2, 6, 8))
    close(logits, np.zeros((2, 6, 259)))
    with pytest.raises(ValueError, match="Received: scoring_mode=best"):
        model.score(tokens, scoring_mode="best")
    with pytest.raises(ValueError, match="target_ids=None"):
        model.score(tokens, scoring_mode="loss")


def test_a_wrong_argument_of_a_classifier_is_refused():
    for arguments, expected in (
        ({"num_classes": 0}, "Received: num_classes=0"),
        ({"pooling": "median"}, "Received: pooling=median"),
        ({"dropout": -1}, "Received: dropout=-1"),
    ):
        with pytest.raises(ValueError, match=expected):
            nlp.LinRecTextClassifier(
                make_backbone(num_layers=1), **{"num_classes": 2, **arguments}
            )
    packed = make_backbone(num_layers=1, packed=True)
    with pytest.raises(ValueError, match="Received: backbone.packed=True"):
        nlp.LinRecTextClassifier(packed, num_classes=2)


class StopsTheFirstRow(keras_hub.samplers.Sampler):
    """Says 7 in the first row and 8 elsewhere, and keeps what is asked next."""

    def __call__(self, next, prompt, cache, index, **_):
        _, _, cache = next(prompt, cache, index)
        tokens = np.full((prompt.shape[0], 1), 8, "int32")
        tokens[0] = 7
        prompt = keras.ops.slice_update(prompt, [0, index], tokens)
        logits, _, cache = next(prompt, cache, index + 1)
        self.probabilities = array(self.compute_probabilities(logits))
        return prompt


def test_what_has_stopped_is_certain_of_it():
    model = make_model(num_layers=1)
    sampler = StopsTheFirstRow()
    model.compile(sampler=sampler, run_eagerly=True)
    inputs = some_inputs(time=8)
    inputs["padding_mask"][:, 4:] = 0
    generated(model, inputs, stop_token_ids=[7, 9])
    # By which a beam keeps its score, and its stop token ends the loop.
    assert sampler.probabilities[0].tolist() == np.eye(259)[7].tolist()
    assert sampler.probabilities[1].max() < 1


# The package without KerasHub.


@pytest.mark.rest
def test_the_core_package_knows_nothing_of_kerashub():
    script = (
        "import sys, keras_linrec\n"
        "assert 'keras_hub' not in sys.modules\n"
        "sys.modules['keras_hub'] = None\n"
        "try:\n"
        "    import keras_linrec.nlp\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "KERAS_BACKEND": keras.backend.backend()},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    requirements = [
        requirement.split(";")[0].strip()
        for requirement in metadata.requires("keras-linrec")
        if re.search("""extra == ["']nlp["']""", requirement)
    ]
    assert len(requirements) == 2
    assert all(name in result.stdout for name in requirements)
