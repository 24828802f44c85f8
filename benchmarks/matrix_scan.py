"""The speed of matrix states: KERAS_BACKEND=torch python
benchmarks/matrix_scan.py

The gated delta rule (`ops.matrix_scan` with erase = write), forward and
backward with gradients of queries, keys, values, decays and strengths, at
(batch, time, heads, key_dim, value_dim):

- ours, native, and our portable form in chunks;
- a chunk function in `keras.ops` as one writes it: unrolled corrections of each
  row of a chunk, as in KerasHub's Qwen3.5, and a loop over chunks in Python;
- KerasHub's function of Qwen3.5, if it is installed, and on PyTorch Hugging
  Face's `torch_chunk_gated_delta_rule` of Qwen3-Next, if `transformers` is.

Then what Mamba-2 computes, which erases nothing: ours, and the four products
that its paper writes, for chunks of 64 and between all of them. Then ours as
sequences grow.

Prints median milliseconds of interleaved rounds, the operations a second of
what the recurrence itself takes (6 key_dim value_dim a step and head forward,
16 backward), and their share of the rate of a large product, which is measured
in JAX. Before that, the largest relative error of each contender's outputs
against a loop in float64.
"""

import argparse

import keras
import numpy as np
from common import for_backend
from common import interleaved
from common import on_kernel
from common import parsed_options
from common import print_header
from common import print_row
from common import product_rate
from keras import ops

from keras_linrec.ops import matrix_scan

# batch, time, heads, key_dim, value_dim
CASES = (
    (1, 4096, 8, 64, 64),
    (4, 2048, 8, 64, 64),
    (8, 512, 4, 32, 32),
)
# Of the state-space duality: (batch, time, heads, state size, head dim).
DUAL_CASE = (4, 2048, 8, 64, 64)
GROWING_CASE = (1, 2, 32, 32)  # batch, heads, key_dim, value_dim
CHUNK = 64
# Numbers that are multiplied and added, forward and backward, by whether what
# the state holds for a key is looked up and erased.
OPERATIONS = {True: 6 + 16, False: 4 + 10}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cases", type=int, nargs="+", default=range(len(CASES))
    )
    parser.add_argument("--longest", type=int, default=2**20)
    parser.add_argument(
        "--contenders",
        nargs="+",
        help="only these; JAX compiles the unrolled ones for minutes",
    )
    options = parsed_options(parser)
    rate = product_rate()
    print(f"The largest product reaches {rate / 1e9:.0f} GFLOP/s.")
    print_header("case", "contender", "error", "ms", "GFLOP/s", "share")
    contenders = {
        "native": on("native"),
        "in chunks": on("associative"),
        "as one writes it": plain_chunks,
        **keras_hub(),
        **huggingface(),
    }
    if options.contenders:
        contenders = {name: contenders[name] for name in options.contenders}
    for case in options.cases:
        compare(CASES[case], contenders, options.rounds, rate)
    contenders = {
        "SSD, native": on("native", erases=False),
        "SSD, in chunks": on("associative", erases=False),
        "SSD, as its paper writes it": plain_dual,
    }
    compare(DUAL_CASE, contenders, options.rounds, rate, erases=False)
    print_growth(options.longest)


def compare(sizes, contenders, rounds, rate, erases=True):
    """Print a row for each contender."""
    arrays = drawn(*sizes)
    errors = errors_of(contenders, erases)
    calls = {
        name: gradient_call(scan, arrays) for name, scan in contenders.items()
    }
    for call in calls.values():
        call()
    work = OPERATIONS[erases] * np.prod(sizes)
    for name, median in interleaved(calls, rounds).items():
        done = work / median * 1e3
        print_row(
            sizes,
            name,
            f"{errors[name]:.1e}",
            f"{median:.1f}",
            f"{done / 1e9:.1f}",
            f"{done / rate:.0%}",
        )


def print_growth(longest):
    """Nanoseconds a step of ours, as sequences grow by four."""
    batch, *sizes = GROWING_CASE
    print_header("steps", "ms", "ns a step")
    time = 1024
    while time <= longest:
        call = gradient_call(on("native"), drawn(batch, time, *sizes))
        call()
        median = interleaved({"": call}, 5)[""]
        print_row(time, f"{median:.1f}", f"{1e6 * median / time:.0f}")
        time *= 4


def drawn(batch, time, heads, key_dim, value_dim):
    """Queries, keys, values, logarithms of decays, strengths.

    Keys have the length 1, and queries that which Qwen gives them.
    """
    random = np.random.default_rng(0)
    steps = batch, time, heads

    def of_length_one():
        vectors = random.normal(size=(*steps, key_dim))
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

    arrays = (
        of_length_one() / np.sqrt(key_dim),
        of_length_one(),
        random.normal(size=(*steps, value_dim)),
        np.log(random.uniform(0.9, 1, steps)),
        random.uniform(0, 1, steps),
    )
    return [array.astype("float32") for array in arrays]


def on(kernel, erases=True):
    def scan(queries, keys, values, log_decay, strength):
        with on_kernel(kernel):
            return matrix_scan(
                queries,
                keys,
                values,
                log_decay=log_decay,
                erase=strength if erases else None,
                write=strength,
            )[0]

    return scan


def keras_hub():
    """The function of KerasHub, by name, if it is here."""
    try:
        from keras_hub.src.models.qwen3_5 import qwen3_5_gated_delta_net
    except ImportError:
        return {}
    function = qwen3_5_gated_delta_net._chunk_gated_delta_rule
    # It makes queries as long as ours are.
    return {"KerasHub": lambda *arguments: function(*arguments)[0]}


def huggingface():
    """The function of `transformers`, by name, if it is here."""
    if keras.backend.backend() != "torch":
        return {}
    try:
        from transformers.models.qwen3_next import modeling_qwen3_next
    except ImportError:
        return {}
    function = modeling_qwen3_next.torch_chunk_gated_delta_rule

    def scan(queries, keys, values, log_decay, strength):
        # It divides queries by the root of their size.
        queries = queries * queries.shape[-1] ** 0.5
        return function(queries, keys, values, log_decay, strength)[0]

    return {"transformers": scan}


def plain_chunks(queries, keys, values, log_decay, strength):
    """The rule in chunks, by corrections of one row after another."""
    batch, time, heads, _ = queries.shape

    def in_chunks(part):
        part = ops.reshape(part, (batch, time // CHUNK, CHUNK, heads, -1))
        return ops.transpose(part, (0, 3, 1, 2, 4))

    queries, keys, values, log_decay, strength = map(
        in_chunks, (queries, keys, values, log_decay, strength)
    )
    total = ops.cumsum(log_decay, axis=3)
    place = ops.arange(CHUNK)
    between = between_places(total[..., 0])
    scaled = strength * keys
    turned = ops.swapaxes(keys, 3, 4)
    overlaps = ops.where(
        place[:, None] > place, -(scaled @ turned) * between, 0.0
    )
    rows = [overlaps[..., 0, :]]
    for row in range(1, CHUNK):
        above = ops.stack(rows, axis=3)
        here = overlaps[..., row, :]
        rows.append(here + ops.sum(here[..., :row, None] * above, axis=3))
    inverse = ops.stack(rows, axis=3) + ops.eye(CHUNK)
    values = inverse @ (strength * values)
    erased = inverse @ (scaled * ops.exp(total))
    inner = queries @ turned * between
    state, outputs = 0.0 * (turned[:, :, 0] @ values[:, :, 0]), []
    for chunk in range(time // CHUNK):
        changes = values[:, :, chunk] - erased[:, :, chunk] @ state
        here = total[:, :, chunk]
        outputs.append(
            (queries[:, :, chunk] * ops.exp(here)) @ state
            + inner[:, :, chunk] @ changes
        )
        late = keys[:, :, chunk] * ops.exp(here[:, :, -1:] - here)
        state = state * ops.exp(here[:, :, -1:])
        state = state + ops.swapaxes(late, 2, 3) @ changes
    outputs = ops.stack(outputs, axis=2)
    outputs = ops.reshape(outputs, (batch, heads, time, -1))
    return ops.transpose(outputs, (0, 2, 1, 3))


def plain_dual(queries, keys, values, log_decay, strength):
    """Section 6 of arXiv 2405.21060: within chunks, their states, between.

    States go from each chunk to every later one by one product.
    """
    batch, time, heads, _ = queries.shape
    chunks = time // CHUNK

    def in_chunks(part):
        return ops.reshape(part, (batch, chunks, CHUNK, *part.shape[2:]))

    queries, keys = in_chunks(queries), in_chunks(keys)
    values = in_chunks(values * strength[..., None])
    decays = ops.transpose(in_chunks(log_decay), (0, 3, 1, 2))
    total = ops.cumsum(decays, axis=3)
    within = ops.einsum(
        "bclhn,bcshn,bhcls,bcshp->bclhp",
        queries,
        keys,
        between_places(total),
        values,
    )
    states = ops.einsum(
        "bclhn,bhcl,bclhp->bchpn",
        keys,
        ops.exp(total[..., -1:] - total),
        values,
    )
    states = ops.pad(states, ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))
    ends = ops.cumsum(ops.pad(total[..., -1], ((0, 0), (0, 0), (1, 0))), axis=2)
    states = ops.einsum("bhzc,bchpn->bzhpn", between_places(ends), states)
    across = ops.einsum(
        "bclhn,bchpn,bhcl->bclhp", queries, states[:, :-1], ops.exp(total)
    )
    return ops.reshape(within + across, (batch, time, heads, -1))


def between_places(total):
    """exp(total_i - total_j) for j <= i, and otherwise 0."""
    place = ops.arange(total.shape[-1])
    before = place[:, None] >= place
    differences = ops.where(
        before, total[..., :, None] - total[..., None, :], 0
    )
    return ops.where(before, ops.exp(differences), 0.0)


def errors_of(contenders, erases):
    """Of outputs, each the largest as a share of the largest output."""
    arrays = drawn(1, 2 * CHUNK, 2, 32, 32)
    queries, keys, values, log_decay, strength = (
        array[0].astype("float64") for array in arrays
    )
    state, expected = np.zeros((2, 32, 32)), []
    for t in range(2 * CHUNK):
        state = np.exp(log_decay[t])[:, None, None] * state
        found = np.einsum("hk,hkv->hv", keys[t], state)
        change = strength[t][:, None] * (values[t] - erases * found)
        state = state + keys[t][:, :, None] * change[:, None]
        expected.append(np.einsum("hk,hkv->hv", queries[t], state))
    expected = np.stack(expected)[None]
    errors = {}
    for name, scan in contenders.items():
        outputs = scan(*map(ops.convert_to_tensor, arrays))
        outputs = ops.convert_to_numpy(ops.stop_gradient(outputs))
        errors[name] = np.abs(outputs - expected).max() / np.abs(expected).max()
    return errors


def gradient_call(scan, arrays):
    """A call that computes the gradients of the mean square of the outputs."""

    def loss(*tensors):
        return ops.mean(ops.square(scan(*tensors)))

    run = for_backend(
        jax=_jax_gradients, tensorflow=_tensorflow_gradients, torch=_torch
    )(loss)
    tensors = [ops.convert_to_tensor(array) for array in arrays]
    return lambda: run(tensors)


def _jax_gradients(loss):
    import jax

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4)))
    return lambda tensors: jax.block_until_ready(gradients(*tensors))


def _tensorflow_gradients(loss):
    import tensorflow as tf

    @tf.function
    def gradients(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = loss(*tensors)
        return tape.gradient(value, tensors)

    return lambda tensors: [part.numpy() for part in gradients(*tensors)]


def _torch(loss):
    import torch

    def run(tensors):
        tensors = [tensor.detach().requires_grad_() for tensor in tensors]
        return torch.autograd.grad(loss(*tensors), tensors)

    return run


if __name__ == "__main__":
    main()
