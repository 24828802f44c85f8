"""Checks of the arguments of recurrences."""

from keras_linrec import activations
from keras_linrec.kernels.operations.nonlinear_recurrence import METHODS
from keras_linrec.validation import agree
from keras_linrec.validation import require_array
from keras_linrec.validation import require_choice

SOLVERS = tuple(METHODS)


def require_solver(dynamics, linear_kernel, step_size):
    require_choice("solver", dynamics.solver, (None, *SOLVERS))
    if dynamics.solver is None and (
        dynamics.gated
        or linear_kernel is not None
        or dynamics.trained_steps
        or step_size != 1.0
    ):
        raise ValueError(
            "`linear_kernel`, `step_size` and `gated` need a solver. "
            "Received: solver=None"
        )


def require_pair_of_factors(recurrent_kernel, linear_kernel):
    if len(recurrent_kernel) != 2 or linear_kernel is not None:
        raise ValueError(
            "`recurrent_kernel` should be a tensor (units, units), or a pair "
            "(units, rank) and (rank, units) without a `linear_kernel`. "
            f"Received: {len(recurrent_kernel)} tensors, "
            f"linear_kernel={linear_kernel}"
        )


def require_operands(operands, units, gated):
    batch, time, features = operands.inputs.shape
    if time == 0:
        raise ValueError(
            "`inputs` should have at least one time step. "
            f"Received: inputs.shape={tuple(operands.inputs.shape)}"
        )
    driven = (1 + gated) * units
    rank = operands.expansion.shape[0] or units
    step_size = operands.step_size
    expected = {
        "input_kernel": (features, driven),
        "bias": (driven,),
        "recurrent_kernel": (units, rank),
        "initial_state": (batch, units),
    }
    if operands.expansion.shape[0]:
        require_shape("recurrent_kernel[1]", operands.expansion, (rank, units))
    if tuple(step_size.shape) != (1, 1):
        expected["step_size"] = (batch, time)
    for name, shape in expected.items():
        require_shape(name, getattr(operands, name), shape)


def require_pairs(activation, modulus_bias, units):
    activations.require_even_units(activation, units)
    require_rank("modulus_bias", modulus_bias, 1, "(units // 2,)")
    if activation is activations.modrelu:
        require_shape("modulus_bias", modulus_bias, (units // 2,))
    elif modulus_bias.shape[0] and activation in activations.OF_NUMBERS:
        raise ValueError(
            "`modulus_bias` requires an activation that takes it, such as "
            f"'modrelu'. Received: activation={activation.__name__}"
        )


def require_shape(name, tensor, shape):
    if not agree(tuple(tensor.shape), shape):
        raise ValueError(
            f"`{name}` should have the shape {shape} here. "
            f"Received: {name}.shape={tuple(tensor.shape)}"
        )


def require_parts(name, value, is_complex):
    if is_complex:
        require_pair(name, value)
        return value
    if isinstance(value, (tuple, list)):
        raise ValueError(
            f"`{name}` should be a tensor, as `decay` is, or `decay` a pair "
            f"(real, imag). Received: {name} of type {type(value).__name__}"
        )
    return (value,)


def require_pair(name, value):
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(
            f"`{name}` should be a pair of tensors (real, imag). "
            f"Received: {name} of type {type(value).__name__}"
        )


def require_rank(name, tensor, rank, form):
    if len(tensor.shape) != rank:
        raise ValueError(
            f"`{name}` should have the shape {form}. "
            f"Received: {name}.shape={tuple(tensor.shape)}"
        )


def require_alike(name, parts):
    shapes = [tuple(part.shape) for part in parts]
    if not all(agree(shape, shapes[0]) for shape in shapes):
        raise ValueError(
            f"The real and the imaginary part of `{name}` should have the "
            f"same shape. Received: {shapes[0]} and {shapes[1]}"
        )


def require_kernels(input_kernel, output_kernel, features):
    for part in input_kernel:
        require_rank("input_kernel", part, 2, "(features, channels)")
    for part in output_kernel:
        require_rank("output_kernel", part, 2, "(channels, units)")
    require_alike("input_kernel", input_kernel)
    require_alike("output_kernel", output_kernel)
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


def require_feedthrough(feedthrough, features, units):
    if feedthrough is None:
        return
    require_array("feedthrough", feedthrough)
    require_rank("feedthrough", feedthrough, 2, "(count, units)")
    if feedthrough.shape[0] > features or feedthrough.shape[1] != units:
        raise ValueError(
            f"`feedthrough` should have at most {features} rows, the features "
            f"of `inputs`, and {units} columns, as `output_kernel`. "
            f"Received: feedthrough.shape={tuple(feedthrough.shape)}"
        )


def require_decay(decay, shape):
    """`shape` is that of the scan's inputs, (batch, time, channels)."""
    if shape[1] == 0:
        raise ValueError(
            "`inputs` should have at least one time step. "
            f"Received: inputs.shape={shape}"
        )
    require_alike("decay", decay)
    for part in decay:
        if not (agree(part.shape, shape[2:]) or agree(part.shape, shape)):
            raise ValueError(
                "`decay` should have the shape (channels,) or (batch, time, "
                f"channels), here {shape[2:]} or {shape}. "
                f"Received: decay.shape={tuple(part.shape)}"
            )


def require_state(initial_state, shape):
    for part in initial_state:
        if not agree(part.shape, (shape[0], shape[2])):
            raise ValueError(
                "`initial_state` should have the shape (batch, channels), "
                f"here {(shape[0], shape[2])}. "
                f"Received: initial_state.shape={tuple(part.shape)}"
            )
