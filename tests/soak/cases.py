"""A case is a number: it seeds everything that the case draws."""

import keras
import numpy as np

from soak import language_cases
from soak import layer_cases
from soak import model_cases
from soak import resumed_cases
from soak.report import Report

# What a case is about, and the share of cases that are.
KINDS = {
    "layer": (layer_cases.run, 0.7),
    "model": (model_cases.run, 0.25),
    "language": (language_cases.run, 0.03),
    "resumed": (resumed_cases.run, 0.02),
}


def run(number):
    """Run a case.

    Returns:
        `(kind, report, error)`: the case's kind; its `Report`; and `None`,
        `OutOfRange` for a case that its dtypes cannot hold, or the exception
        that it failed with.
    """
    keras.utils.set_random_seed(number)
    generator = np.random.default_rng(number)
    kind = generator.choice(
        list(KINDS), p=[share for _, share in KINDS.values()]
    )
    check, _ = KINDS[kind]
    report, error = Report(), None
    try:
        check(generator, report)
    except Exception as failure:
        error = failure
    keras.backend.clear_session()
    return str(kind), report, error
