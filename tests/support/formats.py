"""Formats of files: how a model is written, and run where there is no Keras.

`docs/guides/export.md` has the table of these records, which
`python tests/formats.py --write` makes, and the recipes of formats that
Keras does not write. `tests/one_backend/*/formats` prove each cell.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from functools import partial

import keras
import numpy as np
import pytest
from support import DOCS
from support import pages
from support.units import UNITS
from support.units import array
from support.units import randomise
from support.units import sequences

from keras_linrec import export_step
from keras_linrec.layers import RotRNN
from keras_linrec.models import RecurrentBlock
from keras_linrec.models import ResidualBlock
from keras_linrec.models import SequenceClassifier
from keras_linrec.models import SequenceRegressor

GUIDE = DOCS / "guides" / "export.md"

# Which sizes a file leaves open.
ANY = "any batch and time"
BATCH = "any batch, fixed time"
ANY_BATCH = "any batch"
NONE = "no (error)"
# By what a file leaves open, the (batch, time) that it is written for, with
# `None` for any, and those that it runs with.
SIZES = {
    ANY: ((None, None), [(1, 1), (2, 7), (3, 40), (2, 150)]),
    BATCH: ((None, 9), [(1, 9), (3, 9)]),
}


@dataclass(frozen=True)
class Format:
    """A format, as a backend writes it.

    Attributes:
        title: in the table.
        backend: in the table.
        runtime: what runs a file, in the table.
        write: function `write(model, folder, sizes)` that returns a path.
        run: function `run(path, arrays)` that returns a list of arrays, or
            `None` if nothing here can run the file.
        whole: which sizes the file of a whole model leaves open.
        step: which the file of one step leaves open.
        text: which that of a language model's backbone leaves open.
        tolerance: of outputs, relative to the largest, or to 1.
    """

    title: str
    backend: str
    runtime: str
    write: Callable
    run: Callable
    whole: str = ANY
    step: str = ANY_BATCH
    text: str = ANY
    tolerance: float = 3e-5


def block():
    return ResidualBlock(RotRNN(3, state_size=4, num_heads=2))


def classifier():
    return SequenceClassifier(
        3, num_layers=1, units=4, unit="lru", pooling="mean"
    )


def regressor():
    return SequenceRegressor(2, num_layers=1, units=4, unit="min_gru")


def recurrent_block():
    return RecurrentBlock(3, width=4)


# Everything that is exported.
MODELS = {
    **UNITS,
    "residual_block": block,
    "recurrent_block": recurrent_block,
    "classifier": classifier,
    "regressor": regressor,
}
# What computes a whole sequence at once if its length is a symbol of PyTorch:
# some 700 operations of an LRU, which take half a minute of a core to write.
AT_ONCE = (
    "rotrnn",
    "s5",
    "s4d",
    "linoss",
    "linear_dynamical_system",
    "ldstack",
    "min_lstm",
    "rglru",
    "residual_block",
    "recurrent_block",
    "classifier",
)


def model_of(name):
    layer = MODELS[name]()
    model = keras.Sequential([keras.Input((None, 3), name="signal"), layer])
    randomise(layer)
    return model


def check_whole(form, name, folder):
    """Compare a file of a whole model with the model, or see it refused."""
    model = model_of(name)
    if form.whole == NONE:
        _refuse(form, model, folder, SIZES[ANY][0])
        return
    sizes, runs = SIZES[form.whole]
    given = [[sequences(time, batch=batch)] for batch, time in runs]
    expected = [[array(model(parts[0]))] for parts in given]
    _compare(form, form.write(model, folder, sizes), given, expected)


def check_step(form, name, folder):
    """Compare a file of one step with the step, or see it refused."""
    step = export_step(model_of(name))
    if form.step == NONE:
        _refuse(form, step, folder, None)
        return
    generator = np.random.default_rng(0)
    given = [
        [
            generator.standard_normal((batch, *part.shape[1:]))
            for part in step.inputs
        ]
        for batch in (1, 3)
    ]
    given = [[part.astype("float32") for part in parts] for parts in given]
    expected = [list(map(array, step(parts))) for parts in given]
    _compare(form, form.write(step, folder, None), given, expected)


def check_text(form, folder):
    """Compare a file of a language model's backbone, or see it refused."""
    # It needs KerasHub.
    from support.language_models import make_backbone

    # A loop: others take minutes to write with an open time.
    backbone = make_backbone("lssl", num_layers=1)
    if form.text == NONE:
        _refuse(form, backbone, folder, None)
        return
    given = [tokens(*sizes) for sizes in SIZES[form.text][1]]
    expected = [[array(backbone(parts))] for parts in given]
    _compare(form, form.write(backbone, folder, None), given, expected)


def tokens(batch, time):
    """Tokens with padding on both sides, by the names of a backbone."""
    generator = np.random.default_rng([batch, time])
    mask = np.ones((batch, time), "int32")
    mask[0, time - time // 3 :] = 0
    mask[-1, : time // 4] = 0
    token_ids = generator.integers(1, 250, (batch, time))
    return {"padding_mask": mask, "token_ids": token_ids.astype("int32")}


def _compare(form, path, given, expected):
    for parts, wanted in zip(given, expected):
        found = form.run(path, parts)
        if found is None:
            continue
        assert len(found) == len(wanted)
        for got, want in zip(found, wanted):
            assert got.shape == want.shape
            scale = max(1.0, np.abs(want).max())
            assert np.abs(got - want).max() < form.tolerance * scale


def _refuse(form, model, folder, sizes):
    """Expect an error of this package that says what to do instead."""
    with pytest.raises(RuntimeError, match=r"\. Load the model under"):
        form.write(model, folder, sizes)
    assert not list(folder.iterdir())


def every_model(quick, slow=()):
    """Every model, for a test of one format.

    Args:
        quick: names of the models that are tested with the rest; the others
            are tested weekly.
        slow: names of those that take minutes.
    """
    marks = dict.fromkeys(MODELS, pytest.mark.weekly)
    marks |= dict.fromkeys(slow, pytest.mark.slow)
    marks |= dict.fromkeys(quick, pytest.mark.rest)
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=marks[name]) for name in MODELS]
    )


# How Keras writes files.


def written_by_keras(format, ending, model, folder, sizes):
    path = folder / f"model{ending}"
    given = {}
    if sizes:
        model(sequences(4))
        shape = (*sizes, 3)
        given["input_signature"] = [
            keras.layers.InputSpec(shape=shape, dtype="float32")
        ]
    model.export(str(path), format=format, verbose=False, **given)
    return path


def of_torch_export(model, folder, sizes, text=ANY):
    import torch

    path = folder / "model.pt2"
    given = {}
    if _is_of_text(model, sizes):
        given = _sizes_of_text(model, text)
    elif sizes:
        shape = tuple(size or sample for size, sample in zip(sizes, (2, 9)))
        names = (torch.export.Dim("batch"), torch.export.Dim.DYNAMIC)
        given = {
            "input_signature": [
                keras.layers.InputSpec(shape=(*shape, 3), dtype="float32")
            ],
            "dynamic_shapes": {
                place: names[place]
                for place, size in enumerate(sizes)
                if size is None
            },
        }
    model.export(path, format="torch", verbose=False, **given)
    return path


def _is_of_text(model, sizes):
    """Whether a model is a language model's backbone."""
    # A `Sequential`, which is written with sizes, has no `input`.
    return sizes is None and isinstance(model.input, dict)


def _sizes_of_text(model, text):
    """Arguments of `export` that leave sizes of a backbone open."""
    import torch

    axes = {0: torch.export.Dim("batch")}
    if text == ANY:
        axes[1] = torch.export.Dim("time")
    # AOTInductor takes the inputs in this order, whatever their names.
    shape = {
        name: keras.InputSpec(shape=(2, 9), dtype="int32")
        for name in sorted(model.input)
    }
    return {
        "input_signature": [shape],
        "dynamic_shapes": [(dict.fromkeys(shape, axes),)],
    }


# The recipes of the guide.


@cache
def recipe(name):
    """The function of that name that the guide defines."""
    for _, code in pages.blocks(GUIDE):
        if f"def {name}(" in code:
            names = {}
            exec(compile(code, str(GUIDE), "exec"), names)
            return names[name]
    raise LookupError(f"{GUIDE} should define {name}")


def samples(model, sizes):
    """Tensors that a model is traced with, and their open axes."""
    import torch

    batch = {0: torch.export.Dim("batch", min=1, max=8)}
    if _is_of_text(model, sizes):
        shape = (2, SIZES[BATCH][0][1])
        # As `tokens` has them: ExecuTorch knows no names.
        tokens = {
            name: torch.ones(shape, dtype=torch.int32)
            for name in sorted(model.input)
        }
        return (tokens,), ((dict.fromkeys(tokens, batch),),)
    if sizes:
        shapes = [(sizes[0] or 2, sizes[1], 3)]
    else:
        shapes = [(2, *part.shape[1:]) for part in model.inputs]
    tensors = list(map(torch.zeros, shapes))
    is_open = not sizes or sizes[0] is None
    axes = [batch if is_open else None] * len(shapes)
    # A model takes any arguments, as a tuple.
    if sizes:
        return tuple(tensors), (tuple(axes),)
    return (tensors,), ((axes,),)


def of_executorch(model, folder, sizes):
    path = folder / "model.pte"
    path.write_bytes(recipe("to_executorch")(model, *samples(model, sizes)))
    return path


def of_core_ml(model, folder, sizes):
    recipe("to_core_ml")(model, *samples(model, sizes))


def of_inductor(model, folder, sizes):
    program = of_torch_export(model, folder, sizes, text=BATCH)
    return recipe("to_shared_library")(str(program), str(folder / "own.pt2"))


def of_jax_export(model, folder, sizes):
    path = folder / "model.jax"
    # Of a `Sequential`, the one input is not in a list.
    inputs = model.inputs[0] if sizes else model.input
    path.write_bytes(recipe("to_jax_export")(model, inputs))
    return path


# The formats' own runtimes.


def run_torch_export(path, given):
    import torch

    return _called(torch.export.load(path).module(), given)


def run_inductor(path, given):
    import torch

    return _called(torch._inductor.aoti_load_package(path), given)


def _called(program, given):
    import torch

    found = program(keras.tree.map_structure(torch.tensor, _argument(given)))
    found = found if isinstance(found, (list, tuple)) else [found]
    return [part.detach().numpy() for part in found]


def _argument(given):
    """The one argument of a model: an array, or several in a nest."""
    return given[0] if len(given) == 1 else given


def _in_a_row(given):
    """The arrays of a list, or of a dictionary in the order of its keys."""
    return keras.tree.flatten(given)


def run_executorch(path, given):
    import torch
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(path)
    method = program.load_method("forward")
    found = method.execute(list(map(torch.tensor, _in_a_row(given))))
    return [part.numpy() for part in found]


def run_onnx(path, given):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [part.name for part in session.get_inputs()]
    return session.run(None, dict(zip(names, _in_a_row(given))))


def run_openvino(path, given):
    import openvino

    options = {"INFERENCE_PRECISION_HINT": "f32"}
    program = openvino.compile_model(path, "CPU", options)
    found = program(_in_a_row(given))
    return [found[place] for place in range(len(program.outputs))]


def run_litert(path, given):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    run = interpreter.get_signature_runner()
    names = interpreter.get_signature_list()["serving_default"]["inputs"]
    found = run(**dict(zip(_in_order(names), _in_a_row(given))))
    return [found[f"output_{place}"] for place in range(len(found))]


def _in_order(names):
    """The inputs of a step, whose own comes before its states."""
    return sorted(names, key=lambda name: ("_state_" in name, name))


def run_saved_model(path, given):
    import tensorflow as tf

    # Kept as long as the call: it owns the weights.
    program = tf.saved_model.load(str(path))
    tensors = keras.tree.map_structure(tf.constant, _argument(given))
    found = program.serve(tensors)
    found = found if isinstance(found, (list, tuple)) else [found]
    return [part.numpy() for part in found]


def run_jax_export(path, given):
    from jax import export

    program = export.deserialize(path.read_bytes())
    found = program.call(_argument(given))
    found = found if isinstance(found, (list, tuple)) else [found]
    return [np.asarray(part) for part in found]


def run_nowhere(path, given):
    """What this machine has no runtime for."""


_OF_KERAS = partial(partial, written_by_keras)
SAVED_MODEL = {
    backend: Format(
        "SavedModel",
        backend,
        "TensorFlow",
        _OF_KERAS("tf_saved_model", ""),
        run_saved_model,
    )
    for backend in ("TensorFlow", "JAX")
}
LITERT = Format(
    "LiteRT",
    "TensorFlow",
    "LiteRT",
    _OF_KERAS("litert", ".tflite"),
    run_litert,
    # Its exponentials and square roots are approximate.
    tolerance=1e-4,
)
ONNX = Format(
    "ONNX", "PyTorch", "onnxruntime", _OF_KERAS("onnx", ".onnx"), run_onnx
)
ONNX_OF_JAX = Format(
    "ONNX",
    "JAX",
    "onnxruntime",
    _OF_KERAS("onnx", ".onnx"),
    run_onnx,
    text=NONE,
)
ONNX_OF_TENSORFLOW = Format(
    "ONNX",
    "TensorFlow",
    "onnxruntime",
    _OF_KERAS("onnx", ".onnx"),
    run_nowhere,
    whole=NONE,
    step=NONE,
    text=NONE,
)
LITERT_OF_TORCH = Format(
    "LiteRT",
    "PyTorch",
    "LiteRT",
    _OF_KERAS("litert", ".tflite"),
    run_nowhere,
    whole=NONE,
    step=NONE,
    text=NONE,
)
OPENVINO = Format(
    "OpenVINO",
    "PyTorch",
    "OpenVINO",
    _OF_KERAS("openvino", ".xml"),
    run_openvino,
)
TORCH_EXPORT = Format(
    "`.pt2`", "PyTorch", "PyTorch", of_torch_export, run_torch_export
)
INDUCTOR = Format(
    "`.pt2` of AOTInductor",
    "PyTorch",
    "PyTorch, from C++ too",
    of_inductor,
    run_inductor,
    whole=BATCH,
    text=BATCH,
)
EXECUTORCH = Format(
    "ExecuTorch",
    "PyTorch",
    "ExecuTorch",
    of_executorch,
    run_executorch,
    whole=BATCH,
    text=BATCH,
)
CORE_ML = Format(
    "Core ML",
    "PyTorch",
    "macOS, iOS",
    of_core_ml,
    run_nowhere,
    whole=BATCH,
    text=BATCH,
)
JAX_EXPORT = Format(
    "`jax.export`",
    "JAX",
    "JAX",
    of_jax_export,
    run_jax_export,
)
FORMATS = (
    SAVED_MODEL["TensorFlow"],
    SAVED_MODEL["JAX"],
    LITERT,
    LITERT_OF_TORCH,
    ONNX,
    ONNX_OF_JAX,
    ONNX_OF_TENSORFLOW,
    OPENVINO,
    TORCH_EXPORT,
    INDUCTOR,
    EXECUTORCH,
    CORE_ML,
    JAX_EXPORT,
)
