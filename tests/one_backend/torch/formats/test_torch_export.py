"""Programs of `torch.export`."""

import pytest
from support import formats

pytestmark = pytest.mark.filterwarnings("ignore")


@formats.every_model(("lipschitz_rnn", "lssl"), slow=formats.AT_ONCE)
def test_a_file_of_a_whole_model_gives_its_outputs(name, tmp_path):
    formats.check_whole(formats.TORCH_EXPORT, name, tmp_path)


@formats.every_model(("lru", "lssl"))
def test_a_file_of_one_step_gives_its_outputs(name, tmp_path):
    formats.check_step(formats.TORCH_EXPORT, name, tmp_path)


@pytest.mark.weekly
def test_a_file_of_a_language_model_gives_its_outputs(tmp_path):
    formats.check_text(formats.TORCH_EXPORT, tmp_path)
