"""How far whole layers are from their definitions, as sequences get longer.

    KERAS_BACKEND=torch python tests/soak/lengths.py

prints, for each unit of `tests/support/units.py` with its small arguments, the
largest error of outputs over one row of 2^10 to 2^20 steps, relative to the
largest output, and the same over the first 1,000 steps, relative to the largest
of those: numbers that `docs/guides/promises.md` rests on. The definitions are
loops in float64; 2^20 steps of all units take half an hour. `--longest 17` ends
at 2^17.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import keras
from support import units
from support.autodiff import relative_error

FIRST = 1000


def errors_of(unit, form, exponents):
    """Two errors for each length."""
    keras.utils.set_random_seed(0)
    layer = unit(**form)
    longest = units.sequences(2 ** max(exponents), batch=1, features=1)
    layer.build(longest.shape)
    expected = unit.defined(
        form, units.weights_of(layer), longest.astype("float64")
    )[0]
    for exponent in exponents:
        # A layer that reads forwards depends on no later step.
        inputs = longest[:, : 2**exponent]
        got = units.array(layer(inputs))
        part = expected[:, : 2**exponent]
        yield (
            relative_error(got, part),
            relative_error(got[:, :FIRST], part[:, :FIRST]),
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longest", type=int, default=20)
    parser.add_argument("--units", nargs="+", default=[*units.UNITS])
    options = parser.parse_args()
    exponents = range(10, options.longest + 1)
    print(keras.backend.backend(), *(f"2^{one}" for one in exponents), sep="\t")
    for name in options.units:
        rows = zip(*errors_of(units.UNITS[name], {}, exponents))
        for title, row in zip((name, "  its beginning"), rows):
            print(title, *(f"{one:.0e}" for one in row), sep="\t", flush=True)


if __name__ == "__main__":
    main()
