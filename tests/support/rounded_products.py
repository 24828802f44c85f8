"""Products with rounded operands, as GPUs and TPUs compute them by default.

`rounded(monkeypatch, "tf32")` rounds the operands of every float32 product to
the ten bits of TF32, `"bfloat16"` to seven, wherever the framework has not been
told to be more precise.
"""

from types import SimpleNamespace

import keras

BITS = {"tf32": 10, "bfloat16": 7}


def rounded(monkeypatch, kind, heeds=True):
    """Imitate a device whose products are imprecise.

    Args:
        monkeypatch: pytest's fixture, which ends the imitation.
        kind: `"tf32"` or `"bfloat16"`.
        heeds: whether the framework's switch, or the precision of a product,
            makes it precise. Defaults to `True`.
    """
    imitate = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}
    imitate[keras.backend.backend()](monkeypatch, BITS[kind], heeds)


def _jax(monkeypatch, bits, heeds):
    import jax
    from jax import lax
    from jax._src.lax import lax as own

    product = own.dot_general

    def is_precise(precision):
        names = str(precision or jax.config.jax_default_matmul_precision)
        return heeds and "HIGHEST" in names.upper()

    def dot_general(left, right, *arguments, precision=None, **options):
        if left.dtype == "float32" and not is_precise(precision):
            left = lax.reduce_precision(left, 8, bits)
            right = lax.reduce_precision(right, 8, bits)
        return product(left, right, *arguments, precision=precision, **options)

    # What is traced already has the other products.
    jax.clear_caches()
    monkeypatch.setattr(own, "dot_general", dot_general)
    monkeypatch.setattr(lax, "dot_general", dot_general)


def _tensorflow(monkeypatch, bits, heeds):
    import tensorflow as tf
    from tensorflow.python.ops import gen_math_ops

    from keras_linrec.kernels import backends

    # Where products are imprecise, the package takes measures of its own.
    monkeypatch.setattr(backends.current(), "platform", lambda: "cuda")
    switch = tf.config.experimental.tensor_float_32_execution_enabled

    def to_bits(tensor):
        if tensor.dtype != tf.float32 or heeds and not switch():
            return tensor
        kept = 23 - bits
        number = tf.bitcast(tensor, tf.int32) + (1 << (kept - 1))
        near = tf.bitcast(number & -(1 << kept), tf.float32)
        return tensor + tf.stop_gradient(near - tensor)

    for name in ("mat_mul", "batch_mat_mul_v2", "batch_mat_mul_v3"):
        product = getattr(gen_math_ops, name)

        def run(left, right, *arguments, product=product, **options):
            left, right = map(tf.convert_to_tensor, (left, right))
            return product(to_bits(left), to_bits(right), *arguments, **options)

        monkeypatch.setattr(gen_math_ops, name, run)


def _torch(monkeypatch, bits, heeds):
    import torch

    from keras_linrec.kernels.torch import products

    # A machine without a GPU need not have the switch itself.
    switch = SimpleNamespace(fp32_precision="tf32")
    monkeypatch.setattr(torch.backends.cuda, "matmul", switch)
    monkeypatch.setattr(
        products,
        "_may_be_rounded",
        lambda tensor: switch.fp32_precision == "tf32",
    )

    class ToBits(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(tensor):
            kept = 23 - bits
            number = tensor.contiguous().view(torch.int32) + (1 << (kept - 1))
            return (number & -(1 << kept)).view(torch.float32)

        @staticmethod
        def setup_context(context, inputs, output):
            pass

        @staticmethod
        def backward(context, cotangent):
            return cotangent

    def to_bits(tensor):
        precise = heeds and switch.fp32_precision == "ieee"
        if tensor.dtype != torch.float32 or precise:
            return tensor
        return ToBits.apply(tensor)

    def replace(holder, name):
        product = getattr(holder, name)
        monkeypatch.setattr(
            holder, name, lambda a, b: product(to_bits(a), to_bits(b))
        )

    replace(torch, "matmul")
    replace(torch.Tensor, "__matmul__")
    einsum = torch.einsum

    def rounded_einsum(equation, *tensors):
        return einsum(equation, *map(to_bits, tensors))

    monkeypatch.setattr(torch, "einsum", rounded_einsum)
