"""Exported files contain no native code, however they were traced."""

import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from support.needs_native import require_native
from support.units import UNITS
from support.units import array
from support.units import sequences

import keras_linrec
from keras_linrec import config
from keras_linrec import kernels
from keras_linrec import ops
from keras_linrec import settings

BACKEND = keras.backend.backend()
under = {
    name: pytest.mark.skipif(name != BACKEND, reason=f"a way of {name}'s")
    for name in ("jax", "tensorflow", "torch")
}
# The target of a call of the core in an XLA program.
CORE = "custom_call @keras_linrec"
DECAY = np.full(3, 0.5, "float32")


@pytest.fixture(autouse=True)
def native():
    require_native()


def outputs_of(inputs):
    return ops.linear_scan(DECAY, inputs)[0]


def test_no_stack_frames_are_inspected():
    folders = keras_linrec.__file__, kernels.__file__
    for path in (p for f in folders for p in Path(f).parent.rglob("*.py")):
        text = path.read_text()
        assert "_getframe" not in text and "f_locals" not in text, path


@under["jax"]
@pytest.mark.parametrize("name", ["scan", "lssl", "rotrnn", "lipschitz_rnn"])
def test_a_function_that_was_called_before_exports_for_every_platform(name):
    import jax

    inputs, function = sequences(20), outputs_of
    if name != "scan":
        function = UNITS[name]()
        function(inputs)
    function = jax.jit(function)
    gradient = jax.jit(jax.grad(lambda inputs: (function(inputs) ** 2).sum()))
    for run in (function, gradient):
        expected = run(inputs)
        assert CORE in run.lower(inputs).as_text()
        exported = jax.export.export(run, platforms=("cpu", "cuda", "tpu"))
        exported = exported(inputs)
        assert CORE not in exported.mlir_module()
        loaded = jax.export.deserialize(exported.serialize())
        assert np.allclose(loaded.call(inputs), expected, atol=1e-5)


@under["jax"]
def test_the_scope_is_part_of_a_programs_cache_key():
    import jax

    function, inputs = jax.jit(outputs_of), sequences(20)
    expected = function(inputs)
    with config.portable_kernels():
        assert "keras_linrec" not in str(jax.make_jaxpr(outputs_of)(inputs))
        assert CORE not in function.lower(inputs).as_text()
        assert np.allclose(function(inputs), expected, atol=1e-6)
    assert CORE in function.lower(inputs).as_text()


@under["jax"]
def test_programs_for_another_platform_contain_its_code():
    """A program that is lowered for a GPU has no call of the C++ core."""
    import jax

    lowered = (
        jax.jit(outputs_of)
        .trace(sequences(20))
        .lower(lowering_platforms=("cuda",))
    )
    assert CORE not in lowered.as_text()


@under["tensorflow"]
def test_functions_that_tensorflow_traces_while_saving_are_portable(tmp_path):
    import tensorflow as tf

    signature = [tf.TensorSpec((None, None, 3))]
    module, called = tf.Module(), tf.Module()
    module.run = tf.function(outputs_of, signature, autograph=False)
    called.run = tf.function(outputs_of, signature, autograph=False)
    with config.portable_kernels():
        called.run(sequences(20))
    for index, part in enumerate((module, called)):
        folder = str(tmp_path / str(index))
        tf.saved_model.save(part, folder, part.run)
        loaded = tf.saved_model.load(folder)
        graph = loaded.signatures["serving_default"].graph.as_graph_def()
        assert "KerasLinrec" not in str(graph)
        assert np.allclose(
            loaded.run(sequences(20)), outputs_of(sequences(20)), atol=1e-6
        )


@under["torch"]
def test_torch_export_keeps_operators_outside_the_scope():
    import torch

    class Scan(torch.nn.Module):
        def forward(self, inputs):
            return outputs_of(inputs)

    inputs = torch.tensor(sequences(20))
    program = torch.export.export(Scan(), (inputs,), strict=False)
    assert "keras_linrec" in str(program.graph)
    with config.portable_kernels():
        program = torch.export.export(Scan(), (inputs,), strict=False)
    assert "keras_linrec" not in str(program.graph)
    assert torch.allclose(program.module()(inputs), outputs_of(inputs))


@pytest.mark.filterwarnings("ignore")
@under["torch"]
@pytest.mark.parametrize("name", ["linear_dynamical_system"])
@pytest.mark.rest
def test_a_loop_unrolled_for_one_size_fails_at_others(name, tmp_path):
    """PyTorch's older exporter, with dynamic axes that a loop cannot have."""
    import onnxruntime
    import torch

    layer, file = UNITS[name](), str(tmp_path / "layer.onnx")
    inputs = sequences(4)
    expected = array(layer(inputs))

    torch.onnx.export(
        layer,
        (torch.tensor(inputs),),
        file,
        dynamo=False,
        input_names=["inputs"],
        dynamic_axes={"inputs": {0: "batch", 1: "time"}},
    )
    session = onnxruntime.InferenceSession(file)
    (got,) = session.run(None, {"inputs": inputs})
    assert np.allclose(got, expected, atol=1e-5)
    for batch, time in ((2, 1), (1, 4), (4, 2), (2, 5)):
        with pytest.raises(Exception, match="node|shape|dimension"):
            session.run(None, {"inputs": sequences(time, batch=batch)})


def test_the_scope_belongs_to_a_thread():
    names = []

    def look():
        (decision,) = kernels.explain("linear_scan", (2, 9, 4))
        names.append(decision.kernel)

    with config.portable_kernels():
        look()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    look()
    assert names == [kernels.registry.portable(), "native", "native"]


def test_the_scope_ends_with_an_error():
    with pytest.raises(KeyError), config.portable_kernels():
        raise KeyError
    assert settings.current_export() is None
    assert np.allclose(array(outputs_of(np.ones((1, 2, 3))))[0, 1], 1.5)
