"""`python -m keras_linrec.kernels check`."""

from functools import partial

import pytest

from keras_linrec.kernels import device_check
from keras_linrec.kernels import registry
from keras_linrec.kernels.operations import causal_convolution
from keras_linrec.kernels.operations.structured import impulse_response
from keras_linrec.settings import KERNELS

pytestmark = pytest.mark.rest


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(device_check, "_LARGE", (2, 64, 8))
    sizes = {
        "linear_scan": (1, 7, 3),
        "impulse_response": (1, 2, 5, 7),
        "causal_convolution": (1, 7, 3, 2, 6),
    }
    monkeypatch.setattr(device_check, "_ODD", sizes)


def rows(printed):
    """The cells of each kernel's row, by name."""
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    cells = ([cell.strip() for cell in line.split("|")] for line in lines[2:])
    return {name: rest for _, name, *rest in cells}


def test_every_kernel_has_a_row_of_errors_and_a_share(small, capsys):
    assert device_check.check() == 0
    printed = capsys.readouterr().out
    assert {*rows(printed)} == {*KERNELS}
    *errors, milliseconds, share, _ = rows(printed)["sequential"]
    assert len(errors) == 5
    # A portable impulse response has fewer digits than a native one.
    assert all(float(error) < 1e-4 for error in errors)
    assert float(milliseconds) > 0 and share.endswith("%")
    assert "keras_linrec: " in printed and "device: " in printed


def test_a_wrong_kernel_is_named(small, fresh, capsys):
    kernel = registry.load("sequential")

    def doubled(*arguments):
        outputs, state = kernel.scan(*arguments)
        return tuple(2.0 * part for part in outputs), state

    assert registry._check("sequential")
    fresh.setitem(registry._loaded, "sequential", kernel._replace(scan=doubled))
    assert device_check.check() == 1
    found = rows(capsys.readouterr().out)
    assert "WRONG" in found["sequential"][1]
    assert not any("WRONG" in cell for cell in found["reference"])


def test_a_wrong_response_and_convolution_are_named(small, fresh, capsys):
    kernel = registry.load("sequential")
    assert registry._check("sequential")

    def doubled(function):
        return lambda *arguments: 2.0 * function(*arguments)

    plain = partial(impulse_response.impulse_response, kernel.scan)
    wrong = kernel._replace(
        impulse_response=doubled(plain),
        causal_convolution=doubled(causal_convolution.causal_convolution),
    )
    fresh.setitem(registry._loaded, "sequential", wrong)
    assert device_check.check() == 1
    cells = rows(capsys.readouterr().out)["sequential"]
    assert ["WRONG" in cell for cell in cells[:5]] == [1, 0, 1, 1, 0]
