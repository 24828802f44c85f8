"""A language model of a random layer: trained, streamed, generating, saved."""

import tempfile

import keras
import numpy as np
from support.drawn_layers import FEATURES
from support.drawn_layers import chance
from support.drawn_layers import count
from support.drawn_layers import draw_layer
from support.drawn_layers import pick
from support.language_models import generated
from support.language_models import make_backbone
from support.language_models import make_model
from support.language_models import outputs_of
from support.programs import BACKEND
from support.programs import COMPILED
from support.programs import EAGER
from support.programs import program
from support.threads import in_threads

from keras_linrec import nlp
from soak.settings import draw_setting
from soak.settings import number
from soak.twins import defined_by_twin

TOKENS = 256


class LanguageCase:
    """A causal language model and some tokens."""

    def __init__(self, generator):
        self.generator = generator
        self.setting = draw_setting(generator)._replace(policy="float32")
        drawn = draw_layer(generator).of_width(FEATURES)
        if drawn.form.get("bidirectional"):
            drawn.form["bidirectional"] = False
        self.drawn = drawn
        self.arguments = {
            "num_layers": count(generator, 1, 2),
            "hidden_dim": FEATURES,
            "normalization": pick(generator, ["rms", "layer", "batch"]),
            "tie_embeddings": chance(generator, 0.5),
        }
        shape = count(generator, 1, 3), pick(generator, [2, 7, 20])
        self.tokens = generator.integers(TOKENS, size=shape)
        self.mask = np.ones(shape, "int32")
        # Texts are padded at their end.
        if chance(generator, 0.4):
            self.mask[0, -1] = 0
        with self.setting.scope():
            self.model = make_model(unit=drawn.make(), **self.arguments)

    def __str__(self):
        return (
            f"{self.drawn}\nLinRecCausalLM, {self.arguments}\n{self.setting}\n"
            f"tokens {self.tokens.shape}"
        )

    @property
    def inputs(self):
        return {"token_ids": self.tokens, "padding_mask": self.mask}

    def make_backbone(self, dtype):
        return make_backbone(
            self.drawn.make(dtype=dtype), dtype=dtype, **self.arguments
        )

    def define(self):
        """The backbone's outputs in float64, zeros where there is no token."""
        (result,) = defined_by_twin(
            self.model.backbone,
            self.make_backbone,
            self.inputs,
            self.generator,
            "float32",
        )
        return [result._replace(value=result.value * self.where)]

    @property
    def where(self):
        return self.mask[:, :, None]

    def generate(self, model=None):
        """Greedily chosen tokens behind the first one of every row."""
        mask = np.zeros_like(self.mask)
        mask[:, 0] = 1
        inputs = {"token_ids": self.tokens, "padding_mask": mask}
        return generated(model or self.model, inputs, stop_token_ids=None)


def run(generator, report):
    """Draw a case, train it, and check it."""
    case = LanguageCase(generator)
    report.describe(case)
    with case.setting.scope():
        targets = np.roll(case.tokens, -1, axis=1)
        before = number(case.model.backbone.token_embedding.embeddings)
        case.model.preprocessor = None
        for _ in range(2):
            losses = case.model.train_on_batch(case.inputs, targets)
        finite = np.isfinite(np.ravel(losses)).all()
        report.require("training", finite, f"the loss is {losses}")
        after = number(case.model.backbone.token_embedding.embeddings)
        report.require("training", (before != after).any(), "nothing moved")
    case.expected = case.define()
    with case.setting.scope():
        whole = number(case.model.backbone(case.inputs)) * case.where
        report.compare("backbone", [whole], case.expected)
        if case.mask.all():
            check_stream(case, report)
        check_generation(case, report)


def check_stream(case, report):
    """Tokens one after another give what they give together."""
    backbone = case.model.backbone

    def step(given):
        return backbone.step(*given)

    run = program(step, COMPILED if BACKEND == "jax" else EAGER)
    states, outputs = backbone.get_initial_state(len(case.tokens)), []
    for tokens in case.tokens.T:
        output, states = run([keras.ops.convert_to_tensor(tokens), states])
        outputs.append(number(output))
    report.compare("token stream", [np.stack(outputs, 1)], case.expected)


def check_generation(case, report):
    """Threads, and a model that was saved, choose the same tokens."""
    expected = case.generate()
    for got in in_threads(lambda _: case.generate()):
        report.require("generation threads", same(got, expected), "other texts")
    with tempfile.TemporaryDirectory() as folder:
        case.model.save_to_preset(folder)
        loaded = nlp.LinRecCausalLM.from_preset(folder)
    loaded.preprocessor = None
    before, after = (
        outputs_of(model, case.inputs) for model in (case.model, loaded)
    )
    report.require(
        "preset", np.allclose(before, after, rtol=0, atol=1e-6), "other logits"
    )


def same(got, expected):
    return all((got[name] == expected[name]).all() for name in expected)
