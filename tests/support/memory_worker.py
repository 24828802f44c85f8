"""What models of named units cost, and the memory of a training step.

Prints for each unit the bytes that `models.cost` expects to be kept, and those
that a training step adds to the process's peak; `null` without such a system.
"""

import json
import sys

import keras
from support import ROOT

from keras_linrec.models import SequenceClassifier
from keras_linrec.models import cost

sys.path.append(str(ROOT / "benchmarks"))

from common import peak_memory
from common import training_step

BATCH, TIME = 4, 6000


def measured(unit):
    model = SequenceClassifier(
        5,
        num_layers=2,
        units=32,
        unit=unit,
        unit_arguments={"units": 32},
    )
    sequences = keras.random.normal((BATCH, TIME, 3), seed=0)
    step = training_step(model, sequences)
    step()  # compiles
    peak = peak_memory(step)
    expected = cost(model, BATCH, TIME).kept_bytes
    return expected, peak and 2**20 * peak


print(json.dumps({unit: measured(unit) for unit in sys.argv[1:]}))
