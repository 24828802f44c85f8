"""Language models and classifiers of texts on KerasHub."""

from functools import partial

import keras
import keras_hub
import numpy as np
import pytest
from keras_hub.src.tests import test_case
from support.autodiff import compiled
from support.autodiff import gradient
from support.autodiff import tensors
from support.conformance_cases import float64
from support.language_models import EVERY_UNIT
from support.language_models import JIT
from support.language_models import UNIT_ARGUMENTS
from support.language_models import WARNINGS
from support.language_models import make_backbone
from support.language_models import make_classifier
from support.language_models import make_model
from support.language_models import make_preprocessor
from support.language_models import outputs_of
from support.language_models import some_inputs
from support.units import array
from support.units import close

from keras_linrec import export_step
from keras_linrec import nlp
from keras_linrec.nlp.text_classifier import POOLINGS
from keras_linrec.nlp.text_classifier import TextPooling

pytestmark = [*WARNINGS, pytest.mark.weekly("jax", "tensorflow")]

BOTH = ("rotrnn", True)


# The backbone.


def test_export_step_names_what_runs_a_backbone_token_by_token():
    with pytest.raises(ValueError, match="PaddingLast.* `LinRecBackbone.step`"):
        export_step(make_backbone(num_layers=1), drop_masks=True)


def test_the_gated_network_is_its_equation():
    layer = nlp.GatedFeedforward(5)
    inputs = np.random.default_rng(0).standard_normal((2, 3, 4), "float32")
    outputs = array(layer(inputs))
    gate, value, output = (array(weight) for weight in layer.weights)
    gated = inputs @ gate
    expected = (gated / (1 + np.exp(-gated)) * (inputs @ value)) @ output
    close(outputs, expected)
    other = nlp.GatedFeedforward.from_config(layer.get_config())
    assert other.get_config() == layer.get_config()


@pytest.mark.parametrize(
    "make", [partial(nlp.GatedFeedforward, 4), make_classifier]
)
def test_a_lambda_is_not_saved_as_code(make):
    layer = make(activation=lambda x: 2.0 * x)
    with pytest.raises(ValueError, match="A lambda cannot be saved"):
        layer.get_config()


def test_a_backbone_is_its_layers_one_after_another():
    backbone = make_backbone("lssl", normalization="layer")
    inputs = some_inputs()

    def by_hand(given):
        outputs = backbone.token_embedding(given[0])
        for index in range(2):
            block = backbone.unit_blocks[index]
            outputs = outputs + block.unit(block.norm(outputs))
            block = backbone.feedforward_blocks[index]
            outputs = outputs + block.unit(block.norm(outputs))
        return backbone.output_norm(outputs)

    expected = compiled(by_hand)([inputs["token_ids"]])
    close(backbone.predict_on_batch(inputs), expected)


@EVERY_UNIT
def test_parts_and_single_tokens_equal_the_whole(unit):
    backbone = make_backbone(unit)
    tokens = some_inputs(time=7)["token_ids"]

    def in_parts(given):
        states = backbone.get_initial_state(2)
        outputs, states = backbone.call_with_states(given[0][:, :5], states)
        first, states = backbone.step(given[0][:, 5], states)
        second, states = backbone.step(given[0][:, 6], states)
        single = keras.ops.stack([first, second], axis=1)
        return backbone.hidden_states(given[0]), outputs, single

    whole, outputs, single = compiled(in_parts)([tokens])
    close(keras.ops.concatenate([outputs, single], axis=1), whole)


def test_padding_does_not_happen():
    backbone = make_backbone()
    inputs = some_inputs(time=6)
    kept = array(backbone(inputs))
    inputs["padding_mask"] = np.array([[1] * 6, [1, 1, 1, 1, 0, 0]])
    inputs["token_ids"][1, 4:] = 7
    got = array(backbone(inputs))
    close(got[0], kept[0])
    close(got[1, :4], kept[1, :4])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "unit, bidirectional", [*((unit, False) for unit in UNIT_ARGUMENTS), BOTH]
)
def test_tokens_with_gaps_between_them_are_read_as_without(
    unit, bidirectional, packed
):
    arguments = {**UNIT_ARGUMENTS[unit]}
    if bidirectional:
        arguments["bidirectional"] = True
    backbone = make_backbone(
        unit, unit_arguments=arguments, normalization="layer", packed=packed
    )
    for weight in backbone.weights:
        if weight.name in ("beta", "gamma"):
            # A normalization that gives no zeros for zeros.
            weight.assign(weight + 0.5)
    inputs = some_inputs(3, 7)
    mask = np.array([[0, 1, 0, 1, 1, 1, 0], [1] * 7, [0] * 7])
    resets = np.array([[0, 0, 1, 0, 1, 0, 1], [1, 0, 0, 1, 0, 0, 0], [0] * 7])
    inputs["padding_mask"] = mask
    # The third token of the first row begins another text.
    without_gaps = {"reset_mask": np.array([[False, True, True, False]])}
    if packed:
        inputs["reset_mask"] = resets.astype("bool")
    outputs = array(compiled(lambda given: backbone(given[0]))([inputs]))
    for row in (0, 1):
        rows = slice(row, row + 1)
        kept = mask[row] > 0
        alone = {"token_ids": inputs["token_ids"][rows, kept]}
        if packed and row == 0:
            alone.update(without_gaps)
        elif packed:
            alone["reset_mask"] = inputs["reset_mask"][rows]
        close(outputs[rows, kept], backbone.hidden_states(**alone))
    assert np.isfinite(outputs).all()


@pytest.mark.rest
def test_kerashub_finds_the_backbone_in_order():
    case = test_case.TestCase("run_backbone_test")
    case.run_backbone_test(
        nlp.LinRecBackbone,
        {
            "vocabulary_size": 10,
            "num_layers": 1,
            "hidden_dim": 6,
            "intermediate_dim": 8,
            "unit_arguments": UNIT_ARGUMENTS["rotrnn"],
            "dropout": 0.1,
        },
        {
            "token_ids": np.ones((2, 5), "int32"),
            "padding_mask": np.ones((2, 5), "int32"),
        },
        expected_output_shape=(2, 5, 6),
        # It wants every weight in the policy's dtype: a recurrence keeps its
        # own in float32, which a test below looks at.
        run_mixed_precision_check=False,
    )


# Training.


def one_step(model, inputs, labels, weights):
    """The loss of a batch, and the weights after a step along its gradient."""
    model.compile(
        keras.optimizers.SGD(0.05),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="sum"
        ),
        weighted_metrics=[],
        jit_compile=JIT,
    )
    loss = model.train_on_batch(inputs, labels, weights)
    return float(np.ravel(loss)[0]), [array(w) for w in model.weights]


@EVERY_UNIT
def test_packed_texts_train_as_they_do_apart(unit):
    texts = ["abc", "", "defg", "hij", "klmnop"]
    apart = nlp.LinRecCausalLM(make_backbone(unit, num_layers=1))
    packed = nlp.LinRecCausalLM(make_backbone(unit, num_layers=1, packed=True))
    packed.set_weights(apart.get_weights())
    before = [array(weight) for weight in apart.weights]
    loss, expected = one_step(apart, *make_preprocessor(10)(texts))
    batch = make_preprocessor(10, packed=True)(texts)
    assert len(batch[1]) < len(texts)
    got_loss, got = one_step(packed, *batch)
    assert got_loss == pytest.approx(loss, rel=1e-5)
    for one, other, start in zip(got, expected, before):
        # An LDStack may have a weight of no numbers.
        moved = np.abs(other - start).max(initial=1e-6)
        assert np.abs(one - other).max(initial=0) < 1e-3 * moved


def test_a_packed_model_trains_on_texts_and_generates():
    model = make_model(packed=True)
    before = array(model.backbone.token_embedding.embeddings)
    model.fit(["To be", "or", "not"], verbose=0)
    after = array(model.backbone.token_embedding.embeddings)
    assert np.abs(after - before).max() > 1e-6
    assert model.generate("To", max_length=6).startswith("To")
    with pytest.raises(ValueError, match="packed both"):
        nlp.LinRecCausalLM(make_backbone(), make_preprocessor(packed=True))


@pytest.mark.rest
def test_kerashub_finds_the_language_model_in_order():
    case = test_case.TestCase("run_task_test")
    case.run_task_test(
        nlp.LinRecCausalLM,
        {
            "backbone": make_backbone(num_layers=1),
            "preprocessor": make_preprocessor(8),
        },
        (["To be", "or not"],),
        expected_output_shape=(2, 8, 259),
        compile_kwargs={"jit_compile": JIT},
    )


# Fine-tuning and files.


def test_lora_trains_the_dense_parts_alone(tmp_path):
    model = make_model(num_layers=1)
    before = {weight.path: array(weight) for weight in model.weights}
    model.backbone.enable_lora(2)
    model.compile(keras.optimizers.Adam(0.1), jit_compile=JIT)
    inputs = some_inputs()
    model.fit(["To be", "or not"], verbose=0)
    names = {weight.path.split("/")[-1] for weight in model.trainable_weights}
    assert names == {"lora_kernel_a", "lora_kernel_b"}
    assert len(model.trainable_weights) == 6
    for weight in model.weights:
        if weight.path in before:
            assert (array(weight) == before[weight.path]).all()
    file = str(tmp_path / "small.lora.h5")
    model.backbone.save_lora_weights(file)
    trained = outputs_of(model, inputs)
    other = make_model(num_layers=1)
    other.set_weights(list(before.values()))
    assert np.abs(outputs_of(other, inputs) - trained).max() > 1e-3
    other.backbone.load_lora_weights(file)
    # A layer that has LoRA now is another to what was compiled.
    other.make_predict_function(force=True)
    close(outputs_of(other, inputs), trained)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """A model in int8, what it gave before, and the folder it is in."""
    keras.utils.set_random_seed(1)
    model = make_model(num_layers=1)
    before = outputs_of(model, some_inputs())
    model.quantize("int8")
    folder = str(tmp_path_factory.mktemp("int8"))
    model.save_to_preset(folder)
    return model, before, folder


def test_dense_parts_in_int8_give_nearly_the_same(quantized):
    model, before, _ = quantized
    modes = {
        layer.name: layer.quantization_mode
        for layer in model._flatten_layers()
        if getattr(layer, "quantization_mode", None)
    }
    names = ("gate_dense", "value_dense", "output_dense")
    assert modes == dict.fromkeys(names, "int8")
    after = outputs_of(model, some_inputs())
    error = np.abs(after - before).max()
    assert 0 < error < 0.05 * np.abs(before).max()
    assert model.generate("To", max_length=6).startswith("To")


def test_a_model_in_int8_is_saved_and_loaded(quantized):
    model, _, folder = quantized
    expected = outputs_of(model, some_inputs())
    loaded = nlp.LinRecCausalLM.from_preset(folder)
    close(outputs_of(loaded, some_inputs()), expected, 1e-5)
    dense = loaded.backbone.feedforward_blocks[0].unit.gate_dense
    assert dense.quantization_mode == "int8"


# The classifier.


@pytest.mark.rest
def test_kerashub_finds_the_classifier_in_order():
    case = test_case.TestCase("run_task_test")
    classifier = make_classifier()
    case.run_task_test(
        nlp.LinRecTextClassifier,
        {
            "backbone": classifier.backbone,
            "preprocessor": classifier.preprocessor,
            "num_classes": 2,
            "pooling": "last",
            "dropout": 0.1,
        },
        (["To be", "or not"], [1, 0]),
        expected_output_shape=(2, 2),
        compile_kwargs={"jit_compile": JIT},
    )


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_classifier_pools_the_tokens_that_count(pooling):
    model = make_classifier(pooling=pooling, activation="softmax")
    inputs = some_inputs()
    inputs["padding_mask"] = np.array([[0, 1, 1, 1, 0, 0], [1] * 6])
    hidden = array(model.backbone(inputs))
    pool = {
        "mean": lambda row: row.mean(axis=0),
        "max": lambda row: row.max(axis=0),
        "last": lambda row: row[-1],
        "ends": lambda row: np.concatenate([row[0], row[-1]]),
    }[pooling]
    pooled = [pool(row) for row in (hidden[0, 1:4], hidden[1])]
    expected = model.output_dense(np.stack(pooled))
    close(outputs_of(model, inputs), expected)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_text_without_tokens_pools_to_zeros_and_has_no_gradient(pooling):
    pooler = TextPooling(pooling)
    outputs = np.random.default_rng(0).standard_normal((2, 5, 3))
    mask = np.array([[0] * 5, [0, 1, 0, 1, 1]])
    pooled = array(pooler(outputs.astype("float32"), mask))
    assert (pooled[0] == 0).all() and (pooled[1] != 0).all()

    slope = gradient(lambda given: keras.ops.sum(pooler(given[0], mask)))
    slope = array(slope(tensors([outputs]))[0])
    assert (slope[mask == 0] == 0).all()
    assert slope[1].sum() == pytest.approx(pooled.shape[1])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_float64_classifier_pools_in_float64(pooling):
    with float64():
        outputs = np.full((1, 4, 3), 1 + 1e-12)
        pooled = TextPooling(pooling, dtype="float64")(
            keras.ops.convert_to_tensor(outputs, "float64"), np.ones((1, 4))
        )
        assert np.abs(array(pooled) - (1 + 1e-12)).max() < 1e-15


@pytest.mark.rest
def test_a_classifier_learns_and_is_saved_from_a_language_models_preset(
    tmp_path,
):
    make_model(num_layers=1).save_to_preset(str(tmp_path / "model"))
    classifier = nlp.LinRecTextClassifier.from_preset(
        str(tmp_path / "model"), num_classes=2, pooling="mean"
    )
    classifier.compile(
        keras.optimizers.Adam(0.03),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=JIT,
    )
    texts = ["aaab", "baaa", "abaa", "bbba", "abbb", "bbab"] * 4
    labels = np.array([0, 0, 0, 1, 1, 1] * 4)
    classifier.fit(texts, labels, epochs=12, batch_size=24, verbose=0)
    predictions = classifier.predict(texts[:6], verbose=0)
    assert (predictions.argmax(axis=1) == labels[:6]).all()

    classifier.quantize("int8")
    expected = classifier.predict(texts[:6], verbose=0)
    classifier.save_to_preset(str(tmp_path / "classifier"))
    loaded = keras_hub.models.TextClassifier.from_preset(
        str(tmp_path / "classifier")
    )
    close(loaded.predict(texts[:6], verbose=0), expected, 1e-5)
