"""One name for one thing, in every public signature."""

import inspect
import re

import pytest
from public_names import signatures

from keras_linrec import layers
from keras_linrec.layers.base.sequence_layer import SequenceLayer

# What every unit takes after its own arguments, in this order.
OF_EVERY_UNIT = {
    "dropout": 0.0,
    "seed": None,
    "return_sequences": True,
    "return_state": False,
    "go_backwards": False,
    "stateful": False,
    "zero_output_for_mask": False,
}
# Units that take the place of `keras.layers.LSTM`, with its default.
LIKE_LSTM = {"AntisymmetricRNN", "LipschitzRNN", "OrthogonalRNN"}
CALL = [
    "self",
    "sequences",
    "initial_state",
    "mask",
    "training",
    "reset_mask",
]
# Names that were in use once or are in use elsewhere, and the name of the same
# thing here.
RETIRED = {
    "begun": "reset_mask",
    "classes": "num_classes",
    "hidden_size": "units",
    "input_size": "features",
    "n_heads": "num_heads",
    "n_layers": "num_layers",
    "normalizer": "normalization",
    "output_units": "output_dim",
    "rate": "step_rescale",
    "timescale_scale": "step_rescale",
    "timescales": "time_deltas",
}
# Of models only: an `LDStack` is one layer, whose depth is the number of its
# linear systems, and `from_rnn` takes a matrix of outputs.
RETIRED_OF_MODELS = {"depth": "num_layers", "outputs": "output_dim"}


UNITS = [
    value
    for value in vars(layers).values()
    if inspect.isclass(value) and issubclass(value, SequenceLayer)
]


def by_name(cls):
    return pytest.mark.parametrize("cls", cls, ids=lambda value: value.__name__)


@by_name(UNITS)
def test_a_unit_spells_out_what_every_unit_takes(cls):
    *parameters, last = inspect.signature(cls).parameters.values()
    assert last.kind is inspect.Parameter.VAR_KEYWORD
    count = len(OF_EVERY_UNIT)
    shared = {p.name: p.default for p in parameters[-count:]}
    like_lstm = cls.__name__ in LIKE_LSTM
    expected = {**OF_EVERY_UNIT, "return_sequences": not like_lstm}
    assert list(shared.items()) == list(expected.items())
    assert parameters[0].name == "units"


@by_name(UNITS)
def test_a_unit_documents_every_argument_with_its_default(cls):
    text = " ".join(inspect.getdoc(cls).split())
    described = text[text.index("Args:") : text.index("Call arguments")]
    for name, parameter in inspect.signature(cls).parameters.items():
        assert re.search(rf"\b{name}\b", described), name
        if name in OF_EVERY_UNIT:
            default = re.escape(str(parameter.default).removesuffix(".0"))
            assert re.search(
                rf"{name}: [^:]*Defaults to `?{default}", described
            )


@by_name(UNITS)
def test_calls_begin_alike(cls):
    assert [*inspect.signature(cls.call).parameters][: len(CALL)] == CALL
    assert [*inspect.signature(cls.call).parameters][-1] == "sequences_mask"


@pytest.mark.parametrize("name", [*RETIRED, *RETIRED_OF_MODELS])
def test_a_retired_name_is_in_no_signature(name):
    places = "keras_linrec."
    if name in RETIRED_OF_MODELS:
        places = "keras_linrec.models.", "keras_linrec.nlp."
    lines = [line for line in signatures() if line.startswith(places)]
    found = [line for line in lines if re.search(rf"[(* ]{name}[=,)]", line)]
    assert lines and not found, {**RETIRED, **RETIRED_OF_MODELS}[name]
