"""ExecuTorch programs, by the guide's recipe."""

import pytest
from support import formats

pytestmark = pytest.mark.filterwarnings("ignore")


@formats.every_model(("lipschitz_rnn",))
def test_a_file_of_a_whole_model_gives_its_outputs(name, tmp_path):
    formats.check_whole(formats.EXECUTORCH, name, tmp_path)


@formats.every_model(("lru",))
def test_a_file_of_one_step_gives_its_outputs(name, tmp_path):
    formats.check_step(formats.EXECUTORCH, name, tmp_path)


@pytest.mark.weekly
def test_a_file_of_a_language_model_gives_its_outputs(tmp_path):
    formats.check_text(formats.EXECUTORCH, tmp_path)
