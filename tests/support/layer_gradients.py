"""Gradients of a layer by its weights and by what a call takes, by name."""

import numpy as np
from support.autodiff import backend_gradients
from support.autodiff import numerical_gradients
from support.units import weights_of


def gradients_of(layer, inputs, *states, cotangents=None, **options):
    """Those of the sum of all outputs, or of their sum with `cotangents`.

    Args:
        layer: it returns its states if there are `cotangents` for them.
        inputs: the sequences.
        *states: the initial states, if any.
        cotangents: arrays, by which outputs and final states are multiplied.
        **options: further tensors of the call, by name.
    """
    arguments = arguments_of(layer, inputs, *states, **options)
    weights = len(layer.trainable_variables)
    first = weights + 1 + len(states)

    def run(given):
        outputs, _ = layer.stateless_call(
            given[:weights],
            layer.non_trainable_variables,
            given[weights],
            **({"initial_state": given[weights + 1 : first]} if states else {}),
            **dict(zip(options, given[first:])),
        )
        return outputs if layer.return_state else [outputs]

    if cotangents is None:
        cotangents = [np.ones((*inputs.shape[:2], layer.output_units))]
    slopes = backend_gradients(run, list(arguments.values()), cotangents)
    return dict(zip(arguments, slopes, strict=True))


def errors_of_gradients(layer, define, inputs, *states, floor=0.0, **options):
    """Their errors, relative to those of the definition, by name.

    Args:
        layer: as above.
        define: the definition, a function of weights by name, inputs, states
            and options.
        inputs, *states, **options: as above.
        floor: float, a size below which gradients count as this large.
    """
    arguments = arguments_of(layer, inputs, *states, **options)
    weights = len(layer.trainable_variables)
    first = weights + 1 + len(states)
    # The slope of a sign is that of u_1, for which it stands.
    names = ["u_1" if name == "sign" else name for name in arguments]

    def run(given):
        results = define(
            dict(zip(names, given[:weights])),
            *given[weights:first],
            **dict(zip(options, given[first:])),
        )
        return results if layer.return_state else results[:1]

    given = [values.astype("float64") for values in arguments.values()]
    generator = np.random.default_rng(2)
    cotangents = [generator.standard_normal(part.shape) for part in run(given)]
    got = gradients_of(layer, inputs, *states, cotangents=cotangents, **options)
    expected = numerical_gradients(run, given, cotangents)
    if "transition_t" in got:
        # The last entries of the outer bands belong to no weight.
        assert (got["transition_t"][[0, 2], -1] == 0).all()
    errors = {}
    for name, slopes in zip(arguments, expected, strict=True):
        assert got[name].shape == slopes.shape
        size = max(np.abs(slopes).max(initial=0.0), floor) or 1.0
        errors[name] = np.abs(got[name] - slopes).max(initial=0.0) / size
    return errors


def arguments_of(layer, inputs, *states, **options):
    """All that has a gradient, by name."""
    weights = weights_of(layer)
    names = [weight.name for weight in layer.trainable_variables]
    return {
        **{name: weights[name] for name in names},
        "inputs": inputs,
        **{f"state {place}": state for place, state in enumerate(states)},
        **options,
    }
