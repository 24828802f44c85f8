"""Numbers that float32 does not hold are refused where zero is."""

import keras
import numpy as np
import pytest

from keras_linrec.initializers import DecayLog
from keras_linrec.layers import LRU
from keras_linrec.layers import LSSL
from keras_linrec.layers import LipschitzRNN
from keras_linrec.models import SequenceClassifier

SUBNORMAL = "at least 1.18e-38.*Received: {}={}"


@pytest.mark.parametrize("number", [1e-46, 1e-320, 1e-39])
def test_a_rescale_that_is_zero_in_float32_is_refused(number):
    wanted = SUBNORMAL.format("step_rescale", number)
    layer = LSSL(2, state_size=4)
    config = layer.get_config()
    model = SequenceClassifier(2, 1, 4)
    steps = np.ones((1, 3, 2), "float32")

    def set_attribute():
        layer.step_rescale = number

    for use in (
        lambda: LSSL(2, step_rescale=number),
        lambda: LSSL.from_config({**config, "step_rescale": number}),
        set_attribute,
        lambda: layer(steps, step_rescale=number),
        lambda: model.with_step_rescale(number),
    ):
        # Keras makes a TypeError of what a configuration raises.
        with pytest.raises((ValueError, TypeError), match=f"(?s){wanted}"):
            use()
    # A tensor may hold it already as zero.
    with pytest.raises(ValueError, match="`step_rescale` should be"):
        layer(steps, step_rescale=keras.ops.convert_to_tensor(number))
    layer.step_rescale = 2e-38


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (LSSL, "dt_min"),
        (LSSL, "dt_max"),
        (LipschitzRNN, "step_size"),
        (LRU, "r_min"),
        (LRU, "theta_max"),
    ],
)
def test_so_are_other_numbers(make, name):
    with pytest.raises(ValueError, match=SUBNORMAL.format(name, 5e-324)):
        make(2, **{name: 5e-324})


def test_so_are_numbers_of_initializers():
    with pytest.raises(ValueError, match=SUBNORMAL.format("gamma_min", 5e-324)):
        DecayLog(gamma_min=5e-324, gamma_max=0.5)
