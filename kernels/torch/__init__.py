"""PyTorch: time in blocks, or a loop over unbound steps."""

from keras_linrec.kernels.torch.scan import associative as associative
from keras_linrec.kernels.torch.scan import sequential as sequential


def preferred():
    """The faster kernel here, by measurement.

    Forward on a 2-core CPU at (4, 16384, 64), real: 3.8 ms in blocks, 45.6 ms
    in the loop; at (16, 4096, 256): 24 against 43. On an accelerator a block
    also needs about the square root as many launches.
    """
    return "associative"
