"""Gradients of native calls, for every framework: which call they are, and what
they are in operations that the framework differentiates itself.

A framework differentiates one function, `pull_back(function, tensors,
cotangents)`: from a function of a list of tensors that returns a list, and the
cotangents of the latter, to those of the former.
"""

from functools import lru_cache
from functools import partial

from keras import ops

from keras_linrec.kernels import registry
from keras_linrec.kernels.native.table import by_name
from keras_linrec.kernels.native.table import each_tensor
from keras_linrec.kernels.native.table import flatten
from keras_linrec.kernels.operations import OPERATIONS

_OPERATIONS = {one.function: one for one in OPERATIONS.values()}


def gradient_arguments(call, arguments, results, cotangents):
    """The tensors of a gradient's call, of those of the call itself.

    Args:
        call: `Call` whose gradient this is.
        arguments: flat list of its arguments.
        results: flat list of its results.
        cotangents: flat list of the cotangents of all results.
    """
    operation = call.operation
    named = by_name(operation, operation.arguments, call.flags, arguments)
    named |= by_name(operation, operation.results, call.flags, results)
    upstream = by_name(operation, operation.results, call.flags, cotangents)
    named |= {f"d_{name}": parts for name, parts in upstream.items()}
    return flatten(named[one.name] for one in operation.backward.arguments)


@lru_cache(maxsize=256)
def kept_places(call):
    """What a gradient reads of its call: indices of arguments, then results."""
    arguments, results = _counts(call)
    places = list(range(arguments + results))
    read = gradient_arguments(
        call, places[:arguments], places[arguments:], [None] * results
    )
    return tuple(place for place in read if place is not None)


def from_kept(call, kept):
    """Flat lists of a call's arguments and results, as far as they are kept."""
    arguments, results = _counts(call)
    everything = [None] * (arguments + results)
    for place, tensor in zip(kept_places(call), kept):
        everything[place] = tensor
    return everything[:arguments], everything[arguments:]


def _counts(call):
    """The numbers of tensors of a call's arguments and results."""
    operation = call.operation
    return (
        len(each_tensor(operation.arguments, call.flags)),
        len(each_tensor(operation.results, call.flags)),
    )


def dense_cotangents(call, results, cotangents, zeros_like):
    """The cotangents that a gradient reads, none of them `None`.

    Those of an unused result are zeros, or have no steps where the core takes
    that for zeros. A result that is for the gradient alone has none.

    Args:
        call: `Call`.
        results: flat list of its results, or of tensors of their shapes.
        cotangents: flat list, with `None` for results that are not used.
        zeros_like: makes zeros of a result's shape.
    """
    operation, found = call.operation, []
    for one, result, cotangent in zip(
        each_tensor(operation.results, call.flags),
        results,
        cotangents,
        strict=True,
    ):
        if cotangent is None and one in operation.differentiated:
            if "z" in one.axes:
                # Time is the last axis but one.
                result = result[..., :0, :]
            cotangent = zeros_like(result)
        found.append(cotangent)
    return found


def of_all_arguments(call, gradients, wanted=None):
    """A gradient's results, and `None` for arguments that have none."""
    backward = call.operation.backward
    if wanted is not None:
        gradients = [g if one else None for g, one in zip(gradients, wanted)]
    named = by_name(backward, backward.results, call.flags, gradients)
    return flatten(
        named.get(f"d_{one.name}", (None,) * one.parts(call.flags))
        for one in call.operation.arguments
    )


def plain_results(kernel, call, arguments):
    """What `run` returns for a call, flat, in operations of the framework.

    Args:
        kernel: `Kernel`, with the scans to use.
        call: `Call`.
        arguments: flat list of tensors, without leading axes.
    """
    operation = call.operation
    named = by_name(operation, operation.arguments, call.flags, arguments)
    define = _OPERATIONS[call.name].call_plain
    return flatten(define(kernel, call, *named.values()))


def plain_gradient(pull_back, kernel, call, given, wanted=None):
    """The results of the gradient's call, in operations of the framework.

    Args:
        pull_back: see above.
        kernel: `Kernel`, with the scans to use.
        call: `Call` whose gradient this is.
        given: flat list of the arguments of the gradient's call. Results of
            `call` among them that are functions of its arguments have no part
            in what is computed here.
        wanted: which gradients are wanted: the others have no elements.
            Defaults to `None`, all.
    """
    operation, flags = call.operation, call.flags
    backward = operation.backward
    named = by_name(backward, backward.arguments, flags, given)
    define = _OPERATIONS[call.name].call_plain_gradient
    if define:
        return flatten(define(kernel, call, named))
    returned = {one.name for one in backward.results}
    moving = [one for one in operation.arguments if f"d_{one.name}" in returned]
    results = operation.differentiated
    cotangents = flatten(named[f"d_{result.name}"] for result in results)

    def function(tensors):
        values = {**named, **by_name(operation, moving, flags, tensors)}
        arguments = flatten(values[one.name] for one in operation.arguments)
        return [
            _as_many_steps(found, named[f"d_{result.name}"])
            if "z" in result.axes
            else found
            for result, found in zip(
                each_tensor(results, flags),
                plain_results(kernel, call, arguments),
                strict=True,
            )
        ]

    tensors = flatten(named[one.name] for one in moving)
    gradients = pull_back(function, tensors, cotangents)
    if wanted is None:
        return gradients
    return [
        gradient if one else ops.reshape(gradient, (-1,))[:0]
        for gradient, one in zip(gradients, wanted)
    ]


def second_gradient(pull_back, call, given, cotangents, wanted=None, **options):
    """The cotangents of what `plain_gradient` takes.

    An argument that the plain form does not read is a function of the others,
    whose cotangents include its part.

    Args:
        pull_back, call, given, wanted: those of `plain_gradient`.
        cotangents: flat list of those of its results.
        **options: further arguments of `pull_back`.
    """
    kernel = registry.load("native")
    plain = partial(plain_gradient, pull_back, kernel, call, wanted=wanted)
    return pull_back(plain, given, cotangents, **options)


def _as_many_steps(states, cotangents):
    """The states that have a cotangent: those of all steps, or of none."""
    return states[:, : ops.shape(cotangents)[1]]
