"""`initializers.HiPPO` fills weights with the matrices of its measure."""

import keras
import numpy as np
import pytest
from support.hippo_cases import DENSE_ONLY
from support.hippo_cases import STRUCTURED

from keras_linrec.initializers import HiPPO
from keras_linrec.ops.structured.hippo import hippo
from keras_linrec.ops.structured.hippo import hippo_matrices


@pytest.mark.parametrize(
    ("measure", "parameters"), [STRUCTURED[0], STRUCTURED[5], DENSE_ONLY[4]]
)
def test_the_initializer_fills_weights_of_any_leading_shape(
    measure, parameters
):
    matrix, vector = hippo_matrices(measure, 5, **parameters)
    for shape in ((5, 5), (3, 5, 5), (2, 3, 5, 5)):
        got = HiPPO(measure, **parameters)(shape)
        assert tuple(got.shape) == shape
        assert keras.backend.standardize_dtype(got.dtype) == "float32"
        got = keras.ops.convert_to_numpy(got)
        assert np.allclose(got, np.broadcast_to(matrix, shape), rtol=1e-6)
    for shape in ((5,), (2, 3, 5)):
        got = HiPPO(measure, part="input", **parameters)(shape, "bfloat16")
        assert keras.backend.standardize_dtype(got.dtype) == "bfloat16"
        got = keras.ops.convert_to_numpy(keras.ops.cast(got, "float32"))
        assert np.allclose(got, np.broadcast_to(vector, shape), rtol=0.01)


def test_the_initializer_has_the_structured_form_where_there_is_one():
    initializer = HiPPO("generalized_laguerre", order=0.5, tilt=2.0)
    expected = hippo("generalized_laguerre", 6, order=0.5, tilt=2.0)
    for got, part in zip(initializer.structured(6), expected):
        assert np.array_equal(got, part)
    with pytest.raises(ValueError, match="Received: measure=chebyshev, kind=1"):
        HiPPO("chebyshev").structured(6)


def test_the_initializer_is_read_back_from_its_config():
    initializer = HiPPO("generalized_laguerre", part="input", order=0.5)
    assert keras.saving.get_registered_name(HiPPO) == "keras_linrec>HiPPO"
    config = keras.initializers.serialize(initializer)
    other = keras.initializers.deserialize(config)
    assert other.get_config() == {
        "measure": "generalized_laguerre",
        "part": "input",
        "order": 0.5,
        "tilt": 1.0,
    }
    assert np.array_equal(
        keras.ops.convert_to_numpy(initializer((2, 4))),
        keras.ops.convert_to_numpy(other((2, 4))),
    )


def test_the_initializer_names_a_wrong_argument():
    for arguments, expected in (
        ({"part": "output"}, "`part` .* Received: part=output"),
        ({"measure": "leg"}, "`measure` .* Received: measure=leg"),
        ({"order": 1.0}, "Received: order=1.0"),
    ):
        with pytest.raises(ValueError, match=expected):
            HiPPO(**arguments)
    for part, shape in (
        ("transition", (5,)),
        ("transition", (5, 4)),
        ("input", ()),
    ):
        with pytest.raises(ValueError, match="`shape` .* Received: shape="):
            HiPPO(part=part)(shape)
