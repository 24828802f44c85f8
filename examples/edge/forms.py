"""Streaming forms of a classifier of sounds: a block, or a step, at a time.

Both are Keras models of fixed sizes, from `[sound, *states]` to
`[probabilities, *states]`, which `export` writes without this package.
"""

import math
from functools import partial

import keras
from keras import ops

import keras_linrec


def read(path):
    """The classifier of a kept model, able to stream."""
    model = keras_linrec.saving.load_model(path, compile=False)
    classifier = next(
        layer
        for layer in (model, *model.layers)
        if isinstance(layer, keras_linrec.models.SequenceClassifier)
    )
    for block in classifier.blocks:
        make_streaming(block.unit)
    return classifier


def make_streaming(unit):
    """Let a unit read a block by as many steps.

    Keras' own units stream by their cells. A unit of `keras_linrec` reads a
    block in parallel, in float64 where products of decays meet: LiteRT has no
    such operations, and 64 steps in a row are fewer.
    """
    if isinstance(unit, keras.layers.RNN):
        unit.step = unit.cell
    unit.call_with_states = partial(by_steps, unit)


def by_steps(unit, sequence, states, mask=None):
    constants = []
    if hasattr(unit, "step_constants"):
        constants = [unit.step_constants()]
    outputs = []
    for step in range(sequence.shape[1]):
        output, states = unit.step(sequence[:, step], states, *constants)
        outputs.append(output)
    return ops.stack(outputs, axis=1), list(states)


def block_size(classifier):
    """The samples for which each average between blocks is a whole number."""
    return math.prod(pool_sizes(classifier))


def pool_sizes(classifier):
    size = classifier.pool_size
    if isinstance(size, int):
        return (size,) * (classifier.num_layers - 1)
    return size


class Block(keras.layers.Layer):
    """One block of sound, after which every average is complete.

    Its states are those of the classifier's blocks, the sum of the last
    block's outputs, and their number.
    """

    def __init__(self, classifier):
        super().__init__(autocast=False)
        self.classifier = classifier
        self.built = True

    def initial_states(self):
        blocks = self.classifier.blocks
        units = self.classifier.units
        states = [block.get_initial_state(1) for block in blocks]
        return [*states, [ops.zeros((1, units)), ops.zeros((1, 1))]]

    def compute_output_spec(self, sound, states):
        probabilities = keras.KerasTensor((1, self.classifier.output_dim))
        return [probabilities, *(keras.KerasTensor(s.shape) for s in states)]

    def call(self, sound, states):
        model = self.classifier
        states = keras.tree.pack_sequence_as(self.initial_states(), states)
        features = model.encoder(sound)
        after = []
        sizes = (1, *pool_sizes(model))
        for block, size, before in zip(model.blocks, sizes, states):
            if size > 1:
                shape = (1, -1, size, model.units)
                features = ops.mean(ops.reshape(features, shape), axis=2)
            features, state = block.call_with_states(features, before)
            after.append(state)
        total, count = states[-1]
        features = model.norm(features)
        total = total + ops.sum(features, axis=1)
        count = count + features.shape[1]
        probabilities = model.head(total / count)
        return [probabilities, *keras.tree.flatten([after, total, count])]


def block_form(classifier):
    """The model of a block: 64 samples for averages of 4, 4 and 4."""
    layer = Block(classifier)
    sound = keras.Input((block_size(classifier), 1), batch_size=1, name="sound")
    states = state_inputs(keras.tree.flatten(layer.initial_states()))
    return keras.Model([sound, *states], layer(sound, states))


def step_form(classifier):
    """The model of a single sample, by `export_step`."""
    whole = keras.Sequential([keras.Input((None, 1)), classifier])
    step = keras_linrec.export_step(whole)
    sound = keras.Input((1,), batch_size=1, name="sound")
    states = state_inputs(step.initial_states(1))
    return keras.Model([sound, *states], step([sound, *states]))


def state_inputs(states):
    # Two digits, so that they are in order by name too.
    return [
        keras.Input(batch_shape=tuple(state.shape), name=f"state_{place:02}")
        for place, state in enumerate(states)
    ]


FORMS = {"block": block_form, "step": step_form}


def signature(model):
    """Inputs of exactly these sizes: Keras would leave the batch open."""
    return [
        [
            keras.InputSpec(shape=part.shape, dtype=part.dtype, name=part.name)
            for part in model.inputs
        ]
    ]
