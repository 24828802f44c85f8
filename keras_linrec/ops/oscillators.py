"""Forced harmonic oscillators x'' = -A x - G x' + b, over discrete steps.

Every method here has the step

    z_t = s (z_{t-1} + dt (b_t - A x_{t-1})),  x_t = x_{t-1} + dt z_t

with a factor s of its own. Without z it is of second order,

    x_t = (mu + conj(mu)) x_{t-1} - |mu|^2 x_{t-2} + s dt^2 b_t

where |mu|^2 = s and mu + conj(mu) = 1 + s - s dt^2 A: two complex scans, one
after another, y_t = mu y_{t-1} + s dt^2 b_t and x_t = conj(mu) x_{t-1} + y_t.
Neither divides by the angle of mu, as coordinates of eigenvectors would, so
that A = 0, where mu = 1 twice, is a case like any other.

Measured in float32 against float64 in NumPy, 10,000 steps of white noise with
dt = 0.5 (largest error of x and z, relative to the largest value):

| system | two scans | products with 2 x 2 blocks |
|---|---|---|
| IMEX, A = 0 | 4e-6 | 2e-6 |
| IMEX, dt^2 A from 2.5e-13 to 0.25 | 1e-4 | 5e-5 |
| IMEX, dt^2 A = 4 - 2.5e-4, and 4 | 4e-6 | 9e-4, and 1e-2 |
| IM, A from 0 to 1 | 1e-4 | 3e-5 |
| IMEX, G = 0.1 | 4e-6 | 2e-6 |

Blocks of 2 x 2 would need a scan of their own; these run on the native kernel.
The derivative of mu's angle with respect to A grows as 1 / angle, and its
rounding with it: by a relative 6e-8 / angle.
"""

from typing import NamedTuple

from keras import ops

from keras_linrec.complex_pairs import conjugate
from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import multiply_add
from keras_linrec.complex_pairs import reciprocal
from keras_linrec.kernels.operations import oscillator_scan_irregular
from keras_linrec.ops.dispatch import kernel_for
from keras_linrec.ops.scan import complex_linear_scan
from keras_linrec.ops.scan import resets_of_scan


class Oscillators(NamedTuple):
    """Oscillators over steps of length dt, tensors (..., oscillators).

    Attributes:
        timescale: dt.
        stiffness: A, within the bounds between which a step oscillates.
        factor: s.
        missing: 1 - sqrt(s), without cancellation.
        share: sin(angle / 2)^2 of mu = sqrt(s) exp(i angle), in [0, 1].
    """

    timescale: object
    stiffness: object
    factor: object
    missing: object
    share: object

    def eigenvalue(self):
        """mu, a pair."""
        root = 1.0 - self.missing
        return root * (1.0 - 2.0 * self.share), root * self._sine()

    def _sine(self):
        square = self.share * (1.0 - self.share)
        # Its slope is infinite at both ends, from where no weight moves it.
        is_end = square <= 0
        root = ops.sqrt(ops.where(is_end, 1.0, square))
        return ops.where(is_end, 0.0, 2.0 * root)

    def distance(self):
        """1 - conj(mu), a pair, without cancellation."""
        root = 1.0 - self.missing
        return self.missing + 2.0 * root * self.share, root * self._sine()


def oscillators(stiffness, friction, timescale, method):
    """The oscillators that weights define.

    Args:
        stiffness: tensor (oscillators,). A is its positive part, and with the
            method "imex" at least the A below which a damped step no longer
            oscillates, and at most that above which it diverges:
            (1 -+ sqrt(1 + dt G))^2 / dt^2.
        friction: tensor (oscillators,), whose positive part is G; or `None`
            for no damping.
        timescale: tensor (..., oscillators), dt.
        method: `"imex"`, with s = 1 / (1 + dt G), or `"im"`, without damping,
            with s = 1 / (1 + dt^2 A).

    Returns:
        `Oscillators`.
    """
    stiffness = _positive(stiffness)
    square = timescale * timescale
    if method == "im":
        factor = 1.0 / (1.0 + square * stiffness)
        missing = square * stiffness * factor / (1.0 + ops.sqrt(factor))
        stiffness = stiffness + ops.zeros_like(factor)
        return Oscillators(timescale, stiffness, factor, missing, 0.5 * missing)
    friction = 0.0 * stiffness if friction is None else _positive(friction)
    damping = friction * timescale
    factor = 1.0 / (1.0 + damping)
    root = ops.sqrt(factor)
    missing = damping * factor / (1.0 + root)
    # (sqrt(1 + dt G) - 1) / dt, which is G / 2 for steps of no length.
    lowest = friction * root / (1.0 + root)
    lowest = lowest * lowest
    above = _positive(stiffness - lowest)
    share = 0.25 * root * square * above
    diverges = share > 1.0
    most = 4.0 / (root * ops.where(diverges, square, 1.0))
    return Oscillators(
        timescale,
        lowest + ops.where(diverges, most, above),
        factor,
        missing,
        ops.where(diverges, 1.0, share),
    )


def _positive(number):
    # Not `ops.relu`, whose slope at 0 the backends do not agree on.
    return ops.where(number > 0, number, 0.0)


def oscillate(system, forces, positions, speeds):
    """One step: the new `(positions, speeds)`, pairs (batch, oscillators).

    Args:
        system: `Oscillators`.
        forces, positions, speeds: pairs (batch, oscillators), b, x and z.
    """
    return oscillator_scan_irregular.oscillate(
        system.timescale,
        system.stiffness,
        system.factor,
        forces,
        positions,
        speeds,
    )


def oscillator_scan(system, forces, positions, speeds, reset_mask=None):
    """All steps of oscillators whose steps have one length.

    Args:
        system: `Oscillators`, of tensors (oscillators,).
        forces: pair (batch, time, oscillators), s dt^2 b.
        positions, speeds: pairs (batch, oscillators), x and z before the first
            step; or `None` for zeros, both.
        reset_mask: boolean (batch, time), as in `linear_scan`. Defaults to
            `None`: no resets.

    Returns:
        `(positions, halves)`, pairs (batch, time, oscillators): x, and y of
        this module's head.
    """
    eigenvalue = system.eigenvalue()
    start = None
    if positions is not None:
        moved = multiply(conjugate(eigenvalue), speeds)
        start = multiply_add(
            system.distance(),
            positions,
            tuple(system.timescale * part for part in moved),
        )
    halves, _ = complex_linear_scan(
        eigenvalue, forces, start, reset_mask=reset_mask
    )
    every, _ = complex_linear_scan(
        conjugate(eigenvalue), halves, positions, reset_mask=reset_mask
    )
    return every, halves


def speeds_of(system, positions, halves):
    """z from x and y, pairs (..., oscillators)."""
    passed = multiply(system.distance(), positions)
    rest = tuple(half - part for half, part in zip(halves, passed))
    divided = reciprocal(conjugate(system.eigenvalue()))
    return tuple(part / system.timescale for part in multiply(divided, rest))


def oscillator_scan_of_steps(
    system, forces, positions, speeds, reset_mask=None
):
    """All steps of oscillators whose steps differ in length.

    Args:
        system: `Oscillators`, of tensors (batch, time, oscillators).
        forces: pair (batch, time, oscillators), b.
        positions, speeds: pairs (batch, oscillators), or `None`, both.
        reset_mask: boolean (batch, time). Defaults to `None`: no resets.

    Returns:
        `(positions, speeds)`, pairs (batch, time, oscillators).
    """
    if positions is None:
        positions = speeds = (ops.zeros_like(forces[0][:, 0]),) * 2
    dtype = forces[0].dtype
    resets = resets_of_scan(reset_mask, forces[0].shape[:2], False, dtype)
    run = kernel_for(
        "oscillator_scan_irregular",
        forces[0],
        channels=4 * forces[0].shape[-1],
        per_step=True,
        resets=reset_mask is not None,
    )
    return run(
        system.timescale,
        system.stiffness,
        system.factor,
        forces,
        resets,
        positions,
        speeds,
    )
