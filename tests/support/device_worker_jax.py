"""The JAX worker of `test_devices`: results of eight devices, as JSON.

python -m support.device_worker_jax [more]
"""

import json
import os
import re
import sys
from functools import partial

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
)

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from support.device_model import FEATURES
from support.device_model import UNITS
from support.device_model import build
from support.device_model import train

from keras_linrec import config
from keras_linrec import kernels
from keras_linrec import ops
from keras_linrec.layers import S5
from keras_linrec.layers import LinOSS


def mesh_of(**axes):
    return keras.distribution.DeviceMesh(tuple(axes.values()), list(axes))


class SharedTime(keras.distribution.ModelParallel):
    """Shards some kernels, the rows and the time."""

    def __init__(self, mesh):
        layouts = keras.distribution.LayoutMap(mesh)
        layouts[".*rot_rnn/input_kernel"] = (None, None, "model")
        layouts[".*rot_rnn/output_kernel"] = ("model", None)
        layouts[".*modal/input_kernel"] = (None, "model")
        layouts[".*/kernel"] = (None, "model")
        super().__init__(layout_map=layouts, batch_dim_name="batch")

    def get_data_layout(self, data_shape):
        axes = ["batch", "time", None][: len(data_shape)]
        return keras.distribution.TensorLayout(axes, self.device_mesh)


def data_parallel():
    found = {"one": train(build(kept=False))}
    with keras.distribution.DataParallel().scope():
        found["data"] = train(build(kept=False))
    return found


def losses(model):
    found = {"one": train(model)}
    mesh = mesh_of(batch=2, model=2, time=2)
    scope = config.sequence_parallel(mesh, batch_axis="batch")
    with SharedTime(mesh).scope(), scope:
        model = build(kept=False)
        found["all"] = train(model)
    kernel = model.get_layer("rot_rnn").output_kernel.value
    found["rows of a kernel"] = kernel.addressable_data(0).shape[0]
    return found


# The scans.


def numbers(*shapes):
    generator = np.random.default_rng(0)
    return [
        jnp.asarray(generator.uniform(-0.9, 0.9, shape), "float32")
        for shape in shapes
    ]


def linear(per_step, time, reverse, state):
    sequence = (2, time, 3)
    arguments = numbers(sequence if per_step else (3,), sequence, (2, 3))

    def scan(decay, inputs, initial_state):
        initial_state = initial_state if state else None
        return ops.linear_scan(decay, inputs, initial_state, reverse)

    return scan, arguments


def complex_linear(per_step, time, reverse, state):
    sequence = (2, 2, time, 3)
    arguments = numbers(sequence if per_step else (2, 3), sequence, (2, 2, 3))

    def scan(decay, inputs, initial_state):
        initial_state = tuple(initial_state) if state else None
        return ops.complex_linear_scan(
            tuple(0.7 * decay), tuple(inputs), initial_state, reverse
        )

    return scan, arguments


def projected(per_step, time, reverse, state, keep_all=True):
    decay = (2, 2, time, 3) if per_step else (2, 3)
    arguments = numbers(
        *(decay, (2, time, 4), (2, 4, 3), (2, 3, 5), (2, 2, 3), (4, 5))
    )

    def scan(decay, inputs, into, out, initial_state, feedthrough):
        outputs, final_state = ops.projected_scan(
            *(tuple(0.7 * decay), inputs, tuple(into), tuple(out)),
            tuple(initial_state) if state else None,
            reverse,
            keep_all=keep_all,
            feedthrough=feedthrough,
        )
        return [] if outputs is None else outputs, final_state

    return scan, arguments


SCANS = {
    "fixed, reverse, uneven": linear(False, 19, True, True),
    "complex, per step, uneven": complex_linear(True, 19, False, True),
    "projected": projected(False, 16, False, True),
    "projected, last": projected(False, 520, True, False, keep_all=False),
    "projected, a single step": projected(False, 1, False, True),
}
# These take too long for every run.
MORE_SCANS = {
    "fixed": linear(False, 16, False, False),
    "per step, reverse": linear(True, 16, True, True),
    "complex": complex_linear(False, 16, False, False),
    "complex, reverse, uneven": complex_linear(False, 19, True, True),
    "complex, per step, reverse": complex_linear(True, 16, True, True),
    "projected, reverse": projected(False, 16, True, False),
    "projected, uneven": projected(False, 19, False, True),
    "projected, per step, reverse, uneven": projected(True, 19, True, True),
    "projected, last": projected(False, 1024, False, True, keep_all=False),
}


def with_gradients(scan):
    """Gradients in every argument, then outputs and states."""

    def loss(*arguments):
        results = scan(*arguments)
        leaves = jax.tree.leaves(results)
        weights = numbers(*(leaf.shape for leaf in leaves))
        total = sum(
            jnp.sum(leaf * weight + leaf**2)
            for leaf, weight in zip(leaves, weights)
        )
        return total, results

    def run(*arguments):
        slots = tuple(range(len(arguments)))
        return jax.grad(loss, slots, has_aux=True)(*arguments)

    return run


def scan_errors(scans):
    """Errors of outputs, states and gradients against those of one device."""
    mesh = mesh_of(time=8)
    errors = {}
    for name, (scan, arguments) in scans.items():
        run = jax.jit(with_gradients(scan))
        expected = run(*arguments)
        with config.sequence_parallel(mesh):
            errors[name] = error(run(*arguments), expected)
    return errors


def error(got, expected):
    """The largest error, as a share of the largest value of each array."""
    pairs = zip(*map(jax.tree.leaves, (got, expected)), strict=True)
    pairs = [(np.asarray(one), np.asarray(other)) for one, other in pairs]
    errors = [
        np.abs(one - other).max() / (np.abs(other).max() or 1.0)
        for one, other in pairs
        if other.size
    ]
    # `max` would lose a NaN.
    return float(np.max(errors))


def rows_found(model):
    """Results of layers that compute sharded rows by native code: how XLA moves
    rows between devices, the native functions, and errors.
    """
    layers = model.layers
    weights = [
        [weight.value for weight in layer.trainable_variables]
        for layer in layers
    ]
    run = with_gradients(partial(outputs_of, layers))
    # The axis that is the last of the mesh, so that neighbours differ.
    mesh = mesh_of(others=2, rows=4).backend_mesh
    place = NamedSharding(mesh, PartitionSpec("rows"))
    (whole,) = numbers((8, 6, UNITS))
    shared = jax.device_put(whole, place)
    program = jax.jit(run).lower(shared, weights).compile()
    text = program.as_text()
    moves = r" (?:all-gather|all-to-all|collective-permute)(?:-start)?\("
    # On one device native code is compared with definitions elsewhere.
    expected = jax.jit(run)(whole, weights)
    return {
        "moves": re.findall(moves, text),
        "native": sorted(set(re.findall(r'"(keras_linrec_\w+)"', text))),
        "error": error(program(shared, weights), expected),
        "ways": ways_found(shared),
    }


def outputs_of(layers, inputs, weights):
    """Outputs of calls that reach all native functions between them."""
    lssl, rot_rnn, *others = layers
    length = 1.0 + inputs[:, :, 0]
    features = inputs[:, :, :FEATURES]
    states = lssl.get_initial_state(len(inputs))
    timed = {"time_deltas": length}
    calls = [
        (lssl, features, {}),
        (lssl, features, {"initial_state": states}),
        (lssl, features, timed),
        (rot_rnn, inputs, {"mask": length > 0.5}),
        *(
            (layer, inputs, timed if isinstance(layer, (LinOSS, S5)) else {})
            for layer in others
        ),
    ]
    outputs = [ops.linear_scan(inputs, inputs, reverse=True)]
    for layer, given, options in calls:
        values = weights[layers.index(layer)]
        fixed = [weight.value for weight in layer.non_trainable_variables]
        outputs.append(layer.stateless_call(values, fixed, given, **options)[0])
    return outputs


def scan_and_gradient(inputs):
    """A native scan; what it gives for a row depends on that row alone."""

    def loss(inputs):
        outputs, final_state = ops.linear_scan(inputs, inputs)
        return jnp.sum(outputs**2) + jnp.sum(final_state), outputs

    return jax.grad(loss, has_aux=True)(inputs)


def ways_found(shared):
    """Errors of a native scan of sharded rows, by the way it is called."""
    run, mesh = scan_and_gradient, shared.sharding.mesh
    with config.portable_kernels():
        expected = jax.jit(run)(np.asarray(shared))
    rows = PartitionSpec("rows")
    other = NamedSharding(mesh_of(all=8).backend_mesh, PartitionSpec("all"))

    def on_another_mesh(inputs):
        return run(jax.lax.with_sharding_constraint(inputs, other))

    ways = {
        "vmap": lambda inputs: jax.vmap(run)(inputs[:, None]),
        "shard_map": jax.shard_map(
            run, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False
        ),
        "another mesh": on_another_mesh,
        "rows that devices do not divide": lambda inputs: run(inputs[:6]),
    }
    found = {}
    for name, way in ways.items():
        got = [part.reshape(-1, 6, UNITS) for part in jax.jit(way)(shared)]
        found[name] = error(got, [part[: len(got[0])] for part in expected])
    with jax.disable_jit():
        found["disable_jit"] = error(run(shared), expected)
    return found


def traces():
    """How often a function is traced, outside the scope and within it."""
    traced = []

    @jax.jit
    def run(inputs):
        traced.append(inputs)
        return ops.linear_scan(inputs[0, 0], inputs)

    (inputs,) = numbers((1, 8, 2))
    mesh = mesh_of(time=8)
    for _ in range(2):
        run(inputs)
        with config.sequence_parallel(mesh):
            run(inputs)
    return len(traced)


def messages():
    mesh = mesh_of(time=8)
    found = []
    for arguments in (
        ("eight devices",),
        (mesh, "steps"),
        (mesh, "time", "rows"),
        (mesh, "time", "time"),
    ):
        try:
            with config.sequence_parallel(*arguments):
                pass
        except ValueError as error:
            found.append(str(error))
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["more"]:
        found = {"losses": data_parallel(), "scans": scan_errors(MORE_SCANS)}
    else:
        on_one_device = build(kept=False)
        found = {
            "native": vars(kernels.available()["native"]),
            "losses": losses(on_one_device),
            "scans": scan_errors(SCANS),
            "rows": rows_found(on_one_device),
            "traces": traces(),
            "messages": messages(),
        }
    print(json.dumps(found))
