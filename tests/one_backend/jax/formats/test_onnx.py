"""ONNX files from JAX, in onnxruntime."""

import pytest
from support import formats

pytestmark = pytest.mark.filterwarnings("ignore")


@formats.every_model(("lru", "lipschitz_rnn", "causal_convolution"))
def test_a_file_of_a_whole_model_gives_its_outputs(name, tmp_path):
    formats.check_whole(formats.ONNX_OF_JAX, name, tmp_path)


@formats.every_model(("lru", "lssl"))
def test_a_file_of_one_step_gives_its_outputs(name, tmp_path):
    formats.check_step(formats.ONNX_OF_JAX, name, tmp_path)


@pytest.mark.rest
def test_a_file_of_a_language_model_is_refused(tmp_path):
    formats.check_text(formats.ONNX_OF_JAX, tmp_path)
