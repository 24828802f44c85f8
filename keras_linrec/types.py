"""The types of arguments, for editors and type checkers; nothing reads them.

Tensors are of any kind: of NumPy, of the backend, or Keras' symbolic ones.
Counts and numbers are Python's here; the checks take NumPy's scalars too.
"""

import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Literal
from typing import TypedDict

import keras
import numpy as np

if sys.version_info >= (3, 11):
    from typing import Self as Self
    from typing import Unpack as Unpack
else:
    # Which Keras' dependencies bring.
    from typing_extensions import Self as Self
    from typing_extensions import Unpack as Unpack

Tensor = Any
Shape = Sequence[int | None]
Numbers = Sequence[float] | np.ndarray[Any, Any]
# A name, a serialized object, or an object that is called.
Identifier = str | Mapping[str, Any] | Callable[..., Any] | None
Seed = int | keras.random.SeedGenerator | None
Loss = str | Callable[..., Any] | None

# The first leaves the choice to the package.
Kernel = Literal["auto", "native", "associative", "sequential", "reference"]
Solver = Literal["euler", "rk2", "rk4"]
Measure = Literal[
    "legs",
    "legt",
    "lagt",
    "generalized_laguerre",
    "chebyshev",
    "gegenbauer",
    "jacobi",
]
Parameterization = Literal[
    "standard", "unit", "hinge", "log_polar", "log_polar_hinge"
]
InitialEigenvalues = (
    Literal["polynomial", "uniform", "low_discrepancy", "chebyshev"]
    | Sequence[complex]
    | Sequence[Sequence[complex]]
    | np.ndarray[Any, Any]
)
Pooling = Literal["mean", "max", "last"] | None
Normalization = Literal["layer", "rms", "batch"]
UnitName = Literal[
    "lssl",
    "rotrnn",
    "lru",
    "s5",
    "s4d",
    "linoss",
    "linear_dynamical_system",
    "ldstack",
    "orthogonal_rnn",
    "lipschitz_rnn",
    "antisymmetric_rnn",
    "min_gru",
    "min_lstm",
    "rglru",
    "delta_net",
    "mamba2",
]
# A name or a layer, or one for each block. For mypy, which knows no types of
# Keras, a layer of Keras would be anything.
Unit = UnitName | Callable[..., Any] | Sequence[UnitName | Callable[..., Any]]


class LayerArguments(TypedDict, total=False):
    """What every layer takes beside its own arguments, as Keras' do."""

    name: str | None
    dtype: Any
    trainable: bool
    activity_regularizer: Identifier
