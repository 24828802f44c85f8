"""Scans over sequences that are split over time among devices.

Each device holds one part of the time. A part acts on the state that enters it
as one step of the same recurrence, state -> product * state + ended, where
`product` is the product of the part's decays and `ended` its final state when
it starts from zero. Devices exchange only these two: each gathers them from all
parts and scans them to find the state that enters its own part.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from keras_linrec.complex_pairs import multiply_add
from keras_linrec.complex_pairs import powers
from keras_linrec.kernels.jax.powers import power
from keras_linrec.kernels.jax.scan import associative
from keras_linrec.kernels.operations import projected_scan as projection
from keras_linrec.kernels.operations.final_state import (
    final_state as final_state_of,
)
from keras_linrec.kernels.operations.gated_scan import gated_scan
from keras_linrec.kernels.resets import unused_at


class Devices(NamedTuple):
    """A mesh, and the axes that split time and batch."""

    mesh: jax.sharding.Mesh
    time_axis: str
    batch_axis: str | None = None

    @property
    def parts(self):
        """The number of parts of the time."""
        return self.mesh.shape[self.time_axis]

    def rows_of(self, batch):
        """The axis that splits a batch of this size, or `None`."""
        axis = self.batch_axis
        return axis if axis and batch % self.mesh.shape[axis] == 0 else None


def devices_of(mesh, time_axis, batch_axis):
    """`Devices` from a mesh of Keras or of JAX."""
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
            "`batch_axis` should differ from `time_axis`. "
            f"Received: batch_axis={batch_axis}"
        )
    return Devices(mesh, time_axis, batch_axis)


def over_devices(kernel, devices):
    """A `Kernel` that is split over time among devices."""
    scan = partial(_scan, kernel, devices)
    return kernel._replace(
        scan=scan,
        projected_scan=partial(_projected_scan, kernel, devices),
        gated_scan=partial(gated_scan, scan),
    )


def _scan(
    kernel, devices, decay, inputs, initial_state, reverse=False, resets=None
):
    if inputs[0].shape[1] < devices.parts:
        given = () if resets is None else (resets,)
        return kernel.scan(decay, inputs, initial_state, reverse, *given)
    part = partial(_scan_part, kernel.scan)
    return _over_time(
        devices, part, decay, inputs, (), initial_state, reverse, resets
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
    resets=None,
):
    kernels = input_kernel, output_kernel
    if inputs.shape[1] < devices.parts:
        given = () if resets is None else (resets,)
        return kernel.projected_scan(
            decay, inputs, *kernels, initial_state, reverse, *given
        )
    part = partial(_projected_part, kernel)
    (outputs,), final_state = _over_time(
        devices, part, decay, (inputs,), kernels, initial_state, reverse, resets
    )
    return outputs, final_state


def _over_time(
    devices, part, decay, inputs, kernels, initial_state, reverse, resets
):
    """`(outputs, final_state)`, both tuples, computed part by part.

    Args:
        part: `part(time_axis, reverse, decay, inputs, kernels,
            initial_state, resets)`, the computation of one device on its
            part.
        kernels: arrays that every device holds.
    """
    batch, time, _ = inputs[0].shape
    decay, inputs, resets = _in_even_parts(
        devices, unused_at(resets, decay), inputs, resets, reverse
    )
    rows = devices.rows_of(batch)
    steps = PartitionSpec(rows, devices.time_axis)
    state, whole = PartitionSpec(rows), PartitionSpec()
    run = _shard_map(
        partial(part, devices.time_axis, reverse),
        devices.mesh,
        (steps if _per_step(decay) else whole, steps, whole, state, steps),
        (steps, state),
    )
    outputs, final_state = run(
        *map(tuple, (decay, inputs, kernels, initial_state)), resets
    )
    kept = slice(-time, None) if reverse else slice(time)
    return tuple(output[:, kept] for output in outputs), final_state


def _shard_map(function, mesh, in_specs, out_specs):
    # JAX's check that replicated results agree on all devices cannot look into
    # native calls.
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


def _in_even_parts(devices, decay, inputs, resets, reverse):
    """Pad decay, inputs and resets so that all parts have equal length.

    The added steps come last in the order of the scan. They keep the state and
    add nothing, so a time-invariant decay becomes one per step.
    """
    batch, time, _ = inputs[0].shape
    missing = -time % devices.parts
    if not missing:
        return decay, inputs, resets
    padding = [(0, 0), (missing, 0) if reverse else (0, missing), (0, 0)]
    shape = (batch, time, decay[0].shape[-1])
    one = 1.0, 0.0
    decay = tuple(
        jnp.pad(jnp.broadcast_to(part, shape), padding, constant_values=value)
        for part, value in zip(decay, one)
    )
    if resets is not None:
        resets = jnp.pad(resets, padding[:2])
    return decay, tuple(jnp.pad(part, padding) for part in inputs), resets


# These run on one device, on its part of the time.


def _scan_part(
    scan, axis, reverse, decay, inputs, kernels, initial_state, resets
):
    """Scan from zero, then add the contribution of the entering state."""
    given = () if resets is None else (resets,)
    outputs, ended = scan(
        decay, inputs, _zeros_like(initial_state), reverse, *given
    )
    products = _products(scan, reverse, decay, inputs)
    last = 0 if reverse else -1
    entering, final_state = _join(
        axis,
        reverse,
        tuple(part[..., last, :] for part in products),
        ended,
        initial_state,
        None if resets is None else jnp.max(resets, axis=1),
    )
    entering = tuple(part[:, None] for part in entering)
    if resets is not None:
        stops = lax.cummax(resets, axis=1, reverse=reverse)[:, :, None]
        entering = tuple(jnp.where(stops > 0, 0.0, e) for e in entering)
    return multiply_add(products, entering, outputs), final_state


def _projected_part(
    kernel, axis, reverse, decay, inputs, kernels, initial_state, resets
):
    """Find the final state from zero, then scan from the entering state.

    That final state is a product of inputs and powers of the decay, which costs
    less than correcting the outputs would; and the fused kernel stores no
    states that could be corrected.
    """
    (inputs,) = inputs
    if _per_step(decay) or resets is not None:

        def scan(decay, inputs, state, reverse, resets):
            arguments = decay, inputs, (), state, resets
            return _scan_part(kernel.scan, axis, reverse, *arguments)

        outputs, final_state = projection.projected_scan(
            scan, decay, inputs, *kernels, initial_state, reverse, resets
        )
        return (outputs,), final_state
    zeros = _zeros_like(initial_state)
    ended = final_state_of(kernel, decay, inputs, kernels[0], zeros, reverse)
    product = power(inputs.shape[1], decay)
    entering, final_state = _join(axis, reverse, product, ended, initial_state)
    outputs, _ = kernel.projected_scan(
        decay, inputs, *kernels, entering, reverse
    )
    return (outputs,), final_state


def _join(axis, reverse, product, ended, initial_state, stops=None):
    """The state that enters this part, and the one after all parts.

    Args:
        axis: the mesh axis that splits time.
        product: tuple of arrays (channels,), equal for all parts, or
            (batch, channels).
        ended: tuple of arrays (batch, channels).
        stops: array (batch,), not 0 where this part has a reset. Defaults to
            `None`, nowhere.
    """

    varies = product[0].ndim > 1
    message = jnp.stack((*product, *ended) if varies else ended)
    # One message per device: (arrays, batch, devices, channels).
    gathered = tuple(lax.all_gather(message, axis, axis=2))
    ended = gathered[-len(ended) :]
    if varies:
        product = gathered[: len(ended)]
    if stops is not None:
        stops = lax.all_gather(stops, axis, axis=1)
    after = associative(product, ended, initial_state, reverse, stops)
    # In the order of time, whatever the direction of the scan.
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
    """The factor of the entering state in the state of each step."""
    if _per_step(decay):
        ones = tuple(
            jnp.full_like(part[:, 0], value)
            for part, value in zip(decay, (1.0, 0.0))
        )
        return scan(decay, _zeros_like(decay), ones, reverse)[0]
    products = powers(decay, inputs[0].shape[1] + 1)
    return tuple(part[:0:-1] if reverse else part[1:] for part in products)
