"""Values that can be read while a program runs."""

from keras_linrec.kernels import backends


def values_of(tensor):
    """The values of a tensor as a NumPy array, or `None`.

    They can be read at no cost in an eager call on a CPU. They cannot while a
    program is compiled or exported, and on an accelerator the program would
    have to wait for them.

    Args:
        tensor: a tensor of any kind.
    """
    return backends.current().values_of(tensor)
