"""Layers as modules of PyTorch.

Needs PyTorch; nothing else in the package imports this module.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "`keras_linrec.torch` needs PyTorch, which is not there, or does not "
        "import (see above). Install it: `pip install torch`."
    ) from error

from keras_linrec.torch.layer_module import LayerModule

__all__ = ["LayerModule"]
