"""The programs that are compiled for accelerators, by name.

Each is a function without arguments that returns a function of arrays and a
tuple of their shapes: results and the gradients of all arguments.
"""

from jax import ShapeDtypeStruct
from jax import numpy as jnp
from jax import tree
from jax import vjp

from keras_linrec import layers
from keras_linrec import models
from keras_linrec import ops
from keras_linrec.kernels.jax import pallas

PROGRAMS = {}
# Programs that are traced with JAX's float64 switched on.
WITH_FLOAT64 = set()
# Programs that exist on one target only.
ONLY_ON = {}


def differentiated(function):
    """Results of a function of arrays, and its gradients for ones."""

    def run(*arguments):
        results, pull_back = vjp(function, *arguments)
        return results, pull_back(tree.map(jnp.ones_like, results))

    return run


def shape(*sizes, dtype="float32"):
    return ShapeDtypeStruct(sizes, dtype)


def program(name, function, *arguments, target=None):
    """Add a function of arrays whose shapes are known."""
    PROGRAMS[name] = lambda: (differentiated(function), arguments)
    if target:
        ONLY_ON[name] = target


def also_with_float64(name):
    PROGRAMS[f"{name}, x64"] = PROGRAMS[name]
    WITH_FLOAT64.add(f"{name}, x64")


# The Pallas kernels.


def scan_shapes(batch, time, channels, parts, per_step, dtype="float32"):
    decay = (batch, time, channels) if per_step else (channels,)
    return [
        (shape(*sizes, dtype=dtype),) * parts
        for sizes in (decay, (batch, time, channels), (batch, channels))
    ]


for sizes in ((2, 1, 3), (3, 600, 300), (16, 4096, 256)):
    for parts, field in ((1, "real"), (2, "complex")):
        for per_step in (False, True):
            kind = "a decay per step" if per_step else "fixed decay"
            program(
                f"Pallas scan {sizes}, {field}, {kind}",
                pallas.scan,
                *scan_shapes(*sizes, parts, per_step),
            )
program(
    "Pallas scan (3, 600, 300), complex, a decay per step, resets",
    lambda resets, *arguments: pallas.scan(*arguments, resets=resets),
    shape(3, 600),
    *scan_shapes(3, 600, 300, 2, True),
)
also_with_float64("Pallas scan (3, 600, 300), complex, fixed decay")
program(
    "Pallas scan (3, 600, 300), complex, float64, x64",
    pallas.scan,
    *scan_shapes(3, 600, 300, 2, False, "float64"),
)
WITH_FLOAT64.add("Pallas scan (3, 600, 300), complex, float64, x64")


# The public operations.


def pairs(*sizes):
    return (shape(*sizes),) * 2


for batch, time, channels in (
    (16, 1024, 256),
    (0, 64, 4),
    (2, 64, 0),
    (2, 64, 1),
    (2, 64, 300),
    (1, 2**20, 16),
):
    sequence = shape(batch, time, channels)
    program(
        f"linear_scan ({batch}, {time}, {channels})",
        ops.linear_scan,
        shape(channels),
        sequence,
    )
also_with_float64("linear_scan (2, 64, 300)")
program(
    "complex_linear_scan (16, 1024, 256)",
    ops.complex_linear_scan,
    pairs(256),
    pairs(16, 1024, 256),
)
for name, options in (("", {}), (", final state", {"keep_all": False})):
    program(
        f"projected_scan (32, 784, 128), 256 complex states{name}",
        lambda *given, options=options: ops.projected_scan(*given, **options)[
            0 if not options else 1
        ],
        pairs(256),
        shape(32, 784, 128),
        pairs(128, 256),
        pairs(256, 128),
    )
program(
    "nonlinear_scan (8, 256, 64)",
    ops.nonlinear_scan,
    shape(8, 256, 32),
    shape(32, 64),
    shape(64, 64),
    shape(64),
)
program(
    "causal_convolution (8, 1024, 64)",
    ops.causal_convolution,
    shape(8, 1024, 64),
    shape(64, 1, 1024),
)
program("rotation_matrix (8, 32, 32)", ops.rotation_matrix, shape(8, 32, 32))
program("reflection_product (128, 16)", ops.reflection_product, shape(128, 16))
program(
    "unitary_matrix (128, 16)", ops.unitary_matrix, shape(128, 16), shape(64)
)
program(
    "symmetric_skew (64, 64)",
    lambda matrix: ops.symmetric_skew(matrix, 0.75, 0.001),
    shape(64, 64),
)
program("canonical_input (4, 64)", ops.canonical_input, pairs(4, 64))
program(
    "leja_order (4, 64)",
    # Indices have no gradient, the nodes in their order do.
    lambda nodes: jnp.take_along_axis(nodes[0], ops.leja_order(nodes), -1),
    pairs(4, 64),
)

steps = 4, 2048, 8
program(
    "matrix_scan (4, 2048, 8, 64, 64)",
    lambda queries, keys, values, log_decay, strength: ops.matrix_scan(
        queries,
        keys,
        values,
        log_decay=log_decay,
        erase=strength,
        write=strength,
    ),
    *(shape(*steps, 64) for _ in range(3)),
    *(shape(*steps) for _ in range(2)),
)


# Layers and models.


def layer_program(name, make, sizes, dtype="float32"):
    """Add the outputs of a layer or model, and all gradients."""

    def build():
        layer = make()
        layer.build(sizes)
        weights = [
            shape(*variable.shape, dtype=variable.dtype)
            for variable in layer.trainable_variables
        ]
        others = [variable.value for variable in layer.non_trainable_variables]

        def outputs(weights, inputs):
            return layer.stateless_call(weights, others, inputs)[0]

        return differentiated(outputs), (weights, shape(*sizes, dtype=dtype))

    PROGRAMS[name] = build


UNITS = {
    "LSSL": lambda **given: layers.LSSL(state_size=64, **given),
    "RotRNN": layers.RotRNN,
    "LRU": layers.LRU,
    "S5": layers.S5,
    "S4D": layers.S4D,
    "LinOSS": layers.LinOSS,
    "MinGRU": layers.MinGRU,
    "MinLSTM": layers.MinLSTM,
    "RGLRU": layers.RGLRU,
    "DeltaNet": layers.DeltaNet,
    "Mamba2": layers.Mamba2,
    "LinearDynamicalSystem": layers.LinearDynamicalSystem,
    "LDStack": layers.LDStack,
    "OrthogonalRNN": lambda **given: layers.OrthogonalRNN(
        64, return_sequences=True, **given
    ),
    "LipschitzRNN": lambda **given: layers.LipschitzRNN(
        64, return_sequences=True, **given
    ),
    "AntisymmetricRNN": lambda **given: layers.AntisymmetricRNN(
        64, return_sequences=True, **given
    ),
}
for name, make in UNITS.items():
    sizes = (32, 784, 64)
    layer_program(f"{name} {sizes}", make, sizes)
    also_with_float64(f"{name} {sizes}")
    layer_program(
        f"{name} {sizes}, mixed_bfloat16",
        lambda make=make: make(dtype="mixed_bfloat16"),
        sizes,
        "bfloat16",
    )
    layer_program(f"{name} (0, 16, 3)", make, (0, 16, 3))
    layer_program(f"{name} (2, 16, 1)", make, (2, 16, 1))
    layer_program(f"{name} (2, 64, 300)", make, (2, 64, 300))
    layer_program(f"{name} (1, {2**20}, 8)", make, (1, 2**20, 8))
# XLA had not compiled it for a TPU after 20 minutes.
ONLY_ON[f"LinOSS (1, {2**20}, 8)"] = "cuda"
for make in (models.SequenceClassifier, models.SequenceRegressor):
    name = make.__name__

    def make_model(make=make):
        return make(10, num_layers=2, units=64, unit="rotrnn")

    for sizes in ((32, 784, 1), (0, 16, 1), (2, 64, 300), (1, 2**20, 1)):
        layer_program(f"{name} {sizes}", make_model, sizes)
    also_with_float64(f"{name} (32, 784, 1)")
