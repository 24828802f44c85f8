"""Shared libraries of AOTInductor, by the guide's recipe."""

import pytest
from support import formats

pytestmark = pytest.mark.filterwarnings("ignore")
# Each is compiled for a minute.
SLOW = [
    name for name in formats.MODELS if name not in ("lipschitz_rnn", "min_gru")
]


@formats.every_model((), slow=SLOW)
def test_a_file_of_a_whole_model_gives_its_outputs(name, tmp_path):
    formats.check_whole(formats.INDUCTOR, name, tmp_path)


@formats.every_model((), slow=SLOW)
def test_a_file_of_one_step_gives_its_outputs(name, tmp_path):
    formats.check_step(formats.INDUCTOR, name, tmp_path)


@pytest.mark.slow
def test_a_file_of_a_language_model_gives_its_outputs(tmp_path):
    formats.check_text(formats.INDUCTOR, tmp_path)
