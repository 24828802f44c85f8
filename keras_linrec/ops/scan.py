"""Recurrences over time: the entry points to the kernels."""

from numbers import Real

from keras import ops

from keras_linrec import activations
from keras_linrec import types
from keras_linrec.kernels.native.call_encoding import activation_flags
from keras_linrec.kernels.operations.nonlinear_recurrence import Dynamics
from keras_linrec.kernels.operations.nonlinear_recurrence import Operands
from keras_linrec.ops.dispatch import kernel_for
from keras_linrec.ops.feed_through import feed_through
from keras_linrec.ops.masks import packing
from keras_linrec.ops.precision import accumulation_dtype
from keras_linrec.ops.scan_checks import require_alike
from keras_linrec.ops.scan_checks import require_decay
from keras_linrec.ops.scan_checks import require_feedthrough
from keras_linrec.ops.scan_checks import require_kernels
from keras_linrec.ops.scan_checks import require_operands
from keras_linrec.ops.scan_checks import require_pair
from keras_linrec.ops.scan_checks import require_pair_of_factors
from keras_linrec.ops.scan_checks import require_pairs
from keras_linrec.ops.scan_checks import require_parts
from keras_linrec.ops.scan_checks import require_rank
from keras_linrec.ops.scan_checks import require_shape
from keras_linrec.ops.scan_checks import require_solver
from keras_linrec.ops.scan_checks import require_state
from keras_linrec.validation import in_any_byte_order
from keras_linrec.validation import require_array
from keras_linrec.validation import require_bool
from keras_linrec.validation import require_bools
from keras_linrec.validation import require_tensors


@in_any_byte_order
def linear_scan(
    decay: types.Tensor,
    inputs: types.Tensor,
    initial_state: types.Tensor = None,
    reverse: bool = False,
    reset_mask: types.Tensor = None,
) -> types.Tensor:
    """The real linear recurrence h_t = decay_t * h_{t-1} + inputs_t.

    Args:
        decay: float tensor, (channels,) for a time-invariant system, or
            (batch, time, channels).
        inputs: float tensor, (batch, time, channels), with at least one step.
        initial_state: float tensor, (batch, channels), the state before the
            first step. Defaults to `None`: zero.
        reverse: boolean. If `True`, the recurrence runs from the last step to
            the first, h_t = decay_t * h_{t+1} + inputs_t. Defaults to
            `False`.
        reset_mask: boolean tensor, (batch, time), true at steps before which
            the state is reset to zero, so that several sequences can share a
            row. In reverse, the state is reset after the last step of each
            sequence. A reset drops the state instead of multiplying it by
            zero, so that a NaN or an infinity in one sequence reaches neither
            outputs nor gradients of another one in its row. The decay at a
            reset is not used. (A `decay` of 0 does not stop NaN.) Defaults to
            `None`: no resets.

    Returns:
        `(outputs, final_state)`: the states of all steps, (batch, time,
        channels), and the state after the last step computed, (batch,
        channels). Both are float32, or float64 if an argument is: sums of
        thousands of terms are never accumulated in 16 bits. They are
        differentiable in every argument, in reverse mode, to any order.
        `keras_linrec.config.set_kernel` chooses the kernel.

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
    require_tensors(
        ("initial_state",),
        decay=decay,
        inputs=inputs,
        initial_state=initial_state,
    )
    state = None if initial_state is None else (initial_state,)
    outputs, final_state = _scan(
        (decay,), (inputs,), state, reverse, reset_mask
    )
    return outputs[0], final_state[0]


@in_any_byte_order
def complex_linear_scan(
    decay: types.Tensor,
    inputs: types.Tensor,
    initial_state: types.Tensor = None,
    reverse: bool = False,
    reset_mask: types.Tensor = None,
) -> types.Tensor:
    """The complex linear recurrence h_t = decay_t * h_{t-1} + inputs_t.

    Every argument and result is a `(real, imag)` pair of float tensors.

    Args:
        decay: pair of float tensors, (channels,) for a time-invariant system,
            or (batch, time, channels).
        inputs: pair of float tensors, (batch, time, channels).
        initial_state: pair of float tensors, (batch, channels). Defaults to
            `None`: zero.
        reverse: boolean, whether the recurrence runs from the last step to
            the first. Defaults to `False`.
        reset_mask: boolean tensor, (batch, time), as in `linear_scan`.
            Defaults to `None`: no resets.

    Returns:
        `(outputs, final_state)`, both pairs, with shapes, dtypes and
        derivatives as in `linear_scan`.

    Raises:
        ValueError: if one of these arguments is not a pair, shapes do not
            agree, or there is no time step.

    Example: each step is a quarter turn.

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
    require_pair("decay", decay)
    require_pair("inputs", inputs)
    if initial_state is not None:
        require_pair("initial_state", initial_state)
    require_tensors(
        ("initial_state",),
        decay=decay,
        inputs=inputs,
        initial_state=initial_state,
    )
    return _scan(decay, inputs, initial_state, reverse, reset_mask)


@in_any_byte_order
def projected_scan(
    decay: types.Tensor,
    inputs: types.Tensor,
    input_kernel: types.Tensor,
    output_kernel: types.Tensor,
    initial_state: types.Tensor = None,
    reverse: bool = False,
    keep_all: bool = True,
    feedthrough: types.Tensor = None,
    reset_mask: types.Tensor = None,
) -> tuple[types.Tensor, types.Tensor]:
    """A linear recurrence between two projections.

    outputs = Re(scan(inputs @ input_kernel) @ output_kernel)
              + inputs[..., :count] @ feedthrough

    Here, scan is `linear_scan` or `complex_linear_scan`. All layers whose
    recurrence is diagonal in some basis call this function. The native kernel
    computes projected inputs and states block by block and never stores those
    of all steps.

    In a complex system, `decay`, the kernels and the states are `(real,
    imag)` pairs of float tensors; in a real system they are float tensors.

    Args:
        decay: pair or tensor, (channels,) or (batch, time, channels).
        inputs: float tensor, (batch, time, features).
        input_kernel: pair or tensor, (features, channels).
        output_kernel: pair or tensor, (channels, units).
        initial_state: pair or tensor, (batch, channels). Defaults to `None`:
            zero.
        reverse: boolean, whether the recurrence runs from the last step to
            the first. Defaults to `False`.
        keep_all: boolean, whether to return the outputs, or only the final
            state. A time-invariant system whose outputs are not needed
            reduces its inputs in blocks, with one product per block and no
            states of single steps, unless a decay is larger than 2 in
            magnitude. Defaults to `True`.
        feedthrough: float tensor, (count, units), applied to the first
            `count` features. Defaults to `None`: no feedthrough.
        reset_mask: boolean tensor, (batch, time), as in `linear_scan`.
            Defaults to `None`: no resets.

    Returns:
        `(outputs, final_state)`: a float tensor (batch, time, units), or
        `None` if `keep_all` is `False`; and a pair or a tensor (batch,
        channels). Dtypes and derivatives are those of `linear_scan`.

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
    require_tensors(
        ("initial_state", "feedthrough"),
        decay=decay,
        inputs=inputs,
        input_kernel=input_kernel,
        output_kernel=output_kernel,
        initial_state=initial_state,
        feedthrough=feedthrough,
    )
    require_bools(reverse=reverse, keep_all=keep_all)
    is_complex = isinstance(decay, (tuple, list))
    decay = require_parts("decay", decay, is_complex)
    input_kernel = require_parts("input_kernel", input_kernel, is_complex)
    output_kernel = require_parts("output_kernel", output_kernel, is_complex)
    if initial_state is not None:
        initial_state = require_parts(
            "initial_state", initial_state, is_complex
        )
    weights = (*decay, *input_kernel, *output_kernel, feedthrough)
    dtype = accumulation_dtype(inputs, *weights, *(initial_state or ()))
    inputs = ops.cast(inputs, dtype)
    decay = _cast(decay, dtype)
    input_kernel = _cast(input_kernel, dtype)
    output_kernel = _cast(output_kernel, dtype)
    require_rank("inputs", inputs, 3, "(batch, time, features)")
    require_kernels(input_kernel, output_kernel, inputs.shape[2])
    require_feedthrough(feedthrough, inputs.shape[2], output_kernel[0].shape[1])
    batch, time, _ = inputs.shape
    channels = input_kernel[0].shape[1]
    require_decay(decay, (batch, time, channels))
    resets = resets_of_scan(reset_mask, (batch, time), reverse, dtype)
    if initial_state is None:
        shape = (ops.shape(inputs)[0], channels)
        initial_state = tuple(ops.zeros(shape, dtype) for _ in decay)
    else:
        initial_state = _cast(initial_state, dtype)
        require_state(initial_state, (batch, time, channels))
    run = kernel_for(
        "projected_scan",
        inputs,
        decay,
        keep_all=keep_all,
    )
    arguments = decay, inputs, input_kernel, output_kernel, initial_state
    options = reverse, resets
    if feedthrough is None or not keep_all:
        outputs, final_state = run(*arguments, *options)
    else:
        feedthrough = ops.cast(feedthrough, dtype)
        outputs, final_state = feed_through(
            run, feedthrough, arguments, options
        )
    return (
        outputs if keep_all else None,
        final_state if is_complex else final_state[0],
    )


@in_any_byte_order
def nonlinear_scan(
    inputs: types.Tensor,
    input_kernel: types.Tensor,
    recurrent_kernel: types.Tensor,
    bias: types.Tensor = None,
    initial_state: types.Tensor = None,
    activation: types.Identifier = "tanh",
    modulus_bias: types.Tensor = None,
    solver: types.Solver | None = None,
    linear_kernel: types.Tensor = None,
    step_size: types.Tensor = 1.0,
    gated: bool = False,
    keep_all: bool = True,
    reset_mask: types.Tensor = None,
) -> types.Tensor:
    """A recurrence that is nonlinear in its state, computed step by step.

    Without a solver, with z_t = inputs_t @ input_kernel + bias,

        h_t = activation(h_{t-1} @ recurrent_kernel + z_t).

    With a solver, each step integrates

        h' = h @ linear_kernel + activation(h @ recurrent_kernel + z_t)

    over a time of `step_size`. Such a recurrence cannot run in parallel over
    time. The native kernel computes all steps in one call, with the state in
    the processor's cache.

    Args:
        inputs: float tensor, (batch, time, features), with at least one step.
        input_kernel: float tensor, (features, units); if `gated`, (features,
            2 units) with the gate's columns last.
        recurrent_kernel: float tensor, (units, units); or a pair of tensors
            (units, rank) and (rank, units), which stands for I - first @
            second and costs less if `rank` is small.
        bias: float tensor, one entry for each column of `input_kernel`.
            Defaults to `None`: zero.
        initial_state: float tensor, (batch, units). Defaults to `None`: zero.
        activation: a name that `keras_linrec.activations.get` accepts, or a
            function of a tensor (batch, units). Defaults to `"tanh"`. The
            native kernel has `"linear"`, `"relu"`, `"leaky_relu"`, `"tanh"`,
            `"sigmoid"`, `"gelu"`, `"oplu"` and `"modrelu"`; for any other
            activation the recurrence runs in a portable loop.
        modulus_bias: float tensor (units // 2,), the second argument of an
            activation that takes one, such as `"modrelu"`. Defaults to
            `None`.
        solver: `None`, or the explicit Runge-Kutta method: `"euler"`, `"rk2"`
            (midpoint) or `"rk4"`. Inputs are constant within a step. Defaults
            to `None`.
        linear_kernel: float tensor, (units, units); requires a solver.
            Defaults to `None`: zero.
        step_size: float, scalar tensor, or tensor (batch, time). A tensor is
            differentiated. Defaults to 1.
        gated: boolean, whether h' is multiplied by sigmoid(h @
            recurrent_kernel + z'_t), where z' comes from the gate's columns
            of `input_kernel` and `bias`; requires a solver. Defaults to
            `False`.
        keep_all: boolean, whether to return the outputs, or only the final
            state. Defaults to `True`.
        reset_mask: boolean tensor, (batch, time), true at steps before which
            the state is reset to zero, whatever it was. Defaults to `None`:
            no resets.

    Returns:
        `(outputs, final_state)`: the states of all steps, (batch, time,
        units), or `None` if `keep_all` is `False`; and the last state,
        (batch, units). Dtypes and derivatives are those of `linear_scan`.

    Raises:
        ValueError: if shapes do not agree, there is no time step, or an
            argument that requires a solver is given without one.

    Example:

    >>> import numpy as np
    >>> from keras_linrec import ops
    >>> outputs, final_state = ops.nonlinear_scan(
    ...     inputs=np.ones((2, 10, 3), "float32"),
    ...     input_kernel=np.ones((3, 4), "float32"),
    ...     recurrent_kernel=np.eye(4, dtype="float32"),
    ... )
    >>> tuple(outputs.shape), tuple(final_state.shape)
    ((2, 10, 4), (2, 4))
    """
    require_tensors(
        ("bias", "initial_state", "modulus_bias", "linear_kernel"),
        inputs=inputs,
        input_kernel=input_kernel,
        recurrent_kernel=recurrent_kernel,
        bias=bias,
        initial_state=initial_state,
        modulus_bias=modulus_bias,
        linear_kernel=linear_kernel,
        step_size=step_size,
    )
    require_bools(gated=gated, keep_all=keep_all)
    trained_steps = not isinstance(step_size, Real)
    dynamics = Dynamics(
        activations.get(activation), solver, bool(gated), trained_steps
    )
    require_solver(dynamics, linear_kernel, step_size)
    factored = isinstance(recurrent_kernel, (tuple, list))
    if factored:
        require_pair_of_factors(recurrent_kernel, linear_kernel)
    factors = tuple(recurrent_kernel) if factored else (recurrent_kernel,)
    weights = (input_kernel, bias, modulus_bias, linear_kernel, *factors)
    # A number has no dtype of its own.
    step_sizes = step_size if trained_steps else None
    dtype = accumulation_dtype(inputs, initial_state, *weights, step_sizes)

    def cast(tensor, *shape):
        if tensor is None:
            return ops.zeros(shape, dtype)
        return ops.cast(tensor, dtype)

    inputs, input_kernel = cast(inputs), cast(input_kernel)
    require_rank("inputs", inputs, 3, "(batch, time, features)")
    recurrent_kernel, *expansion = map(cast, factors)
    for part in (recurrent_kernel, *expansion):
        require_rank("recurrent_kernel", part, 2, "(units, units)")
    units = recurrent_kernel.shape[0]
    if units == 0:
        raise ValueError(
            "`recurrent_kernel` should have at least one unit. Received: "
            f"recurrent_kernel.shape={tuple(recurrent_kernel.shape)}"
        )
    expansion = expansion[0] if factored else cast(None, 0, units)
    operands = Operands(
        inputs,
        input_kernel,
        cast(bias, (1 + gated) * units),
        recurrent_kernel,
        expansion,
        _step_sizes(step_size, dtype),
        cast(modulus_bias, 0),
        resets_of(reset_mask, inputs.shape[:2], dtype),
        cast(initial_state, ops.shape(inputs)[0], units),
    )
    require_operands(operands, units, gated)
    require_pairs(dynamics.activation, operands.modulus_bias, units)
    if linear_kernel is not None:
        linear_kernel = cast(linear_kernel)
        require_shape("linear_kernel", linear_kernel, (units, units))
        operands = operands._replace(
            recurrent_kernel=ops.concatenate(
                [linear_kernel, recurrent_kernel], axis=1
            )
        )
    run = _nonlinear_kernel(dynamics, operands)
    outputs, final_state = run(dynamics, operands, keep_all)
    return outputs if keep_all else None, final_state


def _step_sizes(step_size, dtype):
    """The step sizes as a tensor (1, 1) or (batch, time)."""
    # `ops.cast` would convert a float by way of float32.
    step_size = ops.convert_to_tensor(step_size, dtype)
    if len(step_size.shape) == 0:
        return ops.reshape(step_size, (1, 1))
    require_rank("step_size", step_size, 2, "() or (batch, time)")
    return step_size


def _scan(decay, inputs, initial_state, reverse, reset_mask):
    """The scan on tuples of one tensor (real) or two (complex)."""
    require_bool("reverse", reverse)
    dtype = accumulation_dtype(*decay, *inputs, *(initial_state or ()))
    decay, inputs = _cast(decay, dtype), _cast(inputs, dtype)
    require_rank("inputs", inputs[0], 3, "(batch, time, channels)")
    require_alike("inputs", inputs)
    shape = tuple(inputs[0].shape)
    require_decay(decay, shape)
    resets = resets_of_scan(reset_mask, shape[:2], reverse, dtype)
    if initial_state is None:
        zeros = ops.zeros((ops.shape(inputs[0])[0], shape[-1]), dtype)
        initial_state = tuple(zeros for _ in inputs)
    else:
        initial_state = _cast(initial_state, dtype)
        require_state(initial_state, shape)
    run = kernel_for("linear_scan", inputs[0], decay)
    return run(decay, inputs, initial_state, reverse, resets)


def _nonlinear_kernel(dynamics, operands):
    return kernel_for(
        "nonlinear_scan",
        operands.inputs,
        channels=operands.initial_state.shape[-1],
        known_activation=activation_flags(dynamics.activation) is not None,
        pairs=dynamics.activation in activations.OF_PAIRS,
    )


def resets_of_scan(reset_mask, shape, reverse, dtype):
    """The resets as kernels take them, or `None`."""
    if reset_mask is None:
        return None
    resets = resets_of(reset_mask, shape, dtype)
    return packing.backward_resets(resets) if reverse else resets


def resets_of(reset_mask, shape, dtype):
    """Numbers (batch, time), 1 at resets; (0, 0) if there is no mask."""
    if reset_mask is None:
        return ops.zeros((0, 0), dtype)
    require_array("reset_mask", reset_mask)
    require_shape("reset_mask", reset_mask, tuple(shape))
    return ops.cast(ops.cast(reset_mask, "bool"), dtype)


def _cast(parts, dtype):
    return tuple(ops.cast(part, dtype) for part in parts)
