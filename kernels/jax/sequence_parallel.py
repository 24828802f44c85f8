"""Scans over sequences whose steps are shared among devices.

Each device has a part of the time. What a part does to the state that enters
it is one step of the same recurrence, state -> product * state + ended, with
the product of its decays and the state in which it ends from zero. These two
are all that devices tell each other: each gathers those of all parts, scans
them to find the state that enters its own, and needs nothing else.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import multiply_add
from keras_linrec.complex_pairs import powers
from keras_linrec.kernels import projected_scan as projection
from keras_linrec.kernels.final_state import final_state as final_state_of
from keras_linrec.kernels.jax.scan import associative


class Devices(NamedTuple):
    """Who has which steps, and which rows."""

    mesh: jax.sharding.Mesh
    time_axis: str
    batch_axis: str | None = None

    @property
    def parts(self):
        """How many parts the time has."""
        return self.mesh.shape[self.time_axis]

    def rows_of(self, batch):
        """The axis that shares out so many rows, or `None`."""
        axis = self.batch_axis
        return axis if axis and batch % self.mesh.shape[axis] == 0 else None


def devices(mesh, time_axis, batch_axis):
    """`Devices`, of a mesh of Keras' or of JAX' own."""
    mesh = getattr(mesh, "backend_mesh", mesh)
    if not isinstance(mesh, jax.sharding.Mesh):
        raise ValueError(
            "`mesh` should be a `keras.distribution.DeviceMesh` or a "
            f"`jax.sharding.Mesh`. Received: mesh={mesh}"
        )
    for name, axis in (("time_axis", time_axis), ("batch_axis", batch_axis)):
        optional = name == "batch_axis"
        if axis not in mesh.axis_names and not (optional and axis is None):
            raise ValueError(
                f"`{name}` should be one of the mesh's axes, "
                f"{tuple(mesh.axis_names)}{' or None' if optional else ''}. "
                f"Received: {name}={axis}"
            )
    if time_axis == batch_axis:
        raise ValueError(
            "`batch_axis` should be another axis than `time_axis`. "
            f"Received: batch_axis={batch_axis}"
        )
    return Devices(mesh, time_axis, batch_axis)


def over_devices(kernel, devices):
    """A `Kernel` of which every device runs its part of the time."""
    return kernel._replace(
        scan=partial(_scan, kernel, devices),
        projected_scan=partial(_projected_scan, kernel, devices),
    )


def _scan(kernel, devices, decay, inputs, initial_state, reverse=False):
    if inputs[0].shape[1] < devices.parts:
        return kernel.scan(decay, inputs, initial_state, reverse)
    return _over_time(
        devices,
        partial(_scan_part, kernel.scan),
        *(decay, inputs, (), initial_state, reverse),
    )


def _projected_scan(
    kernel,
    devices,
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state,
    reverse=False,
):
    kernels = input_kernel, output_kernel
    if inputs.shape[1] < devices.parts:
        return kernel.projected_scan(
            decay, inputs, *kernels, initial_state, reverse
        )
    (outputs,), final_state = _over_time(
        devices,
        partial(_projected_part, kernel),
        *(decay, (inputs,), kernels, initial_state, reverse),
    )
    return outputs, final_state


def _over_time(devices, part, decay, inputs, kernels, initial_state, reverse):
    """`(outputs, final_state)`, tuples both, from what each part has of them.

    Args:
        part: `part(time_axis, reverse, decay, inputs, kernels,
            initial_state)`, of which the time is one device's.
        kernels: arrays that every device has.
    """
    batch, time, _ = inputs[0].shape
    decay, inputs = _in_even_parts(devices, decay, inputs, reverse)
    rows = devices.rows_of(batch)
    steps = PartitionSpec(rows, devices.time_axis)
    state, whole = PartitionSpec(rows), PartitionSpec()
    run = _shard_map(
        partial(part, devices.time_axis, reverse),
        devices.mesh,
        (steps if _per_step(decay) else whole, steps, whole, state),
        (steps, state),
    )
    outputs, final_state = run(
        *map(tuple, (decay, inputs, kernels, initial_state))
    )
    kept = slice(-time, None) if reverse else slice(time)
    return tuple(output[:, kept] for output in outputs), final_state


def _shard_map(function, mesh, in_specs, out_specs):
    # JAX could check that what counts as whole is the same everywhere, but
    # knows nothing of a native call.
    if hasattr(jax, "shard_map"):
        return jax.shard_map(
            function,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
        )
    from jax.experimental.shard_map import shard_map

    return shard_map(function, mesh, in_specs, out_specs, check_rep=False)


def _per_step(decay):
    return decay[0].ndim == 3


def _in_even_parts(devices, decay, inputs, reverse):
    """Both with as many steps more as make all parts as long.

    These come last in the scan's order, keep the state and add nothing. A
    decay that is the same at all steps is no more, then.
    """
    batch, time, _ = inputs[0].shape
    missing = -time % devices.parts
    if not missing:
        return decay, inputs
    filling = [(0, 0), (missing, 0) if reverse else (0, missing), (0, 0)]
    shape = (batch, time, decay[0].shape[-1])
    one = 1.0, 0.0
    decay = tuple(
        jnp.pad(jnp.broadcast_to(part, shape), filling, constant_values=value)
        for part, value in zip(decay, one)
    )
    return decay, tuple(jnp.pad(part, filling) for part in inputs)


# On one device, with its part of the time.


def _scan_part(scan, axis, reverse, decay, inputs, kernels, initial_state):
    """From a state of zero, and then what the state that enters adds."""
    outputs, ended = scan(decay, inputs, _zeros_like(initial_state), reverse)
    products = _products(scan, reverse, decay, inputs)
    last = 0 if reverse else -1
    entering, final_state = _join(
        axis,
        reverse,
        tuple(part[..., last, :] for part in products),
        ended,
        initial_state,
    )
    entering = tuple(part[:, None] for part in entering)
    return multiply_add(products, entering, outputs), final_state


def _projected_part(
    kernel, axis, reverse, decay, inputs, kernels, initial_state
):
    """The end from a state of zero alone, and then from the one that enters.

    That end is a product of inputs and powers of the decay, and costs less
    than to correct the outputs; and the fused kernel writes no states.
    """
    (inputs,) = inputs
    if _per_step(decay):

        def scan(decay, inputs, state, reverse):
            arguments = decay, inputs, (), state
            return _scan_part(kernel.scan, axis, reverse, *arguments)

        outputs, final_state = projection.projected_scan(
            scan, decay, inputs, *kernels, initial_state, reverse
        )
        return (outputs,), final_state
    ended = final_state_of(
        *(kernel.scan, decay, inputs, kernels[0]),
        *(_zeros_like(initial_state), reverse),
    )
    product = _power(decay, inputs.shape[1])
    entering, final_state = _join(axis, reverse, product, ended, initial_state)
    outputs, _ = kernel.projected_scan(
        decay, inputs, *kernels, entering, reverse
    )
    return (outputs,), final_state


def _join(axis, reverse, product, ended, initial_state):
    """The state that enters this part, and the one after all parts.

    Args:
        axis: the mesh's axis of the time.
        product: tuple of arrays (channels,), the same of all parts, or
            (batch, channels).
        ended: tuple of arrays (batch, channels).
    """

    varies = product[0].ndim > 1
    told = jnp.stack((*product, *ended) if varies else ended)
    # One message a device: (arrays, batch, devices, channels).
    told = tuple(lax.all_gather(told, axis, axis=2))
    if varies:
        product = told[: len(ended)]
    after = associative(product, told[-len(ended) :], initial_state, reverse)
    # In the order of time, whichever way the scan goes.
    index = lax.axis_index(axis) + reverse
    bounds = tuple(
        jnp.concatenate(
            [part, state[:, None]] if reverse else [state[:, None], part], 1
        )
        for part, state in zip(after, initial_state)
    )
    entering = tuple(
        lax.dynamic_index_in_dim(part, index, axis=1, keepdims=False)
        for part in bounds
    )
    last = 0 if reverse else -1
    return entering, tuple(part[:, last] for part in after)


def _zeros_like(arrays):
    return tuple(jnp.zeros_like(part) for part in arrays)


def _products(scan, reverse, decay, inputs):
    """What each step's state has of the one that enters the part."""
    if _per_step(decay):
        ones = tuple(
            jnp.full_like(part[:, 0], value)
            for part, value in zip(decay, (1.0, 0.0))
        )
        return scan(decay, _zeros_like(decay), ones, reverse)[0]
    products = powers(decay, inputs[0].shape[1] + 1)
    return tuple(part[:0:-1] if reverse else part[1:] for part in products)


def _power(number, exponent):
    """By squaring."""
    result = None
    while exponent:
        if exponent % 2:
            result = number if result is None else multiply(result, number)
        exponent //= 2
        number = multiply(number, number) if exponent else number
    return result
