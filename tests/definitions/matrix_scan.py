"""The recurrence of matrix states as it is written, in float64.

    S_t = (product over j of (I - e_tj k_tj k_tj^T)) diag(a_t) S_{t-1} + ...

that is, first S <- diag(a_t) S, and then for each of m products

    S <- S + k_tj (w_tj v_tj - e_tj (k_tj^T S))^T,

and y_t = S^T q_t. The gated delta rule (arXiv 2412.06464, eq. 10) has m = 1 and
e = w; the gated product of Householder matrices (arXiv 2502.10297, section 3)
m > 1; the state-space duality (arXiv 2405.21060, section 2) e = 0.
"""

from typing import NamedTuple

import numpy as np


class Arguments(NamedTuple):
    """What differentiates: several products a step, and all there."""

    queries: np.ndarray  # (batch, time, query heads, key_dim)
    keys: np.ndarray  # (batch, time, m, key heads, key_dim)
    values: np.ndarray  # (batch, time, m, heads, value_dim)
    decay: np.ndarray  # (batch, time, heads), or with key_dim behind
    erase: np.ndarray  # (batch, time, m, heads)
    write: np.ndarray  # (batch, time, m, heads)
    initial_state: np.ndarray  # (batch, heads, key_dim, value_dim)


def matrix_scan(arguments, resets=None):
    """`(outputs, final_state)`; `resets` (batch, time) drop the state."""
    outputs, states, _ = _steps(arguments, resets)
    return outputs, states[-1]


def gradients(arguments, d_outputs, d_final_state, resets=None):
    """The cotangents of all `Arguments`, by the chain rule."""
    _, states, within = _steps(arguments, resets)
    found = Arguments(*map(np.zeros_like, arguments))
    given = _of_each_head(arguments)
    d_state = d_final_state
    time, products = arguments.keys.shape[1:3]
    for t in reversed(range(time)):
        q, d_y = given.queries[:, t], d_outputs[:, t]
        _add(found.queries, t, _columns(states[t + 1], d_y))
        d_state = d_state + _outer(q, d_y)
        for j in reversed(range(products)):
            before = within[t][j]
            k, v = given.keys[:, t, j], given.values[:, t, j]
            e, w = given.erase[:, t, j, :, None], given.write[:, t, j, :, None]
            change = w * v - e * _rows(k, before)
            d_change = _rows(k, d_state)
            by_erasure = -e * d_change
            d_k = _columns(d_state, change) + _columns(before, by_erasure)
            _add(found.keys, (t, j), d_k)
            found.values[:, t, j] = w * d_change
            found.write[:, t, j] = np.sum(d_change * v, -1)
            found.erase[:, t, j] = -np.sum(d_change * _rows(k, before), -1)
            d_state = d_state + _outer(k, by_erasure)
        entering = _dropped(states[t], resets, t)
        slopes = np.sum(d_state * entering, -1)
        if arguments.decay.ndim == 3:
            slopes = np.sum(slopes, -1)
        found.decay[:, t] = slopes
        d_state = given.decay[:, t, :, :, None] * d_state
        if resets is not None:
            is_reset = resets[:, t]
            found.decay[is_reset, t] = 0.0
            d_state = _dropped(d_state, resets, t)
    return found._replace(initial_state=d_state)


def _steps(arguments, resets):
    """Outputs, the states around all steps, and those before each product."""
    given = _of_each_head(arguments)
    time, products = arguments.keys.shape[1:3]
    states, within, outputs = [given.initial_state], [], []
    for t in range(time):
        entering = _dropped(states[-1], resets, t)
        state = _dropped(given.decay[:, t, :, :, None] * entering, resets, t)
        before = []
        for j in range(products):
            before.append(state)
            k, v = given.keys[:, t, j], given.values[:, t, j]
            e, w = given.erase[:, t, j, :, None], given.write[:, t, j, :, None]
            state = state + _outer(k, w * v - e * _rows(k, state))
        within.append(before)
        states.append(state)
        outputs.append(_rows(given.queries[:, t], state))
    return np.stack(outputs, axis=1), states, within


def _of_each_head(arguments):
    """Queries and keys for every head, and a decay for every key channel."""
    heads, key_dim = arguments.initial_state.shape[1:3]
    decay = arguments.decay
    if decay.ndim == 3:
        decay = np.repeat(decay[..., None], key_dim, axis=-1)
    queries, keys = (
        np.repeat(part, heads // part.shape[-2], axis=-2)
        for part in (arguments.queries, arguments.keys)
    )
    return arguments._replace(queries=queries, keys=keys, decay=decay)


def _add(total, place, heads):
    """Add what all heads of a group have, which share one row."""
    place = (slice(None), *np.atleast_1d(place))
    batch, shared, size = total[place].shape
    total[place] += heads.reshape(batch, shared, -1, size).sum(2)


def _dropped(state, resets, t):
    if resets is None:
        return state
    return np.where(resets[:, t, None, None, None], 0.0, state)


def _rows(vector, state):
    """vector^T S of each head."""
    return np.einsum("bhk,bhkv->bhv", vector, state)


def _columns(state, vector):
    """S vector of each head."""
    return np.einsum("bhkv,bhv->bhk", state, vector)


def _outer(key, value):
    return np.einsum("bhk,bhv->bhkv", key, value)
