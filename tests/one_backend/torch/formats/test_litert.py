"""LiteRT files from PyTorch are refused."""

import pytest
from support import formats

pytestmark = pytest.mark.filterwarnings("ignore")


@formats.every_model(("lru", "classifier"))
def test_a_file_of_a_whole_model_is_refused(name, tmp_path):
    formats.check_whole(formats.LITERT_OF_TORCH, name, tmp_path)


@formats.every_model(("lru",))
def test_a_file_of_one_step_is_refused(name, tmp_path):
    formats.check_step(formats.LITERT_OF_TORCH, name, tmp_path)


@pytest.mark.rest
def test_a_file_of_a_language_model_is_refused(tmp_path):
    formats.check_text(formats.LITERT_OF_TORCH, tmp_path)
