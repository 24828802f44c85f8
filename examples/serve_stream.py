"""Serve a model to many streams at once, and test it under load.

Each connection is a stream with states of its own. It sends one step per line,
numbers separated by commas, and receives the model's output for the steps so
far. Steps that arrive together run in one call of the one-step model:

    pip install ".[examples,jax]"    # or tensorflow, or torch
    python examples/serve_stream.py --load model.keras --port 8765

Without --load, an untrained model of two RotRNN layers is served.
`--clients 100` opens that many connections to the server in the same process,
sends `--steps` steps over each, and prints the steps per second and the times
from a step to its output.
"""

import argparse
import asyncio
import time
from pathlib import Path

import numpy as np
from common import BACKENDS
from common import add_numbers
from common import prepare_backend
from common import require_archive
from common import require_whole

prepare_backend()

import keras

import keras_linrec


def main(arguments=None):
    options = parse(arguments)
    model = read(options.load) if options.load else untrained_model()
    return asyncio.run(serve(Streams(model, options.slots), options))


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=BACKENDS
    )
    parser.add_argument(
        "--load",
        type=Path,
        metavar="FILE.keras",
        help="a model of signals, (batch, time, features)",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="to listen on (default: this one)"
    )
    add_numbers(
        parser,
        ("port", int, 8765, "to listen on, 0 for any that is free"),
        ("slots", int, 64, "streams at the same time, or --clients if more"),
        ("clients", int, 0, "connections of the load test, 0 for none"),
        ("steps", int, 1000, "each client sends"),
    )
    options = parser.parse_args(arguments)
    require_whole(parser, options, "port", least=0, most=65535)
    options.slots = max(options.slots, options.clients)
    return options


def read(path):
    require_archive(path, "a model that Keras saved")
    return keras_linrec.saving.load_model(path)


def untrained_model():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None, 1)),
            keras_linrec.layers.RotRNN(32),
            layers.Dense(32, activation="gelu"),
            keras_linrec.layers.RotRNN(32),
            layers.Dense(32, activation="gelu"),
            layers.Dense(3),
        ]
    )


class Streams:
    """The states of several streams, and steps for those that have inputs.

    Args:
        model: a model that `export_step` takes.
        slots: integer, the number of streams. Every call computes all of them,
            so that one compiled program serves any number.
    """

    def __init__(self, model, slots):
        self.step = keras_linrec.export_step(model, drop_masks=True)
        self.features = self.step.inputs[0].shape[-1]
        self.fresh = [
            keras.ops.convert_to_numpy(state)
            for state in self.step.initial_states(slots)
        ]
        self.states = [state.copy() for state in self.fresh]
        self.free = list(range(slots))
        self.run({})  # compiles

    def open(self):
        """A slot with fresh states, or `None` if all are taken."""
        if not self.free:
            return None
        slot = self.free.pop()
        for state, fresh in zip(self.states, self.fresh):
            state[slot] = fresh[slot]
        return slot

    def close(self, slot):
        self.free.append(slot)

    def run(self, inputs):
        """The outputs of one step, by slot, from inputs by slot."""
        batch = np.zeros((len(self.fresh[0]), self.features), "float32")
        rows = list(inputs)
        if rows:
            batch[rows] = list(inputs.values())
        outputs, *states = self.step.predict_on_batch([batch, *self.states])
        for state, after in zip(self.states, states):
            state[rows] = after[rows]
        return {row: outputs[row] for row in rows}


async def serve(streams, options, listening=None):
    """Listen until cancelled, or until the load test is over.

    Args:
        streams: `Streams`.
        options: those of the command line.
        listening: function of the port, called once the server listens.
    """
    waiting = {}
    arrived = asyncio.Event()

    async def connect(reader, writer):
        slot = streams.open()
        if slot is None:
            writer.write(b"error: all streams are taken\n")
        try:
            while slot is not None and (line := await next_line(reader)):
                try:
                    inputs = parsed(line, streams.features)
                except ValueError as error:
                    writer.write(f"error: {error}\n".encode())
                    continue
                future = asyncio.get_running_loop().create_future()
                waiting[slot] = inputs, future
                arrived.set()
                output = await future
                writer.write((",".join(map(str, output)) + "\n").encode())
                await writer.drain()
        except ConnectionError:
            pass  # the client has gone
        finally:
            if slot is not None:
                waiting.pop(slot, None)
                streams.close(slot)
            writer.close()

    async def run_steps():
        while True:
            await arrived.wait()
            arrived.clear()
            # Steps of other connections may have arrived too.
            await asyncio.sleep(0)
            together = dict(waiting)
            waiting.clear()
            inputs = {slot: given for slot, (given, _) in together.items()}
            for slot, output in streams.run(inputs).items():
                future = together[slot][1]
                if not future.cancelled():
                    future.set_result(output)

    server = await asyncio.start_server(connect, options.host, options.port)
    port = server.sockets[0].getsockname()[1]
    print(f"Listening on {options.host}, port {port}.", flush=True)
    if listening:
        listening(port)
    runner = asyncio.create_task(run_steps())
    async with server:
        if not options.clients:
            await asyncio.gather(server.serve_forever(), runner)
        result = await load_test(options, port, streams.features)
    runner.cancel()
    return result


async def next_line(reader):
    """A line, or nothing after one that is longer than the reader's limit."""
    try:
        return await reader.readline()
    except ValueError:
        return b""


def parsed(line, features):
    """The numbers of a line."""
    try:
        numbers = [float(part) for part in line.decode().split(",")]
    except ValueError:
        numbers = []
    # The model computes in float32, of which 1e39 is infinity.
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(np.array(numbers, "float32")).all()
    if len(numbers) != features or not is_finite:
        raise ValueError(f"expected {features} finite numbers")
    return numbers


# The load test.


async def load_test(options, port, features):
    """Steps per second, and percentiles of the milliseconds of a step."""
    line = (",".join(["0.5"] * features) + "\n").encode()

    async def client():
        reader, writer = await asyncio.open_connection(options.host, port)
        times = []
        for _ in range(options.steps):
            start = time.perf_counter()
            writer.write(line)
            answer = await reader.readline()
            if answer.startswith(b"error"):
                raise SystemExit(answer.decode())
            times.append(time.perf_counter() - start)
        writer.close()
        return times

    start = time.perf_counter()
    times = await asyncio.gather(*(client() for _ in range(options.clients)))
    seconds = time.perf_counter() - start
    rate = options.clients * options.steps / seconds
    middle, high = 1e3 * np.percentile(times, [50, 99])
    print(
        f"{keras.backend.backend()}: {options.clients} streams, {rate:,.0f} "
        f"steps per second; a step takes {middle:.2f} ms (median), "
        f"{high:.2f} ms (99%)."
    )
    return rate, middle, high


if __name__ == "__main__":
    main()
