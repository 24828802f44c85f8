"""Every linear unit, and LSSL, learns what no linear model can: pitches."""

import keras
import numpy as np
import pytest

from keras_linrec.models import SequenceClassifier
from keras_linrec.models.units import UNITS
from keras_linrec.models.units import is_linear

pytestmark = [pytest.mark.rest, pytest.mark.weekly("jax", "tensorflow")]

STEPS = 200
RADIANS_PER_STEP = np.array([0.1, 0.2, 0.3])


def tones(count, seed):
    """Tones of random phase in noise, (count, steps, 1), and which they are."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(3, size=count)
    phases = generator.uniform(0, 2 * np.pi, (count, 1))
    angles = RADIANS_PER_STEP[labels, None] * np.arange(STEPS) + phases
    noise = generator.normal(0, 0.5, angles.shape)
    return (np.sin(angles) + noise).astype("float32")[:, :, None], labels


# Neither the mean nor the last output of a linear system says which tone it
# was: over all phases the mean of a sine is zero, for every pitch.
@pytest.mark.parametrize(
    "unit",
    ["lssl", *(name for name in UNITS if is_linear(UNITS[name](8)))],
)
def test_three_tones_are_told_apart(unit):
    keras.utils.set_random_seed(0)
    model = SequenceClassifier(3, num_layers=2, units=16, unit=unit)
    model.compile(
        keras.optimizers.Adam(5e-3),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(*tones(512, seed=0), batch_size=32, epochs=5, verbose=0)
    _, accuracy = model.evaluate(*tones(200, seed=1), verbose=0)
    assert accuracy > 0.95
