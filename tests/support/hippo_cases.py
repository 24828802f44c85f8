"""Measures of HiPPO, and functions that their tests share."""

import numpy as np
from definitions import lssl as definition
from scipy.special import eval_jacobi
from scipy.special import roots_jacobi

from keras_linrec.ops.structured.hippo import hippo
from keras_linrec.ops.structured.hippo_measures import MEASURES

# Pairs of `order` and `tilt`.
LAGUERRE = [(0.0, 0.0), (0.0, 1.0), (0.5, 1.0), (-0.5, 0.5), (1.5, 2.0)]
# Measures with a structured form, and those without.
STRUCTURED = [
    *((measure, {}) for measure in MEASURES),
    *(
        ("generalized_laguerre", {"order": order, "tilt": tilt})
        for order, tilt in LAGUERRE
    ),
    ("gegenbauer", {"order": 0.5}),
    ("jacobi", {}),
    ("jacobi", {"beta": 0.5}),
    ("jacobi", {"beta": 3}),
]
DENSE_ONLY = [
    ("chebyshev", {}),
    ("chebyshev", {"kind": 2}),
    ("gegenbauer", {"order": 0.2}),
    ("gegenbauer", {"order": 2.0}),
    ("jacobi", {"alpha": -0.5, "beta": 1.0}),
    ("jacobi", {"alpha": 1.5, "beta": -0.5}),
    ("jacobi", {"alpha": 0.0, "beta": -0.5}),
]


def system(measure, size, **parameters):
    parts = hippo(measure, size, **parameters)
    names = [f"transition_{part}" for part in "pdqt"]
    return definition.transition(dict(zip(names, parts))), parts.b


def jacobi(z, size, alpha, beta):
    """Orthonormal polynomials (size, points); the measure's integral is 1."""
    nodes, weights = roots_jacobi(size + 2, alpha, beta)
    rows = []
    for n in range(size):
        square = eval_jacobi(n, alpha, beta, nodes) ** 2
        norm = (weights * square).sum() / weights.sum()
        rows.append(eval_jacobi(n, alpha, beta, z) / np.sqrt(norm))
    return np.array(rows)
