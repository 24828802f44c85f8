"""What CUDA kernels should take on an H100, by arithmetic: no GPU is needed.

    python benchmarks/cuda_estimates.py

Prints the tables of docs/guides/kernels.md. The tiles are those of
kernels/native/source/cuda_tiles.h, the pieces those of cuda_response.h, and the
registers those that `python -m keras_linrec.kernels.native.cuda_resources`
prints.
"""

import math
from typing import NamedTuple

# An H100 SXM: bytes a second, the share of them that a copy reaches, and what
# a multiprocessor has.
BANDWIDTH, COPY = 3.35e12, 0.9
PROCESSORS, SHARED, REGISTERS, THREADS = 132, 228 * 1024, 65536, 2048
# Assumed, in seconds: between kernels that follow one another, and the life of
# a tile: its reads, three levels of the tree, its writes.
LAUNCH, TILE = 1.5e-6, 8e-6


class Pass(NamedTuple):
    """A pass over memory, float32: real numbers of a step and channel."""

    kernel: str
    read: int
    written: int
    parts: int
    registers: int
    launches: int

    @property
    def kept(self):
        """Of them, those that a tile keeps in shared memory."""
        return self.read


PASSES = (
    Pass("scan_float_real", 1, 1, 1, 48, 2),
    Pass("scan_float_real_per_step", 2, 1, 1, 32, 2),
    Pass("scan_float_complex", 2, 2, 2, 60, 2),
    Pass("scan_backward_float_real", 2, 1, 1, 48, 3),
    Pass("scan_backward_float_complex", 4, 2, 2, 64, 3),
)
SHAPES = ((16, 4096, 256), (1, 2**20, 16))


class Estimate(NamedTuple):
    tiles: int
    blocks: int  # on a multiprocessor
    in_flight: float  # of all bytes read
    megabytes: float
    microseconds: float
    share: float  # of a copy's bandwidth


def estimate(one, batch, time, channels):
    """The `Estimate` of a pass."""
    width = min(32, 2 ** math.ceil(math.log2(channels)))
    pieces = min(32, 256 // width)
    length = (24 * 1024 // 256 // (4 * one.kept) - 1) | 1
    tiles = batch * math.ceil(channels / width)
    tiles *= math.ceil(time / (pieces * length))
    threads = width * pieces
    maps = (threads + 6 * width) * (16 * one.parts + 8) + 4 * threads
    shared = threads * length * 4 * one.kept + maps + 1024
    blocks = min(
        SHARED // shared,
        REGISTERS // (threads * one.registers),
        THREADS // threads,
    )
    numbers = batch * time * channels
    moved = 4 * numbers * (one.read + one.written)
    moved += tiles * (2 * one.parts + 1) * width * 8
    floor = moved / (COPY * BANDWIDTH)
    # Bandwidth is reached if enough tiles are under way during a tile's life.
    under_way = PROCESSORS * blocks * threads * length * 4 * one.kept
    rate = under_way / TILE * (one.read + one.written) / one.read
    seconds = max(floor, moved / rate) + one.launches * LAUNCH + TILE / 2
    read = 4 * numbers * one.read
    return Estimate(
        tiles,
        blocks,
        under_way / read,
        moved / 1e6,
        seconds * 1e6,
        4 * numbers * (one.read + one.written) / (COPY * BANDWIDTH) / seconds,
    )


# The impulse response waits for arithmetic, not for memory. Assumed, in cycles:
# until a multiply-add in float64 has its result, and a phase of a block, which
# reads shared memory and ends with a barrier.
CLOCK, MULTIPLY_ADD, PHASE = 1.7e9, 16, 60
PIECES, TOGETHER = 16, 4
# Features, channels, state, time.
RESPONSES = ((256, 1, 256, 1024), (128, 1, 64, 784))


class Response(NamedTuple):
    blocks: int  # on a multiprocessor
    kilobytes: float  # of shared memory, of a block
    megabytes: float  # that the call keeps on the GPU
    milliseconds: float


def response(features, channels, state, time, backward):
    """The `Response` of a forward or backward pass."""
    length = math.ceil(state / (PIECES * TOGETHER)) * TOGETHER
    size = length * PIECES
    # Two sweeps, before each of which the ends of the pieces are added up.
    solve = 2 * (length + PIECES // 2) * MULTIPLY_ADD + 3 * PHASE
    output = length * MULTIPLY_ADD + PHASE
    arrays, sweeps, kept = 11, 2, 0
    step = solve + channels * output
    if backward:
        # Each step twice, for all runs but the last, and once backwards.
        step = 3 * solve + 4 * PHASE
        run = max(8, math.ceil(math.sqrt(time / 2)))
        arrays, sweeps = 24, 4
        kept = math.ceil(time / run) + 2 * run + 1 + channels + 7
    shared = 8 * (arrays * size + sweeps * PIECES * (PIECES + 1) + 32 * 17)
    blocks = min(SHARED // (shared + 1024), 32)
    rounds = math.ceil(features / (PROCESSORS * blocks))
    return Response(
        blocks,
        shared / 1e3,
        8 * features * kept * size / 1e6,
        1e3 * rounds * time * step / CLOCK,
    )


def main():
    print_scans()
    print()
    print_responses()


def print_responses():
    print(
        "| kernel | features, channels, state, time | blocks a "
        "multiprocessor | KB of each | MB kept | ms |"
    )
    print("|" + "---|" * 6)
    for backward in (False, True):
        name = "impulse_response" + "_backward" * backward + "_float"
        for shape in RESPONSES:
            found = response(*shape, backward)
            print(
                f"| `{name}` | {shape} | {found.blocks} "
                f"| {found.kilobytes:.0f} | {found.megabytes:.0f} "
                f"| {found.milliseconds:.1f} |"
            )


def print_scans():
    print(
        "| kernel | shape | tiles | launches | blocks a multiprocessor "
        "| MB moved | us | share of a copy |"
    )
    print("|" + "---|" * 8)
    for one in PASSES:
        for shape in SHAPES:
            found = estimate(one, *shape)
            print(
                f"| `{one.kernel}` | {shape} | {found.tiles} | {one.launches} "
                f"| {found.blocks} | {found.megabytes:.0f} "
                f"| {found.microseconds:.0f} | {found.share:.0%} |"
            )


if __name__ == "__main__":
    main()
