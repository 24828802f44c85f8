"""What a language model of these units generates, and what it keeps for it."""

import keras
import keras_hub
import numpy as np
import pytest
from support.autodiff import compiled
from support.language_models import EVERY_UNIT
from support.language_models import JIT
from support.language_models import PROMPTS
from support.language_models import WARNINGS
from support.language_models import generated
from support.language_models import make_model
from support.language_models import outputs_of
from support.language_models import some_inputs
from support.units import array
from support.units import close

pytestmark = [*WARNINGS, pytest.mark.weekly("jax", "tensorflow")]


def greedy_by_whole_prefixes(model, prompt, max_length):
    """Tokens of a text, each from all that come before it, computed anew."""
    tokens = np.zeros((1, max_length), "int32")
    tokens[0, : len(prompt)] = prompt
    for index in range(len(prompt), max_length):
        inputs = {
            "token_ids": tokens,
            "padding_mask": np.arange(max_length)[None] < index,
        }
        logits = outputs_of(model, inputs)
        tokens[0, index] = logits[0, index - 1].argmax()
    return tokens[0]


def assert_generates_what_whole_prefixes_say(unit, count):
    # A tied embedding likes to repeat itself.
    model = make_model(unit, num_layers=1, tie_embeddings=False)
    prompt = [84, 111, 32, 98]
    expected = greedy_by_whole_prefixes(model, prompt, len(prompt) + count)
    inputs = {
        "token_ids": np.array([prompt + [0] * count]),
        "padding_mask": np.array([[1] * len(prompt) + [0] * count]),
    }
    outputs = generated(model, inputs, stop_token_ids=None)
    assert outputs["token_ids"][0].tolist() == expected.tolist()
    assert outputs["padding_mask"].all()
    # A test that ends in one token for ever would see no error.
    assert len(set(expected[len(prompt) :])) > 2


@EVERY_UNIT
def test_generation_is_that_of_whole_prefixes(unit):
    assert_generates_what_whole_prefixes_say(unit, 12)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="jit_compile is XLA on TensorFlow alone; JAX always compiles",
)
def test_generation_compiled_by_xla_is_that_of_the_graph():
    model = make_model(num_layers=1)
    texts = model.generate(PROMPTS, max_length=18)
    model.compile(sampler="greedy", jit_compile=True)
    assert model.generate(PROMPTS, max_length=18) == texts


@pytest.mark.slow
@EVERY_UNIT
def test_long_generation_is_that_of_whole_prefixes(unit):
    assert_generates_what_whole_prefixes_say(unit, 256)


@pytest.mark.parametrize(
    "sampler",
    ["greedy", keras_hub.samplers.BeamSampler(num_beams=4, temperature=3.0)],
    ids=["greedy", "beam"],
)
def test_a_row_generates_what_it_generates_alone(sampler):
    model = make_model(sampler=sampler, num_layers=1, tie_embeddings=False)
    lengths = np.array([[10], [11], [13], [14], [15], [16]])
    inputs = some_inputs(batch=6, time=26)
    inputs["padding_mask"] = np.arange(26) < lengths
    free = generated(model, inputs, stop_token_ids=None)
    # What two rows say on their way.
    stop_token_ids = [int(free["token_ids"][row, 18]) for row in (0, 3)]
    stopped = generated(model, inputs, stop_token_ids=stop_token_ids)
    assert stopped["padding_mask"][0].sum() <= 19

    for row, (length,) in enumerate(lengths):
        prompt = {name: value[[row]] for name, value in inputs.items()}
        for together, stops in ((free, None), (stopped, stop_token_ids)):
            alone = generated(model, prompt, stop_token_ids=stops)
            counts = alone["padding_mask"][0].astype(bool)
            assert (together["padding_mask"][row] == counts).all()
            got = together["token_ids"][row][counts]
            assert (got == alone["token_ids"][0][counts]).all()
            assert (got[:length] == prompt["token_ids"][0, :length]).all()
            # It ends with its first stop token, or is full.
            ends = np.isin(got[length:], stops or [])
            assert not ends[:-1].any() and (ends[-1] or counts.all())


def test_generation_computes_once_what_hangs_on_weights_alone(monkeypatch):
    model = make_model()
    counts = []
    for block in model.backbone.unit_blocks:
        compute = block.unit.step_constants

        def counted(compute=compute):
            counts.append(1)
            return compute()

        monkeypatch.setattr(block.unit, "step_constants", counted)
    model.generate("To be", max_length=12, stop_token_ids=None)
    assert len(counts) == len(model.backbone.unit_blocks)


def test_a_prompt_may_end_in_a_stop_token():
    model = make_model(num_layers=1, tie_embeddings=False)
    inputs = some_inputs(batch=1, time=12)
    inputs["padding_mask"][0, 6:] = 0
    free = generated(model, inputs, stop_token_ids=None)["token_ids"]
    last = int(inputs["token_ids"][0, 5])
    assert last not in free[0, 6:]
    stopped = generated(model, inputs, stop_token_ids=[last])
    assert stopped["token_ids"].tolist() == free.tolist()


def test_strings_come_in_and_strings_go_out():
    model = make_model(num_layers=1)
    texts = model.generate(PROMPTS, max_length=10)
    assert [text[: len(p)] for text, p in zip(texts, PROMPTS)] == [
        # `<start>` takes one of ten.
        prompt[:9]
        for prompt in PROMPTS
    ]
    assert texts[2] == PROMPTS[2][:9]
    new = model.generate(PROMPTS, max_length=10, strip_prompt=True)
    assert [p[:9] + n for p, n in zip(PROMPTS, new)] == texts
    assert model.generate("or", max_length=10) == texts[1]


TOKENS = {
    "token_ids": np.array([[256, 1, 2, 0]]),
    "padding_mask": np.array([[1, 1, 1, 0]]),
}


def test_generation_at_its_edges():
    model = make_model(num_layers=1)
    for nothing in ([], (), np.array([])):
        assert model.generate(nothing) == []
    without = {name: value[:0] for name, value in TOKENS.items()}
    without = generated(model, without, stop_token_ids=None)
    assert without["token_ids"].shape == (0, 4)
    one, (other,) = model.generate("To"), model.generate(np.array(["To"]))
    assert one == other and one.startswith("To")
    # A start token, and the prompt's first letters.
    assert model.generate(["abcdef"], max_length=4) == ["abc"]
    assert model.generate("abcdef", max_length=1) == ""
    assert model.generate("", max_length=np.int64(1)) == ""
    free = model.generate("To", stop_token_ids=None)
    assert model.generate("To", stop_token_ids=[]) == free
    ended = model.generate("To", stop_token_ids=(257,))
    assert model.generate("To", stop_token_ids=np.array([257])) == ended


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_length": 0}, "`max_length` .* Received: max_length=0"),
        ({"max_length": -3}, "`max_length` .* Received: max_length=-3"),
        ({"max_length": 1.5}, "`max_length` .* Received: max_length=1.5"),
        ({"max_length": True}, "`max_length` .* Received: max_length=True"),
        ({"stop_token_ids": 32}, "`stop_token_ids` .* Received: .*=32"),
        ({"stop_token_ids": [-1]}, "`stop_token_ids` .* from 0 to 258"),
        ({"stop_token_ids": [1.5]}, "`stop_token_ids` .* integers"),
        ({"stop_token_ids": "end"}, "`stop_token_ids` .* Received: .*=end"),
        ({"strip_prompt": "yes"}, "`strip_prompt` should be True or False"),
        ({"inputs": [["a"]]}, "`inputs` should be a string or a sequence"),
        ({"inputs": np.eye(2)}, "`inputs` should be a string or a sequence"),
    ],
)
def test_wrong_arguments_of_generate_are_named(arguments, message):
    model = make_model(num_layers=1)
    with pytest.raises(ValueError, match=message):
        model.generate(**{"inputs": ["To"], **arguments})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tokens: tokens["token_ids"], "dictionary of `token_ids` and"),
        (lambda tokens: {"token_ids": [[1]]}, "dictionary of `token_ids` and"),
        (
            lambda tokens: {**tokens, "padding_mask": [[1, 1]]},
            r"Received: token_ids.shape=\(1, 4\), padding_mask.shape=\(1, 2\)",
        ),
        (
            lambda tokens: {**tokens, "token_ids": [[256, 259, 0, 0]]},
            "`token_ids` should be integers from 0 to 258",
        ),
        (
            lambda tokens: {**tokens, "token_ids": [[256, 0.5, 0, 0]]},
            "`token_ids` should be integers from 0 to 258",
        ),
    ],
)
def test_wrong_tokens_to_generate_from_are_named(change, message):
    model = make_model(num_layers=1)
    with pytest.raises(ValueError, match=message):
        generated(model, change(TOKENS), stop_token_ids=None)


@pytest.mark.parametrize("sampler", ["top_k", "top_p", "random"])
def test_samplers_draw_what_is_likely(sampler):
    model = make_model(sampler=sampler, num_layers=1)
    # Sharpened, there is one token to draw.
    embedding = model.backbone.token_embedding.embeddings
    embedding.assign(1000 * array(embedding))
    drawn = model.generate("To", max_length=8)
    model.compile(sampler="greedy", jit_compile=JIT)
    assert drawn == model.generate("To", max_length=8)


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="compiles nothing by shapes"
)
def test_prompts_of_many_lengths_need_few_programs():
    model = make_model(num_layers=1)
    shapes = set()
    step = model.generate_step

    def counted(inputs, stop_token_ids=None):
        shapes.add((inputs["token_ids"].shape[1], inputs["slots"].shape[0]))
        return step(inputs, stop_token_ids)

    model.generate_step = counted
    for length in range(9, 16):
        model.generate("x" * length, max_length=24)
    assert shapes == {(16, 16)} or shapes == {(16, 16), (16, 8)}


# What is kept from token to token.


@EVERY_UNIT
def test_the_cache_is_small_and_in_float32_and_goes_on_in_parts(unit):
    model = make_model(unit, dtype="mixed_bfloat16")
    tokens = some_inputs(time=9)["token_ids"]

    def in_parts(given):
        cache = model.get_initial_cache(2)
        logits, hidden, cache = model.call_with_cache(given[0][:, :8], cache)
        last, _, cache = model.call_with_cache(given[0][:, 8:], cache)
        return logits, hidden, last, cache

    logits, hidden, last, cache = compiled(in_parts)([tokens])
    assert logits.shape == (2, 8, 259) and last.shape == (2, 1, 259)
    dtypes = [keras.backend.standardize_dtype(t.dtype) for t in (hidden, last)]
    assert dtypes == ["bfloat16", "bfloat16"]
    initial = model.get_initial_cache(2)
    for after, before in zip(
        keras.tree.flatten(cache), keras.tree.flatten(initial), strict=True
    ):
        assert after.shape == before.shape
        assert keras.backend.standardize_dtype(after.dtype) == "float32"


def test_the_cache_repeats_the_last_token_at_padding():
    model = make_model(num_layers=1)
    tokens = some_inputs(3, 6)["token_ids"]
    mask = np.array([[0, 1, 0, 1, 1, 0], [1] * 6, [0] * 6])

    rows = [tokens[row : row + 1, mask[row] > 0] for row in (0, 1)]

    def read(given):
        tokens, mask, *rows = given
        cache = model.get_initial_cache(3)
        return model.call_with_cache(tokens, cache, mask), [
            model.call_with_cache(row, model.get_initial_cache(1))
            for row in rows
        ]

    padded, alone = compiled(read)([tokens, mask, *rows])
    logits, hidden = map(array, padded[:2])
    close(hidden[0, 0], np.zeros(hidden.shape[-1]))
    close(hidden[0, [2, 5]], hidden[0, [1, 4]])
    close(logits[0, [2, 5]], logits[0, [1, 4]])
    close(hidden[2], np.zeros(hidden.shape[1:]))
    for row, (_, expected, wanted) in enumerate(alone):
        close(hidden[row, mask[row] > 0], expected[0])
        for one, other in zip(
            keras.tree.flatten(padded[2]),
            keras.tree.flatten(wanted),
            strict=True,
        ):
            close(one[row], other[0])


def test_a_model_in_mixed_precision_trains_and_generates():
    model = make_model(dtype="mixed_bfloat16", num_layers=1)
    history = model.fit(["To be", "or not"], epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert model.generate("To", max_length=6).startswith("To")


# Scores.


@pytest.mark.parametrize("tied", [True, False])
def test_scores_are_those_of_numpy(tied):
    model = make_model(num_layers=1, tie_embeddings=tied)
    inputs = some_inputs(time=5)
    tokens, targets = inputs["token_ids"], inputs["token_ids"][:, ::-1]
    hidden = array(model.backbone(inputs)).astype("float64")
    embedding = model.backbone.token_embedding
    kernel = array(
        keras.ops.transpose(embedding.embeddings)
        if tied
        else embedding.reverse_embeddings
    )
    logits = hidden @ kernel
    close(model.score(tokens), logits, 1e-3)
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=-1, keepdims=True)
    of_target = np.take_along_axis(probabilities, targets[..., None], 2)[..., 0]
    scores = model.score(tokens, scoring_mode="loss", target_ids=targets)
    close(scores, -np.log(of_target), 1e-3)
