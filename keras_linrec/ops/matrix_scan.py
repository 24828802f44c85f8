"""The recurrence of states that are matrices: the delta rule's family."""

from keras import ops

from keras_linrec import types
from keras_linrec.ops.dispatch import kernel_for
from keras_linrec.ops.precision import accumulation_dtype
from keras_linrec.ops.scan import resets_of
from keras_linrec.ops.scan_checks import require_rank
from keras_linrec.ops.scan_checks import require_shape
from keras_linrec.validation import agree
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_tensors


@in_any_byte_order
def matrix_scan(
    queries: types.Tensor,
    keys: types.Tensor,
    values: types.Tensor,
    decay: types.Tensor = None,
    erase: types.Tensor = None,
    write: types.Tensor = None,
    initial_state: types.Tensor = None,
    reset_mask: types.Tensor = None,
    log_decay: types.Tensor = None,
) -> tuple[types.Tensor, types.Tensor]:
    """A linear recurrence whose states are matrices: the delta rule's family.

    Each head has a matrix S (key_dim, value_dim). A step multiplies it by a
    decay, S <- a_t S, then replaces a part of what it holds for a key k_t, and
    reads it for a query q_t:

        S_t = S + k_t (w_t v_t - e_t (k_t^T S))^T
        y_t = S_t^T q_t

    | erase e, write w | decay a | the layer |
    |---|---|---|
    | 0, dt | exp(-dt exp(A)) | Mamba-2, SSD (arXiv 2405.21060) |
    | 0, 1 | one, or one a key channel | gated linear attention (2312.06635) |
    | e = w in (0, 1) | 1 | DeltaNet (2406.06484) |
    | e = w in (0, 1) | in (0, 1) | gated DeltaNet (2412.06464) |
    | e = w in (0, 2), m > 1 | the same | DeltaProduct (2502.10297) |

    With m products a step, keys, values, erase and write have an axis more,
    behind the time. The second line is then applied m times, with k_tj, v_tj,
    e_tj and w_tj, and the query reads the state after the last.

    With keys of length 1 and e in [0, 2], no product makes a state longer. With
    longer keys it may grow in each step; normalise them.

    Args:
        queries: float tensor, (batch, time, query_heads, key_dim), with at
            least one step.
        keys: float tensor, (batch, time, key_heads, key_dim), or (batch, time,
            m, key_heads, key_dim) for m products a step. `query_heads` and
            `key_heads` each divide `heads`: then so many neighbouring heads
            share a query or a key.
        values: float tensor, (batch, time, heads, value_dim), or (batch, time,
            m, heads, value_dim).
        decay: float tensor, (batch, time, heads), or (batch, time, heads,
            key_dim) with a decay for each row of S. Defaults to `None`: 1,
            unless there is a `log_decay`.
        erase: float tensor, (batch, time, heads), or (batch, time, m, heads),
            the share of what S holds for a key that is removed. Defaults to
            `None`: 0.
        write: float tensor of the same shape, by which values are multiplied.
            Defaults to `None`: 1.
        initial_state: float tensor, (batch, heads, key_dim, value_dim), S
            before the first step. Defaults to `None`: zero.
        reset_mask: boolean tensor, (batch, time), true at steps before which
            the state is dropped, as in `linear_scan`. Defaults to `None`: no
            resets.
        log_decay: float tensor, the logarithm of a decay, in place of `decay`.
            A decay that was computed as an exponential is more precise so,
            since float32 rounds numbers close to 1; one that may be 0 or
            negative is to be given as itself. Minus infinity stands for 0.
            Defaults to `None`.

    Returns:
        `(outputs, final_state)`: a tensor (batch, time, heads, value_dim), and
        S after the last step, (batch, heads, key_dim, value_dim). Dtypes and
        derivatives are those of `linear_scan`.

    Raises:
        ValueError: if shapes do not agree, there is no time step, heads cannot
            be shared, or `decay` and `log_decay` are both given.

    Example: what is written for a key replaces what was there.

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> keys = np.ones((1, 3, 1, 1), "float32")
    >>> values = np.array([1.0, 5.0, 2.0], "float32").reshape((1, 3, 1, 1))
    >>> strength = np.ones((1, 3, 1), "float32")
    >>> outputs, final_state = ops.matrix_scan(
    ...     keys, keys, values, erase=strength, write=strength
    ... )
    >>> [float(value) for value in outputs[0, :, 0, 0]]
    [1.0, 5.0, 2.0]
    """
    optional = {
        "decay": decay,
        "erase": erase,
        "write": write,
        "initial_state": initial_state,
        "log_decay": log_decay,
    }
    given = {"queries": queries, "keys": keys, "values": values, **optional}
    require_tensors(tuple(optional), **given)
    if decay is not None and log_decay is not None:
        raise ValueError(
            "`decay` and its logarithm, `log_decay`, should not both be given. "
            "Received: two tensors"
        )
    dtype = accumulation_dtype(*given.values())
    given = {
        name: part if part is None else ops.cast(part, dtype)
        for name, part in given.items()
    }
    _require_shapes(given)
    resets = None
    if reset_mask is not None:
        resets = resets_of(reset_mask, given["queries"].shape[:2], dtype)
    given = _with_axes(given)
    key_dim = given["queries"].shape[3]
    heads, value_dim = given["values"].shape[3:]
    run = kernel_for(
        "matrix_scan",
        given["queries"],
        channels=heads * key_dim * value_dim,
        resets=resets is not None,
    )
    initial_state = given["initial_state"]
    if initial_state is None:
        shape = ops.shape(given["queries"])[0], heads, key_dim, value_dim
        initial_state = ops.zeros(shape, dtype)
    is_logarithmic = log_decay is not None
    return run(
        given["queries"],
        given["keys"],
        given["values"],
        given["log_decay" if is_logarithmic else "decay"],
        given["erase"],
        given["write"],
        resets,
        initial_state,
        is_logarithmic,
    )


def _require_shapes(given):
    """Raise unless the arguments fit together."""
    queries, keys, values = (
        given[name] for name in ("queries", "keys", "values")
    )
    require_rank("queries", queries, 4, "(batch, time, query_heads, key_dim)")
    batch, time, query_heads, key_dim = queries.shape
    if time == 0:
        raise ValueError(
            "`queries` should have at least one time step. "
            f"Received: queries.shape={tuple(queries.shape)}"
        )
    products = ()
    if len(keys.shape) == 5:
        products = (keys.shape[2],)
        if products == (0,):
            raise ValueError(
                "`keys` should have at least one product a step. "
                f"Received: keys.shape={tuple(keys.shape)}"
            )
    else:
        require_rank(
            "keys",
            keys,
            4,
            "(batch, time, key_heads, key_dim), or (batch, time, m, "
            "key_heads, key_dim)",
        )
    steps = batch, time, *products
    key_heads = keys.shape[-2]
    require_shape("keys", keys, (*steps, key_heads, key_dim))
    require_rank(
        "values",
        values,
        len(steps) + 2,
        "(batch, time, heads, value_dim), with an axis behind the time if "
        "`keys` have one",
    )
    heads, value_dim = values.shape[-2:]
    require_shape("values", values, (*steps, heads, value_dim))
    for name, sharing in (("queries", query_heads), ("keys", key_heads)):
        if sharing == 0 or heads % sharing:
            raise ValueError(
                f"The heads of `{name}` should divide those of `values`, here "
                f"{heads}. Received: {sharing} heads, "
                f"{name}.shape={tuple(given[name].shape)}"
            )
    for name in ("erase", "write"):
        if given[name] is not None:
            require_shape(name, given[name], (*steps, heads))
    if given["initial_state"] is not None:
        shape = batch, heads, key_dim, value_dim
        require_shape("initial_state", given["initial_state"], shape)
    for name in ("decay", "log_decay"):
        if given[name] is not None:
            _require_decay(name, given[name], (batch, time, heads, key_dim))


def _require_decay(name, decay, shape):
    if not (agree(decay.shape, shape[:3]) or agree(decay.shape, shape)):
        raise ValueError(
            f"`{name}` should have the shape (batch, time, heads) or (batch, "
            f"time, heads, key_dim), here {shape[:3]} or {shape}. "
            f"Received: {name}.shape={tuple(decay.shape)}"
        )


def _with_axes(given):
    """The arguments with an axis of products, and decays with one of keys."""
    given = dict(given)
    if len(given["keys"].shape) == 4:
        for name in ("keys", "values", "erase", "write"):
            if given[name] is not None:
                given[name] = ops.expand_dims(given[name], 2)
    for name in ("decay", "log_decay"):
        if given[name] is not None and len(given[name].shape) == 3:
            given[name] = ops.expand_dims(given[name], 3)
    return given
