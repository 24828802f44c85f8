"""Memory and time as a stream goes on: RotRNN, LSTM and attention.

    KERAS_BACKEND=torch python benchmarks/streams.py

measures one layer of each, on PyTorch, in one process:

- the memory that a training step adds to the process, against the length of the
  sequences;
- the time of one step of a stream, against the steps before it. `RotRNN` and
  `torch.nn.LSTM` read those steps and keep their states; the attention has the
  keys and values of all of them, random numbers, in a cache.

The attention is PyTorch's `scaled_dot_product_attention` between linear maps,
which stores no matrix of steps by steps. Contenders take turns; results are
medians. Prints two tables, and writes them to `--output` as a JSON file, with a
plot of the same name beside it; `--plot-only` draws the plot anew.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import keras
import torch
from common import framework_step
from common import interleaved
from common import peak_memory
from common import print_header
from common import print_row
from common import training_step
from lengths import between
from torch.nn.functional import scaled_dot_product_attention

from keras_linrec import layers

# Where the style of all plots is.
sys.path.append(str(Path(__file__).parents[1] / "examples"))

HEADS = 4
SHORTEST = 100
# Of a stream, in one measurement.
STEPS = 32
# As much of what was before is read at once.
PART = 100_000


class Attention(torch.nn.Module):
    """Causal attention; in a stream, over a cache of keys and values."""

    def __init__(self, features):
        super().__init__()
        self.inputs = torch.nn.Linear(features, 3 * features)
        self.outputs = torch.nn.Linear(features, features)

    def forward(self, sequences):
        queries, keys, values = self.projected(sequences)
        found = scaled_dot_product_attention(
            queries, keys, values, is_causal=True
        )
        return self.merged(found)

    def step(self, inputs, cache, place):
        """The outputs of one step; writes its key and value to the cache."""
        queries, *pair = self.projected(inputs[:, None])
        for part, new in zip(cache, pair):
            part[:, :, place] = new[:, :, 0]
        known = [part[:, :, : place + 1] for part in cache]
        return self.merged(scaled_dot_product_attention(queries, *known))[:, 0]

    def projected(self, sequences):
        """Queries, keys and values, (batch, heads, time, features)."""
        shape = *sequences.shape[:2], 3, HEADS, -1
        return self.inputs(sequences).reshape(shape).permute(2, 0, 3, 1, 4)

    def merged(self, found):
        return self.outputs(found.transpose(1, 2).flatten(2))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--longest", type=int, default=30_000)
    parser.add_argument("--passed", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    parser.add_argument("--plot-only", action="store_true")
    options = parser.parse_args()
    if options.plot_only:
        plot(json.loads(options.output.read_text()), options.output)
        return
    # Freed memory goes back to the system: the peaks are those of each step.
    result = {
        "backend": keras.backend.backend(),
        "features": options.features,
        "memory": memory(options),
        "step": step_times(options),
    }
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
        plot(result, options.output)


def memory(options):
    """Megabytes that a training step adds, by length and contender."""
    names = "RotRNN", "torch.nn.LSTM", "attention"
    print_header("steps", *(f"{name}, MB" for name in names))
    found = {"steps": [], **{name: [] for name in names}}
    for steps in between(1000, options.longest):
        found["steps"].append(steps)
        for name in names:
            sequences = torch.randn(1, steps, options.features)
            train = trained(name, sequences)
            # The first call compiles, and makes threads.
            train()
            peaks = [peak_memory(train) for _ in range(options.rounds)]
            found[name].append(round(statistics.median(peaks), 1))
        print_row(f"{steps:,}", *(found[name][-1] for name in names))
    return found


def trained(name, sequences):
    features = sequences.shape[-1]
    if name == "RotRNN":
        return training_step(layers.RotRNN(features), sequences)
    if name == "torch.nn.LSTM":
        return framework_step(name, sequences)
    module = Attention(features)

    def step():
        loss = module(sequences).square().mean()
        return torch.autograd.grad(loss, list(module.parameters()))

    return step


@torch.no_grad()
def step_times(options):
    """Milliseconds of a step of a stream, by the steps before it."""
    names = "RotRNN", "torch.nn.LSTM", "attention with a cache"
    makers = rotrnn_stream, lstm_stream, attention_stream
    print_header("steps before", *(f"{name}, ms" for name in names))
    found = {"before": [], **{name: [] for name in names}}
    for before in between(SHORTEST, options.passed):
        calls = {
            name: make(before, options.features)
            for name, make in zip(names, makers)
        }
        medians = interleaved(calls, options.rounds)
        found["before"].append(before)
        for name in names:
            found[name].append(round(medians[name] / STEPS, 4))
        print_row(f"{before:,}", *(found[name][-1] for name in names))
    return found


def rotrnn_stream(before, features):
    layer = layers.RotRNN(features)
    layer.build((None, None, features))
    states = layer.get_initial_state(batch_size=1)
    for steps in parts(before):
        past = torch.randn(1, steps, features)
        _, states = layer.call_with_states(past, states)
    constants = layer.step_constants()

    @torch.no_grad()
    def stream():
        now = states
        for inputs in torch.randn(STEPS, 1, features):
            outputs, now = layer.step(inputs, now, constants)
        return outputs

    return stream


def lstm_stream(before, features):
    module = torch.nn.LSTM(features, features, batch_first=True)
    states = None
    for steps in parts(before):
        _, states = module(torch.randn(1, steps, features), states)

    @torch.no_grad()
    def stream():
        now = states
        for inputs in torch.randn(STEPS, 1, 1, features):
            outputs, now = module(inputs, now)
        return outputs

    return stream


def attention_stream(before, features):
    module = Attention(features)
    shape = 1, HEADS, before + STEPS, features // HEADS
    cache = torch.randn(shape), torch.randn(shape)

    @torch.no_grad()
    def stream():
        for place, inputs in enumerate(torch.randn(STEPS, 1, features)):
            outputs = module.step(inputs, cache, before + place)
        return outputs

    return stream


def parts(steps):
    """Lengths of at most `PART` that add up."""
    while steps > 0:
        yield min(steps, PART)
        steps -= PART


def plot(result, path):
    from pictures import new_figure
    from pictures import save

    figure, (above, below) = new_figure(2)
    panels = (
        (above, "memory", "steps of a sequence", "MB added by a training step"),
        (below, "step", "steps passed in a stream", "ms of one more step"),
    )
    for axes, key, across, upwards in panels:
        steps, *lines = result[key].items()
        for name, values in lines:
            axes.loglog(steps[1], values, marker="o", label=name)
        axes.set_xlabel(across)
        axes.set_ylabel(upwards)
        axes.legend(fontsize=9)
    save(figure, path.with_suffix(".png"))
    print(f"Wrote {path} and {path.with_suffix('.png').name}")


if __name__ == "__main__":
    main()
