"""The example that draws what the measures remember, run as by a user."""

import re

import lssl_measures as example
import pytest

pytestmark = pytest.mark.rest


def errors(output):
    """The printed errors, in percent, by the measure's title."""
    lines = re.findall(r"^(\w.*?) {2,}(\S+)%$", output, re.MULTILINE)
    return {title: float(error) for title, error in lines}


def run(folder, capsys, *options):
    example.main(["--output", str(folder), "--steps", "2000", *options])
    return capsys.readouterr().out


def test_it_prints_the_errors_and_writes_the_figure(tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    output = run(folder, capsys)
    plot = (folder / "lssl_measures.png").read_bytes()
    assert plot.startswith(b"\x89PNG")
    assert output.endswith(f"Wrote lssl_measures.png to {folder.resolve()}.\n")

    small = errors(output)
    assert list(small) == [title for title, *_ in example.MEASURES]
    for title, _, _, duration in example.MEASURES:
        assert 0 < small[title] < (15 if duration == 1.0 else 70)


def test_a_larger_state_remembers_more(tmp_path, capsys):
    small, large = (
        errors(run(tmp_path, capsys, "--state-size", str(size)))
        for size in (8, 40)
    )
    for title in small:
        assert large[title] < 0.8 * small[title]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--state-size", "257"],
            "--state-size: expected a whole number from 1 to 256, received 257",
        ),
        (["--state-size", "0"], "--state-size: expected a whole number from 1"),
        (["--state-size", "9.5"], "--state-size: invalid int value: '9.5'"),
        (["--steps", "-1"], "--steps: expected a whole number from 1 to"),
        (["--speed", "9"], "unrecognized arguments: --speed 9"),
        (["--output", __file__], f"{__file__}: expected a directory"),
    ],
)
def test_a_wrong_option_is_refused(arguments, expected, capsys):
    with pytest.raises(SystemExit) as stop:
        example.main(arguments)
    message = stop.value.code
    if message == 2:
        message = capsys.readouterr().err.strip().split("\n")[-1]
    assert expected in message
    assert "\n" not in message


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as stop:
        example.main(["--help"])
    assert stop.value.code == 0
    output = capsys.readouterr().out
    for option in ("state-size", "steps", "output"):
        assert f"--{option}" in output
