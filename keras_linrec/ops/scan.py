"""The doors of the hot path: linear recurrences over time."""

from keras import ops

from keras_linrec import config
from keras_linrec import kernels
from keras_linrec.ops.precision import accumulation_dtype


def linear_scan(decay, inputs, initial_state=None, reverse=False):
    """The real linear recurrence h_t = decay_t * h_{t-1} + inputs_t.

    Args:
        decay: float tensor, (channels,) for a time-invariant system, or
            (batch, time, channels).
        inputs: float tensor, (batch, time, channels); any time from 1 on.
        initial_state: float tensor, (batch, channels), the state before the
            first step. Defaults to `None`, which is zero.
        reverse: whether the recurrence runs from the last step to the first,
            h_t = decay_t * h_{t+1} + inputs_t. Defaults to `False`.

    Returns:
        `(outputs, final_state)`: the states of all steps, (batch, time,
        channels), and that of the step taken last, (batch, channels). Both
        are float32, or float64 if an argument is: sums of thousands of terms
        are never kept in 16 bits. Differentiable in every argument, in
        reverse mode, to any order. `keras_linrec.config.set_kernel` chooses
        how it is computed.

    Raises:
        ValueError: if shapes do not agree or there is no time step.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> outputs, final_state = ops.linear_scan(
    ...     decay=np.array([0.5], "float32"),
    ...     inputs=np.ones((1, 3, 1), "float32"),
    ... )
    >>> [float(value) for value in outputs[0, :, 0]]
    [1.0, 1.5, 1.75]
    """
    state = None if initial_state is None else (initial_state,)
    outputs, final_state = _scan((decay,), (inputs,), state, reverse)
    return outputs[0], final_state[0]


def complex_linear_scan(decay, inputs, initial_state=None, reverse=False):
    """The complex linear recurrence h_t = decay_t * h_{t-1} + inputs_t.

    Every argument and result is a `(real, imag)` pair of float tensors.

    Args:
        decay: pair of float tensors, (channels,) for a time-invariant system,
            or (batch, time, channels).
        inputs: pair of float tensors, (batch, time, channels).
        initial_state: pair of float tensors, (batch, channels). Defaults to
            `None`, which is zero.
        reverse: whether the recurrence runs from the last step to the first.
            Defaults to `False`.

    Returns:
        `(outputs, final_state)`, both pairs, with shapes and dtypes as in
        `linear_scan`.

    Raises:
        ValueError: if an argument is no pair, shapes do not agree, or there
            is no time step.

    Example: a quarter turn a step.

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> one, zero = np.ones((1, 1), "float32"), np.zeros((1, 1), "float32")
    >>> silence = np.zeros((1, 4, 1), "float32")
    >>> (real, imag), _ = ops.complex_linear_scan(
    ...     decay=(zero[0], one[0]),
    ...     inputs=(silence, silence),
    ...     initial_state=(one, zero),
    ... )
    >>> [float(value) for value in imag[0, :, 0]]
    [1.0, 0.0, -1.0, 0.0]
    """
    _require_pair("decay", decay)
    _require_pair("inputs", inputs)
    if initial_state is not None:
        _require_pair("initial_state", initial_state)
    return _scan(decay, inputs, initial_state, reverse)


def projected_scan(
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state=None,
    reverse=False,
):
    """A complex recurrence between two projections.

    outputs = Re(complex_linear_scan(inputs @ input_kernel) @ output_kernel)

    Every layer whose recurrence is diagonal in some basis calls this, and so
    never holds the projected inputs or the states of all steps itself.

    Args:
        decay: pair of float tensors, (channels,) or (batch, time, channels).
        inputs: float tensor, (batch, time, features).
        input_kernel: pair of float tensors, (features, channels).
        output_kernel: pair of float tensors, (channels, units).
        initial_state: pair of float tensors, (batch, channels). Defaults to
            `None`, which is zero.
        reverse: whether the recurrence runs from the last step to the first.
            Defaults to `False`.

    Returns:
        `(outputs, final_state)`: a float tensor (batch, time, units), and a
        pair of float tensors (batch, channels); dtypes as in `linear_scan`.

    Raises:
        ValueError: if an argument should be a pair and is not, shapes do not
            agree, or there is no time step.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> pair = lambda *shape: (np.ones(shape, "float32"),) * 2
    >>> outputs, (real, imag) = ops.projected_scan(
    ...     decay=pair(4),
    ...     inputs=np.ones((2, 10, 3), "float32"),
    ...     input_kernel=pair(3, 4),
    ...     output_kernel=pair(4, 5),
    ... )
    >>> tuple(outputs.shape), tuple(real.shape)
    ((2, 10, 5), (2, 4))
    """
    _require_pair("decay", decay)
    _require_pair("input_kernel", input_kernel)
    _require_pair("output_kernel", output_kernel)
    if initial_state is not None:
        _require_pair("initial_state", initial_state)
    state = () if initial_state is None else initial_state
    dtype = accumulation_dtype(
        inputs, *decay, *input_kernel, *output_kernel, *state
    )
    inputs = ops.cast(inputs, dtype)
    input_kernel = [ops.cast(part, dtype) for part in input_kernel]
    real, imag = (ops.cast(part, dtype) for part in output_kernel)
    _require_rank("inputs", inputs, 3, "(batch, time, features)")
    for part in input_kernel:
        _require_rank("input_kernel", part, 2, "(features, channels)")
    for part in (real, imag):
        _require_rank("output_kernel", part, 2, "(channels, units)")
    _require_alike("input_kernel", input_kernel)
    _require_alike("output_kernel", (real, imag))
    if inputs.shape[2] != input_kernel[0].shape[0]:
        raise ValueError(
            "`input_kernel` should be (features, channels) with the features "
            f"of `inputs`. Received: input_kernel.shape="
            f"{tuple(input_kernel[0].shape)}, "
            f"inputs.shape={tuple(inputs.shape)}"
        )
    if real.shape[0] != input_kernel[0].shape[1]:
        raise ValueError(
            "`output_kernel` should be (channels, units) with the channels "
            "of `input_kernel`. Received: output_kernel.shape="
            f"{tuple(real.shape)}, input_kernel.shape="
            f"{tuple(input_kernel[0].shape)}"
        )
    # One product each way over both parts: half the passes over the inputs.
    projected = inputs @ ops.concatenate(input_kernel, axis=1)
    states, final_state = _scan(
        decay, ops.split(projected, 2, axis=-1), initial_state, reverse
    )
    outputs = ops.concatenate(states, axis=-1) @ ops.concatenate(
        [real, -imag], axis=0
    )
    return outputs, final_state


def _scan(decay, inputs, initial_state, reverse):
    """The scan on tuples of one tensor (real) or two (complex)."""
    dtype = accumulation_dtype(*decay, *inputs, *(initial_state or ()))
    decay = tuple(ops.cast(part, dtype) for part in decay)
    inputs = tuple(ops.cast(part, dtype) for part in inputs)
    _check_shapes(decay, inputs)
    if initial_state is None:
        zeros = ops.zeros_like(inputs[0][:, 0])
        initial_state = tuple(zeros for _ in inputs)
    else:
        initial_state = tuple(ops.cast(part, dtype) for part in initial_state)
        _check_state(initial_state, inputs)
    scan = kernels.select(config.get_kernel())
    outputs = scan(decay, inputs, initial_state, reverse)
    last = 0 if reverse else -1
    return outputs, tuple(part[:, last] for part in outputs)


def _require_pair(name, value):
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(
            f"`{name}` should be a pair of tensors (real, imag). "
            f"Received: {name} of type {type(value).__name__}"
        )


def _require_rank(name, tensor, rank, form):
    if len(tensor.shape) != rank:
        raise ValueError(
            f"`{name}` should have the shape {form}. "
            f"Received: {name}.shape={tuple(tensor.shape)}"
        )


def _require_alike(name, parts):
    shapes = [tuple(part.shape) for part in parts]
    if not all(_agree(shape, shapes[0]) for shape in shapes):
        raise ValueError(
            f"The real and the imaginary part of `{name}` should have the "
            f"same shape. Received: {shapes[0]} and {shapes[1]}"
        )


def _agree(one, other):
    """Whether two shapes are the same, as far as they are known."""
    return len(one) == len(other) and all(
        a == b for a, b in zip(one, other) if a is not None and b is not None
    )


def _check_shapes(decay, inputs):
    _require_rank("inputs", inputs[0], 3, "(batch, time, channels)")
    shape = tuple(inputs[0].shape)
    if shape[1] == 0:
        raise ValueError(
            "`inputs` should have at least one time step. "
            f"Received: inputs.shape={shape}"
        )
    _require_alike("inputs", inputs)
    _require_alike("decay", decay)
    for part in decay:
        if not (_agree(part.shape, shape[2:]) or _agree(part.shape, shape)):
            raise ValueError(
                "`decay` should have the shape (channels,) or that of "
                f"`inputs`. Received: decay.shape={tuple(part.shape)}, "
                f"inputs.shape={shape}"
            )


def _check_state(initial_state, inputs):
    shape = tuple(inputs[0].shape)
    for part in initial_state:
        if not _agree(part.shape, (shape[0], shape[2])):
            raise ValueError(
                "`initial_state` should have the shape (batch, channels). "
                f"Received: initial_state.shape={tuple(part.shape)}, "
                f"inputs.shape={shape}"
            )
