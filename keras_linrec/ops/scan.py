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
    """A linear recurrence between two projections.

    outputs = Re(scan(inputs @ input_kernel) @ output_kernel)

    Every layer whose recurrence is diagonal in some basis calls this, and so
    never holds the projected inputs or the states of all steps itself: the
    native kernel computes them block by block and writes them nowhere.

    In a complex system `decay`, the kernels and the states are `(real, imag)`
    pairs of float tensors; in a real one they are float tensors.

    Args:
        decay: pair or tensor, (channels,) or (batch, time, channels).
        inputs: float tensor, (batch, time, features).
        input_kernel: pair or tensor, (features, channels).
        output_kernel: pair or tensor, (channels, units).
        initial_state: pair or tensor, (batch, channels). Defaults to `None`,
            which is zero.
        reverse: whether the recurrence runs from the last step to the first.
            Defaults to `False`.

    Returns:
        `(outputs, final_state)`: a float tensor (batch, time, units), and a
        pair or a tensor (batch, channels); dtypes and derivatives as in
        `linear_scan`.

    Raises:
        ValueError: if some arguments are pairs and others are not, shapes do
            not agree, or there is no time step.

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
    is_complex = isinstance(decay, (tuple, list))
    decay = _parts("decay", decay, is_complex)
    input_kernel = _parts("input_kernel", input_kernel, is_complex)
    output_kernel = _parts("output_kernel", output_kernel, is_complex)
    if initial_state is not None:
        initial_state = _parts("initial_state", initial_state, is_complex)
    dtype = accumulation_dtype(
        inputs,
        *(*decay, *input_kernel, *output_kernel),
        *(initial_state or ()),
    )
    inputs = ops.cast(inputs, dtype)
    decay = _cast(decay, dtype)
    input_kernel = _cast(input_kernel, dtype)
    output_kernel = _cast(output_kernel, dtype)
    _require_rank("inputs", inputs, 3, "(batch, time, features)")
    _check_kernels(input_kernel, output_kernel, inputs.shape[2])
    batch, time, _ = inputs.shape
    channels = input_kernel[0].shape[1]
    _check_decay(decay, (batch, time, channels))
    if initial_state is None:
        shape = (ops.shape(inputs)[0], channels)
        initial_state = tuple(ops.zeros(shape, dtype) for _ in decay)
    else:
        initial_state = _cast(initial_state, dtype)
        _check_state(initial_state, (batch, time, channels))
    outputs, final_state = kernels.select(config.get_kernel()).projected_scan(
        decay, inputs, input_kernel, output_kernel, initial_state, reverse
    )
    return outputs, final_state if is_complex else final_state[0]


def _scan(decay, inputs, initial_state, reverse):
    """The scan on tuples of one tensor (real) or two (complex)."""
    dtype = accumulation_dtype(*decay, *inputs, *(initial_state or ()))
    decay, inputs = _cast(decay, dtype), _cast(inputs, dtype)
    _require_rank("inputs", inputs[0], 3, "(batch, time, channels)")
    _require_alike("inputs", inputs)
    shape = tuple(inputs[0].shape)
    _check_decay(decay, shape)
    if initial_state is None:
        zeros = ops.zeros_like(inputs[0][:, 0])
        initial_state = tuple(zeros for _ in inputs)
    else:
        initial_state = _cast(initial_state, dtype)
        _check_state(initial_state, shape)
    return kernels.select(config.get_kernel()).scan(
        decay, inputs, initial_state, reverse
    )


def _cast(parts, dtype):
    return tuple(ops.cast(part, dtype) for part in parts)


def _parts(name, value, is_complex):
    if is_complex:
        _require_pair(name, value)
        return value
    if isinstance(value, (tuple, list)):
        raise ValueError(
            f"`{name}` should be a tensor, as `decay` is, or `decay` a pair "
            f"(real, imag). Received: {name} of type {type(value).__name__}"
        )
    return (value,)


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


def _check_kernels(input_kernel, output_kernel, features):
    for part in input_kernel:
        _require_rank("input_kernel", part, 2, "(features, channels)")
    for part in output_kernel:
        _require_rank("output_kernel", part, 2, "(channels, units)")
    _require_alike("input_kernel", input_kernel)
    _require_alike("output_kernel", output_kernel)
    into, out = tuple(input_kernel[0].shape), tuple(output_kernel[0].shape)
    if features != into[0]:
        raise ValueError(
            "`input_kernel` should be (features, channels) with the features "
            f"of `inputs`. Received: input_kernel.shape={into}, inputs with "
            f"{features} features"
        )
    if out[0] != into[1]:
        raise ValueError(
            "`output_kernel` should be (channels, units) with the channels "
            f"of `input_kernel`. Received: output_kernel.shape={out}, "
            f"input_kernel.shape={into}"
        )


def _check_decay(decay, shape):
    """`shape` is that of the scan's inputs, (batch, time, channels)."""
    if shape[1] == 0:
        raise ValueError(
            "`inputs` should have at least one time step. "
            f"Received: inputs.shape={shape}"
        )
    _require_alike("decay", decay)
    for part in decay:
        if not (_agree(part.shape, shape[2:]) or _agree(part.shape, shape)):
            raise ValueError(
                "`decay` should have the shape (channels,) or (batch, time, "
                f"channels), here {shape[2:]} or {shape}. "
                f"Received: decay.shape={tuple(part.shape)}"
            )


def _check_state(initial_state, shape):
    for part in initial_state:
        if not _agree(part.shape, (shape[0], shape[2])):
            raise ValueError(
                "`initial_state` should have the shape (batch, channels), "
                f"here {(shape[0], shape[2])}. "
                f"Received: initial_state.shape={tuple(part.shape)}"
            )
