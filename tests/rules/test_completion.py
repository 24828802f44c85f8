"""What a layer offers to completion is what the reference describes."""

import inspect
import re

import keras
from public_names import public_names
from support import DOCS
from support import ROOT
from support.conformance_cases import CELLS
from support.model_cases import make_model
from support.units import UNITS

# Keras' older name of `reset_state`, and what KerasHub calls of a tokenizer.
BY_OTHERS = {"reset_states", "load_assets", "save_assets"}
PAGES = [page.read_text() for page in (DOCS / "api").rglob("*.md")]
SHOWN = {
    name
    for page in PAGES
    for name in re.findall(r"^::: .*\.(\w+)$", page, re.M)
}


def listed_members():
    """The entries of every list of members, of the pages and of mkdocs.yml."""
    text = "\n".join([*PAGES, (ROOT / "mkdocs.yml").read_text()])
    lists = re.findall(r"members: *((?:\n +- \w+)+|\[[^]]*\])", text)
    return set(re.findall(r"\w+", " ".join(lists)))


def own_classes(cls):
    return [
        base
        for base in cls.__mro__
        if base.__module__.startswith("keras_linrec.")
    ]


def arguments_of(cls):
    """What the constructors of a class and of its bases take."""
    return {
        name
        for base in own_classes(cls)
        for name in inspect.signature(base.__init__).parameters
    }


def of_keras(cls):
    """What a class has from Keras, PyTorch or KerasHub."""
    bases = set(cls.__mro__) - set(own_classes(cls))
    return {name for base in bases for name in dir(base)}


def is_described(cls, name, members):
    """Whether a page shows a member, by itself or where its class is."""
    return name in members or any(
        base.__name__ in SHOWN and inspect.getdoc(vars(base).get(name))
        for base in own_classes(cls)
        if name in vars(base)
    )


def test_completion_offers_what_the_reference_describes():
    members = SHOWN | listed_members() | BY_OTHERS
    assert {"step", "run_step", "to_canonical"} <= members
    hidden = [
        f"{cls.__name__}.{name}"
        for _, cls in public_names()
        if inspect.isclass(cls) and issubclass(cls, keras.layers.Layer)
        for name in set(dir(cls)) - of_keras(cls) - arguments_of(cls)
        if not name.startswith("_") and not is_described(cls, name, members)
    ]
    assert not hidden, "an underscore before, or a line in docs/api"


def test_layers_keep_arguments_and_weights_in_the_open():
    loop = keras.layers.RNN(keras.layers.SimpleRNNCell(2))
    model = make_model()
    loops = [make() for make in CELLS.values()]
    layers = [model, *loops, *(make() for make in UNITS.values())]
    for layer in layers:
        layer.build((2, 8, 3))
    cells = [made.cell for made in loops]
    for layer in [*layers, *model.blocks, *cells]:
        known = {*vars(loop), *vars(loop.cell), *vars(keras.Model())}
        known |= arguments_of(type(layer))
        others = {
            name
            for name, value in vars(layer).items()
            if not name.startswith("_") and not holds_weights(value)
        }
        assert others <= known, layer


def holds_weights(value):
    """Whether an attribute is for weights or layers, or for none of them."""
    parts = value if isinstance(value, tuple) else (value,)
    kinds = (keras.Variable, keras.layers.Layer, type(None))
    return all(isinstance(part, kinds) for part in parts)
