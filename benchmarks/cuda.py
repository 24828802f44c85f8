"""What the CUDA kernels take on an NVIDIA GPU, and what bounds them.

    KERAS_BACKEND=torch python benchmarks/cuda.py

Times are those of the kernels on the GPU, by PyTorch's profiler: what Python
and PyTorch add before a kernel starts is not in them. JAX and TensorFlow call
the same kernels. "Share of a copy" compares the arrays that a scan has to read
and write with the rate at which PyTorch multiplies an array by two. The peer of
the nonlinear scan is the LSTM of cuDNN, which has four products of this size a
step. Prints the tables of docs/guides/kernels.md.
"""

import argparse
from statistics import median

import numpy as np
from common import on_kernel
from common import parsed_options
from common import print_header
from common import print_row

from keras_linrec import layers
from keras_linrec import ops

# batch, time, channels
SCANS = ((16, 4096, 256), (1, 2**20, 16))
# batch, time, features, channels, units
PROJECTED_SCANS = ((32, 784, 128, 256, 128), (4, 16384, 96, 64, 96))
# batch, time, units
NONLINEAR_SCANS = ((128, 784, 128), (32, 1024, 256), (1, 16384, 64))
# batch, time, units, state size
RESPONSES = ((50, 784, 128, 128), (50, 784, 128, 64), (16, 4096, 128, 64))
# How the names of our kernels begin.
SCAN = ("scan_", "add_decays_")
RESPONSE = "impulse_response_"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parts = {
        "scans": print_scans,
        "projected": print_projected_scans,
        "nonlinear": print_nonlinear_scans,
        "responses": print_responses,
    }
    parser.add_argument("--only", nargs="+", choices=parts, default=[*parts])
    options = parsed_options(parser)
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("These are times of a GPU, and there is none here.")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    for name in options.only:
        parts[name](options.rounds)


def print_scans(rounds):
    print_header("linear scan", "pass", "ms", "share of a copy")
    for shape in SCANS:
        inputs = drawn(*shape)
        megabytes = 4e-6 * np.prod(shape)
        copy = total(lambda given: [given * 2.0], [inputs], rounds)
        print_row(shape, "a copy", f"{copy:.3f}", "100%")
        rate = 2 * megabytes / copy
        for name, run, arguments, moved in scans(shape, inputs):
            forward, both = passes(run, arguments, rounds, SCAN)
            for which, time, arrays in (
                ("forward", forward, moved[0]),
                ("gradient", both - forward, moved[1]),
            ):
                share = arrays * megabytes / rate / time
                print_row(
                    f"{name} {shape}", which, f"{time:.3f}", f"{share:.0%}"
                )


def scans(shape, inputs):
    """Name, function, arguments, arrays that a pass reads and writes.

    Forward these are inputs and outputs; for the gradient outputs and those of
    outputs and inputs; and decays, with theirs, if each step has its own.
    """

    def real(decay, inputs):
        return ops.linear_scan(decay, inputs)

    def complex_(*arguments):
        decay, inputs = arguments[:2], arguments[2:]
        outputs, final = ops.complex_linear_scan(decay, inputs)
        return *outputs, *final

    channels = shape[-1]
    pair = [drawn(channels, low=0.6, high=0.7) for _ in range(2)]
    fixed, per_step = (
        drawn(*size, low=0.9, high=1.0) for size in ((channels,), shape)
    )
    yield "real", real, [fixed, inputs], (2, 3)
    yield "real, decays of each step", real, [per_step, inputs], (3, 5)
    yield "complex", complex_, [*pair, inputs, drawn(*shape)], (4, 6)


def print_projected_scans(rounds):
    print_header("projected scan", "forward, ms", "with the gradient, ms")
    for size in PROJECTED_SCANS:
        batch, time, features, channels, units = size
        arguments = [drawn(channels, low=0.6, high=0.7) for _ in range(2)]
        arguments += [drawn(batch, time, features)]
        arguments += [drawn(features, channels, scale=0.1) for _ in range(2)]
        arguments += [drawn(channels, units, scale=0.1) for _ in range(2)]

        def run(a, b, inputs, c, d, e, f):
            return ops.projected_scan((a, b), inputs, (c, d), (e, f))[:1]

        print_times([size], passes(run, arguments, rounds))


def print_nonlinear_scans(rounds):
    import torch

    print_header("nonlinear scan", "forward, ms", "with the gradient, ms")
    for size in NONLINEAR_SCANS:
        units = size[-1]
        inputs, scale = drawn(*size), units**-0.5
        kernels = [drawn(units, units, scale=s) for s in (scale, scale / 2)]
        peer = torch.nn.LSTM(units, units, batch_first=True, device="cuda")

        def run(inputs, *kernels):
            return ops.nonlinear_scan(inputs, *kernels)[:1]

        print_times([f"tanh {size}"], passes(run, [inputs, *kernels], rounds))

        def run_peer(inputs, peer=peer):
            return peer(inputs)[:1]

        found = passes(run_peer, [inputs], rounds)
        print_times([f"LSTM of cuDNN {size}"], found)


def print_responses(rounds):
    print_header("LSSL", "kernel", "forward, ms", "with the gradient, ms")
    for size in RESPONSES:
        *shape, state_size = size
        layer = layers.LSSL(shape[-1], state_size=state_size)
        inputs = drawn(*shape)
        layer(inputs)
        weights = [v.value for v in layer.trainable_variables]

        def run(inputs, *_, layer=layer):
            return [layer(inputs)]

        for kernel in ("native", "associative"):
            with on_kernel(kernel):
                found = passes(run, [inputs, *weights], rounds)
                print_times((size, kernel), found)
        response = passes(run, [inputs, *weights], rounds, RESPONSE)
        print_times((size, "native, the response alone"), response)


def print_times(names, times):
    print_row(*names, *(f"{time:.2f}" for time in times))


# Measuring.


def drawn(*shape, scale=1.0, low=None, high=None):
    """A tensor that takes gradients, normal or between `low` and `high`."""
    import torch

    tensor = scale * torch.randn(*shape, device="cuda")
    if low is not None:
        tensor = low + (high - low) * torch.rand(*shape, device="cuda")
    return tensor.requires_grad_()


def passes(run, arguments, rounds, names=""):
    """The milliseconds of a call, and of a call with its gradients."""
    import torch

    def with_gradients(*arguments):
        outputs = run(*arguments)
        ones = [torch.ones_like(output) for output in outputs]
        torch.autograd.grad(outputs, arguments, ones)

    forward = total(run, arguments, rounds, names)
    return forward, total(with_gradients, arguments, rounds, names, True)


def total(run, arguments, rounds, names="", differentiated=False):
    """The median milliseconds of kernels whose names begin so."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile

    def measured():
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            run(*arguments)
            torch.cuda.synchronize()
        return 1e-3 * sum(
            event.self_device_time_total
            for event in found.key_averages()
            if event.key.startswith(names)
        )

    with torch.set_grad_enabled(differentiated):
        # The first calls load kernels, and choose among algorithms.
        for _ in range(2):
            run(*arguments)
        return median(measured() for _ in range(rounds))


if __name__ == "__main__":
    main()
