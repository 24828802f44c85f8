"""Plots of units with two states and of spectra, with Matplotlib."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.analysis._matrices import require_built
from keras_linrec.validation import require_count


def plot_vector_field(
    layer: Any,
    inputs: types.Tensor = None,
    limits: Sequence[float] = (-2.0, 2.0),
    points: int = 21,
    axes: Any = None,
    **kwargs: Any,
) -> Any:
    """Plot the change of state in one step, for two states (figure 1).

    The arrow at h shows step(x, h) - h, with the same x everywhere. Arrow
    lengths are relative to one another.

    Args:
        layer: a built layer with `step(inputs, states)` whose only state has
            two entries.
        inputs: array (features,), x. Defaults to `None`: zeros.
        limits: pair of floats, the limits of both axes. Defaults to (-2, 2).
        points: integer, the number of arrows along each axis. Defaults to 21.
        axes: Matplotlib axes to draw in. Defaults to `None`: new ones.
        **kwargs: passed to Matplotlib's `quiver`.

    Returns:
        The axes.

    Raises:
        ValueError: if the layer is not built or has no such state, `inputs`
            has a wrong shape, `limits` is not a pair (low, high), or `points`
            is not a positive integer.
        ImportError: if Matplotlib is not installed.

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), section 4, figure 1.
    """
    require_count("points", points)
    _require_two_states(layer)
    ticks = np.linspace(*_limits(limits), points, dtype="float32")
    states = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
    change = _step(layer, inputs, states) - states
    axes = _labelled(axes, limits)
    axes.quiver(*states.T, *change.T, **{"angles": "xy", **kwargs})
    return axes


def plot_phase_portrait(
    layer: Any,
    starts: types.Tensor = None,
    steps: int = 200,
    inputs: types.Tensor = None,
    limits: Sequence[float] = (-2.0, 2.0),
    axes: Any = None,
    **kwargs: Any,
) -> Any:
    """Plot trajectories of two states, from several starting points.

    Args:
        layer: a built layer with `step(inputs, states)` whose only state has
            two entries.
        starts: array (count, 2), the initial states, each marked with a dot.
            Defaults to `None`: 16 points on the boundary of the square that
            `limits` define.
        steps: integer. Defaults to 200.
        inputs: array (features,), the same at every step. Defaults to `None`:
            zeros.
        limits: pair of floats, the limits of both axes. Parts of trajectories
            outside are not shown. Defaults to (-2, 2).
        axes: Matplotlib axes to draw in, such as those of
            `plot_vector_field`. Defaults to `None`: new ones.
        **kwargs: passed to Matplotlib's `plot`.

    Returns:
        The axes.

    Raises:
        ValueError: if the layer is not built or has no such state, `inputs`
            or `starts` has a wrong shape, `limits` is not a pair (low, high),
            or `steps` is not a positive integer.
        ImportError: if Matplotlib is not installed.

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), section 4, figure 1.
    """
    require_count("steps", steps)
    _require_two_states(layer)
    low, high = _limits(limits)
    starts = _around(low, high) if starts is None else starts
    states = np.asarray(starts, "float32")
    if states.ndim != 2 or states.shape[1] != 2:
        raise ValueError(
            "`starts` should have the shape (count, 2). "
            f"Received: starts.shape={states.shape}"
        )
    trajectories = [states]
    for _ in range(steps):
        trajectories.append(_step(layer, inputs, trajectories[-1]))
    axes = _labelled(axes, limits)
    lines = axes.plot(
        *np.moveaxis(np.array(trajectories), -1, 0),
        **{"linewidth": 1.0, **kwargs},
    )
    for line, start in zip(lines, states):
        axes.plot(*start, marker="o", markersize=3, color=line.get_color())
    return axes


def plot_eigenvalue_bands(bands: Any, axes: Any = None) -> Any:
    """Plot the range of real parts against beta, with bounds (figure 4).

    The largest real parts are red, the smallest blue, and the bounds of
    proposition 1 dashed.

    Args:
        bands: the result of `eigenvalue_bands`.
        axes: Matplotlib axes to draw in. Defaults to `None`: new ones.

    Returns:
        The axes.

    Raises:
        ImportError: if Matplotlib is not installed.

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), appendix A.2, figure 4.
    """
    axes = _new_axes() if axes is None else axes
    for values, style in (
        (bands.largest, {"color": "tab:red"}),
        (bands.smallest, {"color": "tab:blue"}),
        (bands.high, {"color": "black", "linestyle": "--"}),
        (bands.low, {"color": "black", "linestyle": "--"}),
    ):
        axes.plot(bands.betas, values.T, linewidth=0.8, **style)
    axes.set(xlabel="beta", ylabel="real part of eigenvalues")
    return axes


def _require_two_states(layer):
    if not callable(getattr(layer, "step", None)):
        raise ValueError(
            "`layer` should have the method `step(inputs, states)`. "
            f"Received: layer={layer}"
        )
    require_built(layer)
    shapes = [
        tuple(state.shape) for state in layer.get_initial_state(batch_size=1)
    ]
    if shapes != [(1, 2)]:
        raise ValueError(
            "`layer` should have a single state with two entries. "
            f"Received: layer={layer} with states of the shapes {shapes}"
        )


def _step(layer, inputs, states):
    features = layer.input_spec.axes[-1]
    inputs = np.zeros(features) if inputs is None else np.asarray(inputs)
    if inputs.shape != (features,):
        raise ValueError(
            f"`inputs` should have the shape ({features},). "
            f"Received: inputs.shape={inputs.shape}"
        )
    rows = np.tile(inputs.astype("float32"), (len(states), 1))
    _, (states,) = layer.step(
        ops.convert_to_tensor(rows), [ops.convert_to_tensor(states)]
    )
    return ops.convert_to_numpy(states)


def _around(low, high):
    """16 points on the boundary of a square."""
    share = np.arange(4) / 4 * (high - low)
    ends = np.full(4, low), np.full(4, high)
    return np.concatenate(
        [
            np.stack([low + share, ends[0]], axis=-1),
            np.stack([ends[1], low + share], axis=-1),
            np.stack([high - share, ends[1]], axis=-1),
            np.stack([ends[0], high - share], axis=-1),
        ]
    )


def _limits(limits):
    if len(limits) != 2 or not limits[0] < limits[1]:
        raise ValueError(
            f"`limits` should be a pair (low, high). Received: limits={limits}"
        )
    return limits


def _labelled(axes, limits):
    axes = _new_axes() if axes is None else axes
    low, high = limits
    margin = 0.05 * (high - low)
    shown = low - margin, high + margin
    axes.set(xlabel="first state", ylabel="second state", aspect="equal")
    axes.set(xlim=shown, ylim=shown)
    return axes


def _new_axes():
    try:
        from matplotlib import pyplot
    except ImportError as missing:
        raise ImportError(
            "Plotting needs Matplotlib, which is not installed: "
            "pip install matplotlib"
        ) from missing
    return pyplot.subplots()[1]
