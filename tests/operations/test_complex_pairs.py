"""Numbers as tuples of tensors, against NumPy."""

import keras
import numpy as np
import pytest
from support.autodiff import relative_error
from support.units import array

from keras_linrec import complex_pairs

FIELDS = pytest.mark.parametrize("is_complex", [False, True])

# The same functions for NumPy numbers, by name.
FUNCTIONS = {
    "multiply": lambda a, b: a * b,
    "multiply_add": lambda a, b, c: a * b + c,
    "conjugate": np.conj,
    "reciprocal": lambda a: 1 / a,
    "adjoint": lambda a: np.conj(np.swapaxes(a, -1, -2)),
}


def numbers(is_complex, count=1, shape=(2, 3, 3)):
    generator = np.random.default_rng(0)
    real, imag = generator.standard_normal((2, count, *shape))
    return list(real + 1j * imag if is_complex else real)


def parts(given, is_complex):
    pair = (given.real, given.imag) if is_complex else (given,)
    return tuple(
        keras.ops.convert_to_tensor(part.astype("float32")) for part in pair
    )


def joined(got, is_complex):
    assert len(got) == 1 + is_complex
    got = [array(part) for part in got]
    return got[0] + 1j * got[1] if is_complex else got[0]


@FIELDS
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_numpys(name, is_complex):
    define = FUNCTIONS[name]
    count = 1 if define is np.conj else define.__code__.co_argcount
    given = numbers(is_complex, count)
    run = getattr(complex_pairs, name)
    got = run(*(parts(number, is_complex) for number in given))
    assert relative_error(joined(got, is_complex), define(*given)) < 1e-6


@FIELDS
def test_carried_is_a_product_but_zero_where_the_state_is_zero(is_complex):
    product, state, addend = numbers(is_complex, 3, (4,))
    expected = product * state
    product[1], state[1], expected[1] = np.inf, 0.0, 0.0
    given = [parts(part, is_complex) for part in (product, state, addend)]
    got = complex_pairs.carried(*given[:2], keras.ops.where)
    assert relative_error(joined(got, is_complex), expected) < 1e-6
    got = complex_pairs.carried_add(*given, keras.ops.where)
    assert relative_error(joined(got, is_complex), expected + addend) < 1e-6


@FIELDS
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_powers_are_numpys(count, is_complex):
    (given,) = numbers(is_complex, shape=(2, 3))
    given = given / np.abs(given)
    got = complex_pairs.powers(parts(given, is_complex), count)
    expected = given[:, None] ** np.arange(count)[:, None]
    assert relative_error(joined(got, is_complex), expected) < 1e-5


def test_no_unneeded_power_is_computed():
    # The square of the last one would be infinite.
    (got,) = complex_pairs.powers((keras.ops.full((1,), 1e15),), 3)
    assert np.allclose(array(got)[:, 0], [1.0, 1e15, 1e30])
