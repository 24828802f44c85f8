"""The ways in which a backend runs a function of tensors."""

import keras

BACKEND = keras.backend.backend()
EAGER, GRAPH, COMPILED = "eager", "graph", "compiled"
# The usual way first.
MODES = {
    "jax": (COMPILED, EAGER),
    "tensorflow": (EAGER, GRAPH, COMPILED),
    "torch": (EAGER, COMPILED),
}[BACKEND]


def program(function, mode):
    """A function of one structure of tensors that runs in a given way.

    A compiled program serves any values, and each combination of shapes and
    dtypes needs one of its own. PyTorch's is traced, and its backward pass
    too, but not handed to a compiler, which would take minutes a program.
    """
    if mode == EAGER:
        return function
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=mode == COMPILED)
    import torch

    # Beyond eight programs of the same code it would run eagerly.
    torch._dynamo.config.recompile_limit = 2**16
    torch._dynamo.config.accumulated_recompile_limit = 2**16
    return torch.compile(function, backend="aot_eager", dynamic=False)
