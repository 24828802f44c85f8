"""Whole calls by the definitions: masks, resets, lengths and directions.

`tests/definitions` knows one unmasked sequence after another. Here each row is
split at its resets, its masked steps are left out, and the definition computes
each part by itself in float64.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

MERGES = {
    "concat": lambda one, other: np.concatenate([one, other], axis=-1),
    "sum": lambda one, other: one + other,
    "ave": lambda one, other: (one + other) / 2,
    "mul": lambda one, other: one * other,
}


class Call(NamedTuple):
    """The arguments of a layer's call.

    Attributes:
        inputs: (batch, time, features).
        states: a list of the initial states, or `None`.
        mask, resets, time_deltas: (batch, time), or `None`.
    """

    inputs: np.ndarray
    states: list | None = None
    mask: np.ndarray | None = None
    resets: np.ndarray | None = None
    time_deltas: np.ndarray | None = None

    @property
    def options(self):
        """The call arguments that are given, by name."""
        given = {
            "initial_state": self.states,
            "mask": self.mask,
            "reset_mask": self.resets,
            "time_deltas": self.time_deltas,
        }
        return {name: part for name, part in given.items() if part is not None}

    def backwards(self):
        """The call whose sequences are read from their ends."""
        resets = self.resets
        if resets is not None:
            # A sequence begins after the last step of the one before.
            resets = np.roll(resets, -1, axis=1)
            resets[:, -1] = False
        return self._replace(
            **{
                name: None if part is None else part[:, ::-1]
                for name, part in (
                    ("inputs", self.inputs),
                    ("mask", self.mask),
                    ("resets", resets),
                    ("time_deltas", self.time_deltas),
                )
            }
        )


def defined_call(drawn, weights, call):
    """What a layer gives, by its definition.

    Args:
        drawn: `DrawnLayer`.
        weights: the layer's float64 weights by name; a pair of such
            dictionaries, forward and backward, for a `Bidirectional`.
        call: `Call`, with float64 arrays.

    Returns:
        A list of the outputs and the final states, float64.
    """
    # A definition's exp may overflow on the way to a sigmoid of 0.
    with np.errstate(over="ignore"):
        return _defined_call(drawn, weights, call)


def _defined_call(drawn, weights, call):
    if drawn.wrapper is None:
        return one_way(drawn, weights, call)
    forward, backward = (
        drawn._replace(
            wrapper=None,
            common={
                **drawn.common,
                "go_backwards": backwards,
                # As Keras' wrapper sets it.
                "zero_output_for_mask": drawn.common["return_sequences"],
            },
        )
        for backwards in (False, True)
    )
    states = [None, None]
    if call.states is not None:
        half = len(call.states) // 2
        states = call.states[:half], call.states[half:]
    one, *first = one_way(forward, weights[0], call._replace(states=states[0]))
    other, *second = one_way(
        backward, weights[1], call._replace(states=states[1])
    )
    if drawn.common["return_sequences"]:
        other = other[:, ::-1]
    if drawn.merge_mode is None:
        return [one, other, *first, *second]
    return [MERGES[drawn.merge_mode](one, other), *first, *second]


def one_way(drawn, weights, call):
    arguments = drawn.arguments
    if arguments.get("go_backwards"):
        call = call.backwards()
    rows = [
        row_of_call(drawn, weights, call, row)
        for row in range(len(call.inputs))
    ]
    outputs, *states = (np.stack(parts) for parts in zip(*rows))
    if call.mask is not None and arguments.get("zero_output_for_mask"):
        outputs = outputs * call.mask[:, :, None]
    if not arguments.get("return_sequences", True):
        outputs = outputs[:, -1]
    return [outputs, *states]


def row_of_call(drawn, weights, call, row):
    """The outputs (time, units) and final states of one row."""
    time = call.inputs.shape[1]
    mask = np.ones(time, bool) if call.mask is None else call.mask[row]
    begins = np.zeros(time, bool) if call.resets is None else call.resets[row]
    width, fresh = sizes_and_start(drawn, weights, call.inputs[row])
    given = fresh
    if call.states is not None:
        given = [state[row] for state in call.states]
    # Of two directions, the forward one's states come first.
    half = len(fresh) // 2

    outputs, finals = np.zeros((time, width)), []
    for first, end in pairwise(sorted({0, time, *np.flatnonzero(begins)})):
        goes_on = [first == 0 and not begins[0]] * len(fresh)
        if drawn.form.get("bidirectional"):
            # The backward direction starts in the last sequence.
            goes_on[half:] = [end == time] * half
        states = [
            one if flag else other
            for flag, one, other in zip(goes_on, given, fresh)
        ]
        place = np.cumsum(mask[first:end]) - 1
        steps = first + np.flatnonzero(mask[first:end])
        if len(steps):
            got, states = run_steps(drawn, weights, call, row, steps, states)
            # Masked steps repeat the output before them, if there is one.
            seen = place >= 0
            outputs[first:end][seen] = got[place[seen]]
        finals.append(states)
    last = finals[-1]
    if drawn.form.get("bidirectional"):
        last = [*last[:half], *finals[0][half:]]
    return outputs, *last


def run_steps(drawn, weights, call, row, steps, states):
    """The definition at some steps of a row."""
    options = {}
    if call.time_deltas is not None:
        options["time_deltas"] = call.time_deltas[row : row + 1, steps]
    output, *finals = drawn.unit.defined(
        drawn.form,
        weights,
        call.inputs[row : row + 1, steps],
        *(state[None].copy() for state in states),
        **options,
    )
    return output[0], [final[0] for final in finals]


def sizes_and_start(drawn, weights, inputs):
    """The number of output features, and a row's states after a reset.

    The states are zero, unless the layer trains them.
    """
    output, *finals = drawn.unit.defined(drawn.form, weights, inputs[None, :1])
    states = [np.zeros_like(final[0]) for final in finals]
    if "initial_state" in weights:
        states = [weights["initial_state"]]
    return output.shape[-1], states
