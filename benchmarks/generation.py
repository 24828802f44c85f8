"""The cost of a token as its context grows: python benchmarks/generation.py

Generates a token after 128, 4,096 and 65,536 others with

- "ours": `LinRecCausalLM` of RotRNN layers (`--unit` for others), whose cache
  is the units' states;
- "GPT-2": KerasHub's `GPT2CausalLM` in a small configuration with about as
  many parameters and random weights, whose cache holds the keys and values of
  all tokens;
- "LSTM": two layers of Keras' cells with about as many parameters.

Every contender generates `--tokens` tokens in one program, as `generate()` does
(JAX and TensorFlow compile it). The cache starts with random numbers, because
GPT-2 would take hours to read a prompt. Contexts take turns, round after round;
times are medians. The tables are

- milliseconds per token, with the ratio to the shortest context in parentheses;
- the bytes of the cache, and the bytes that each further token adds;
- for ours, `generate()` itself with a prompt as long as the context: the time
  to read the prompt, and the time for each token after it.

    KERAS_BACKEND=jax python benchmarks/generation.py
"""

import argparse
import statistics
import time
from functools import partial

import keras
import keras_hub
import numpy as np
from common import parsed_options
from common import print_header
from common import print_row
from keras import ops

from keras_linrec import nlp

CONTEXTS = (128, 4096, 65536)
LAYERS = 4
LSTM_LAYERS = 2


def main():
    options = read_options()
    contenders = make_contenders(options)
    backend = keras.backend.backend()
    print(f"{backend}; {options.hidden_dim} features, batch {options.batch}.")
    for name, (model, _) in contenders.items():
        print(f"{name}: {model.count_params()} parameters.")
    times, caches = measure(contenders, options)
    print_times(times, contenders)
    print_caches(caches, contenders)
    if options.generate:
        print_generation(contenders["ours"][0], options)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--unit", default="rotrnn", help="rotrnn, lssl, ldstack"
    )
    for name, default, text in (
        ("hidden-dim", 192, "features of a token"),
        ("batch", 1, "texts in a batch"),
        ("tokens", 32, "tokens in a program"),
        ("rounds", 7, "measurements of each"),
        ("generated", 4096, "tokens that `generate()` generates"),
        ("longest", CONTEXTS[-1], "the longest context"),
    ):
        parser.add_argument(
            f"--{name}",
            type=int,
            default=default,
            help=f"{text} (default: %(default)s)",
        )
    parser.add_argument(
        "--no-generate",
        dest="generate",
        action="store_false",
        help="leave `generate()` out",
    )
    return parsed_options(parser)


def make_contenders(options):
    """Models, and functions of a context that return `(cache, one_token)`.

    `one_token(token_ids, cache, index)` returns the ids of the next token and
    the new cache.
    """
    width = options.hidden_dim
    arguments = {
        "rotrnn": {"state_size": 2 * width, "num_heads": width // 4},
        "lssl": {"state_size": 64},
        "ldstack": {"state_size": 2 * width, "eigenvalues": "log_polar"},
    }
    tokenizer = nlp.LinRecByteTokenizer()
    backbone = nlp.LinRecBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=LAYERS,
        hidden_dim=width,
        intermediate_dim=2 * width,
        unit=options.unit,
        unit_arguments=arguments[options.unit],
    )
    preprocessor = nlp.LinRecCausalLMPreprocessor(tokenizer)
    ours = nlp.LinRecCausalLM(backbone, preprocessor)
    count = ours.count_params()
    transformer = gpt2(width, count, options)
    cells = lstm(count)
    return {
        "ours": (ours, partial(from_states, ours, options)),
        "GPT-2": (transformer, partial(from_keys, transformer, options)),
        "LSTM": (cells, partial(from_cells, cells, options)),
    }


def gpt2(width, count, options):
    """KerasHub's GPT-2 with about `count` parameters beside its positions."""

    def make(intermediate, longest):
        return keras_hub.models.GPT2CausalLM(
            keras_hub.models.GPT2Backbone(
                vocabulary_size=259,
                num_layers=LAYERS,
                num_heads=max(1, width // 32),
                hidden_dim=width,
                intermediate_dim=intermediate,
                max_sequence_length=longest,
            )
        )

    fixed = make(1, 1).count_params()
    intermediate = max(1, (count - fixed) // (2 * LAYERS * width))
    longest = options.longest + (options.rounds + 1) * options.tokens
    return make(intermediate, longest)


def lstm(count):
    """The widest LSTM with at most `count` parameters."""

    def parameters(width):
        return (
            259 * width
            + LSTM_LAYERS * (8 * width + 4) * width
            + 259 * (width + 1)
        )

    width = 1
    while parameters(width + 1) <= count:
        width += 1
    cells = [keras.layers.LSTMCell(width) for _ in range(LSTM_LAYERS)]
    model = keras.Sequential(
        [
            keras.Input((None,)),
            keras.layers.Embedding(259, width),
            *(keras.layers.RNN(cell, return_sequences=True) for cell in cells),
            keras.layers.Dense(259),
        ]
    )
    return model


# The caches that generation starts from.


def noise_like(cache):
    generator = np.random.default_rng(0)
    return keras.tree.map_structure(
        lambda part: ops.cast(generator.normal(size=part.shape), part.dtype),
        cache,
    )


def next_ids(logits):
    return ops.cast(ops.argmax(logits[:, -1], axis=-1), "int32")[:, None]


def from_states(model, options, context):
    # Computed once per text, as in `generate()`.
    constants = model.backbone.step_constants()

    def one_token(token_ids, cache, index):
        logits, _, cache = model.call_with_cache(
            token_ids, cache, constants=constants
        )
        return next_ids(logits), cache

    return noise_like(model.get_initial_cache(options.batch)), one_token


def from_keys(model, options, context):
    backbone = model.backbone
    shape = (
        options.batch,
        backbone.num_layers,
        2,
        context + (options.rounds + 1) * options.tokens,
        backbone.num_heads,
        backbone.hidden_dim // backbone.num_heads,
    )

    def one_token(token_ids, cache, index):
        logits, _, cache = model.call_with_cache(token_ids, cache, index)
        return next_ids(logits), cache

    return ops.ones(shape), one_token


def from_cells(model, options, context):
    embedding, *rnns, head = model.layers
    cells = [rnn.cell for rnn in rnns]

    def one_token(token_ids, cache, index):
        hidden, states = embedding(token_ids[:, 0]), []
        for cell, state in zip(cells, cache):
            hidden, state = cell(hidden, state)
            states.append(list(state))
        return next_ids(head(hidden)[:, None]), states

    cache = [list(cell.get_initial_state(options.batch)) for cell in cells]
    return noise_like(cache), one_token


# Measuring.


def program(one_token, tokens):
    """A program that generates `tokens` tokens, compiled if possible."""

    def run(token_ids, cache, index):
        def body(step, token_ids, cache):
            token_ids, cache = one_token(token_ids, cache, index + step)
            return step + 1, token_ids, cache

        _, token_ids, cache = ops.while_loop(
            lambda step, *_: step < tokens, body, (0, token_ids, cache)
        )
        return token_ids, cache

    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.jit(run, donate_argnums=1)
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(run, jit_compile=True)
    import torch

    return torch.no_grad()(run)


def measure(contenders, options):
    """Seconds per token and bytes of the cache, by name and context."""
    contexts = [c for c in CONTEXTS if c <= options.longest]
    runs, caches = {}, {}
    token_ids = ops.zeros((options.batch, 1), "int32")
    for name, (_, start) in contenders.items():
        for context in contexts:
            cache, one_token = start(context)
            caches[name, context] = size_of(cache)
            run = program(one_token, options.tokens)
            runs[name, context] = [run, cache, context]
    seconds = {key: [] for key in runs}
    for turn in range(options.rounds + 1):
        for key, state in runs.items():
            run, cache, index = state
            begin = time.perf_counter()
            got, cache = run(
                token_ids, cache, ops.convert_to_tensor(index, "int32")
            )
            ops.convert_to_numpy(got)
            # The first call compiles.
            if turn:
                seconds[key].append(time.perf_counter() - begin)
            state[1:] = cache, index + options.tokens
    medians = {
        key: statistics.median(values) / options.tokens
        for key, values in seconds.items()
    }
    return medians, caches


def size_of(cache):
    return sum(
        ops.convert_to_numpy(part).nbytes for part in keras.tree.flatten(cache)
    )


# Tables.


def contexts_of(table):
    return sorted({context for _, context in table})


def titles_of(contexts):
    return [f"{context:,}" for context in contexts]


def print_times(times, contenders):
    contexts = contexts_of(times)
    print_header("ms per token after", *titles_of(contexts))
    for name in contenders:
        first = times[name, contexts[0]]
        cells = [
            f"{times[name, c] * 1e3:.3f} ({times[name, c] / first:.2f})"
            for c in contexts
        ]
        print_row(name, *cells)


def print_caches(caches, contenders):
    contexts = contexts_of(caches)
    titles = titles_of(contexts)
    print_header("bytes of the cache", *titles, "per further token")
    for name in contenders:
        sizes = [caches[name, context] for context in contexts]
        cells = [f"{size:,}" for size in sizes]
        grown = 0
        if len(contexts) > 1:
            grown = (sizes[-1] - sizes[0]) // (contexts[-1] - contexts[0])
        print_row(name, *cells, f"{grown:,}")


def print_generation(model, options):
    """Times of `generate()`, separately for prompts and tokens."""
    model.compile(sampler="greedy")
    print_header("prompt", "ms to the first token", "ms per further token")
    for context in CONTEXTS:
        if context > options.longest:
            continue
        # The start token counts.
        prompt = ["a" * (context - 1)] * options.batch

        def seconds(tokens, prompt=prompt, context=context):
            length = context + tokens
            found = []
            for turn in range(options.rounds + 1):
                begin = time.perf_counter()
                model.generate(prompt, length, stop_token_ids=None)
                if turn:
                    found.append(time.perf_counter() - begin)
            return statistics.median(found)

        first, more = seconds(1), seconds(1 + options.generated)
        each = (more - first) / options.generated
        print_row(f"{context:,}", f"{first * 1e3:.1f}", f"{each * 1e3:.3f}")


if __name__ == "__main__":
    main()
