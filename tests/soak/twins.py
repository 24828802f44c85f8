"""The float64 twin of a model, on the plain kernel: its reference."""

import keras
from support.programs import BACKEND
from support.programs import COMPILED
from support.programs import EAGER
from support.programs import program

from soak.settings import number
from soak.settings import scope
from soak.tolerances import bounded


def defined_by_twin(model, make, inputs, generator, dtype, **options):
    """What a model gives in float64 on the plain kernel, with its bound.

    Args:
        model: the model, trained or not.
        make: function of a dtype policy that makes the same model anew.
        inputs: structure of arrays, float64 or integers.
        generator: `numpy.random.Generator`.
        dtype: that of the model's outputs and position-wise layers.
        **options: of the model's call.

    Returns:
        A list of one `Bounded`.
    """
    with scope("float64", "reference"):
        twin = make("float64")
        for weight, trained in zip(twin.weights, model.weights, strict=True):
            weight.assign(number(trained).astype(weight.dtype))
        weights = [*twin.trainable_variables, *twin.non_trainable_variables]
        count, total = len(twin.trainable_variables), len(weights)

        def answer(given):
            given_inputs = keras.tree.pack_sequence_as(inputs, given[total:])
            outputs, _ = twin.stateless_call(
                given[:count],
                given[count:total],
                given_inputs,
                **options,
            )
            return outputs

        run = program(answer, COMPILED if BACKEND == "jax" else EAGER)

        def reference(arguments):
            given = [keras.ops.convert_to_tensor(part) for part in arguments]
            return [number(run(given))]

        return bounded(
            reference,
            [*(number(w) for w in weights), *keras.tree.flatten(inputs)],
            generator,
            dtype,
        )
