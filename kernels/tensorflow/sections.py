"""Projected scans, a section of time after the other: `kernels/sections.py`.

A program may learn its sizes when it runs, as that of Keras' `fit` does, so
that a `tf.while_loop` goes over the sections. They have one length, as XLA
requires, but for the last. The rest follows: lists instead of `tf.TensorArray`,
and a gradient by hand, since XLA has none of a loop whose length is a tensor;
`tf.recompute_grad` needs a number of sections that is known.
"""

from functools import partial
from typing import NamedTuple

import tensorflow as tf

from keras_linrec.kernels.operations import projected_scan as plain
from keras_linrec.kernels.sections import section_length
from keras_linrec.kernels.tensorflow.pull_back import pull_back


def by_sections(
    scan,
    decay,
    inputs,
    input_kernel,
    output_kernel,
    initial_state,
    reverse=False,
    resets=None,
):
    """See `keras_linrec.kernels.operations.projected_scan`."""
    parts = len(decay)
    groups = decay, (inputs,), input_kernel, output_kernel, initial_state
    operands = [tf.convert_to_tensor(one) for group in groups for one in group]
    inputs = operands[parts]

    def whole(resets, operands):
        outputs, state = plain.projected_scan(
            scan,
            tuple(operands[:parts]),
            operands[parts],
            *(tuple(operands[1 + i * parts :][:parts]) for i in (1, 2, 3)),
            reverse,
            resets,
        )
        return [outputs, *state]

    channels = parts * decay[0].shape[-1]
    cuts = _Cuts(inputs, channels, reverse)
    if cuts.is_single():
        outputs, *final_state = whole(resets, operands)
    else:
        outputs, *final_state = _by_sections(whole, cuts, resets, operands)
    return outputs, tuple(final_state)


class _List(NamedTuple):
    """The type of a list of tensors, which are all of one shape.

    A `tf.TensorArray` has to know the shape before the program runs, if it may
    be empty. Here it has an element more, since XLA reads no empty list.

    Attributes:
        shape: tensor, the shape when the program runs.
        known: what is known of it before.
        dtype: the type of the numbers.
    """

    shape: object
    known: object
    dtype: object

    def empty(self, count):
        return tf.raw_ops.TensorListReserve(
            element_shape=self.shape,
            num_elements=count + 1,
            element_dtype=self.dtype,
        )

    def stack(self, handle):
        stack = tf.raw_ops.TensorListStack(
            input_handle=handle,
            element_shape=self.shape,
            element_dtype=self.dtype,
        )
        return stack[:-1]

    def read(self, handle, place):
        tensor = tf.raw_ops.TensorListGetItem(
            input_handle=handle,
            index=place,
            element_shape=self.shape,
            element_dtype=self.dtype,
        )
        tensor.set_shape(self.known)
        return tensor

    @staticmethod
    def write(handle, place, tensor):
        return tf.raw_ops.TensorListSetItem(
            input_handle=handle, index=place, item=tensor
        )


class _Cuts:
    """How sequences are cut: the last section is the scan's last."""

    def __init__(self, inputs, channels, reverse):
        self.inputs, self.channels, self.reverse = inputs, channels, reverse
        self.batch, self.time, _ = tf.unstack(tf.shape(inputs))
        self.count = -(-self.time // self.length()) - 1  # of the equal ones

    def length(self):
        """Steps in a section.

        A tensor, if the sizes are unknown. In the body of a loop it has to be
        computed anew: XLA knows there the shapes of what comes from outside,
        and not the values.
        """
        batch, time, _ = self.inputs.shape
        itemsize = self.inputs.dtype.size
        if None not in (batch, time):
            return section_length(batch, time, self.channels, itemsize)
        batch, time, _ = tf.unstack(tf.shape(self.inputs))
        return section_length(batch, time, self.channels, itemsize, tf.maximum)

    def is_single(self):
        """Whether all steps are known to be one section."""
        length = self.length()
        return isinstance(length, int) and length >= self.inputs.shape[1]

    def list_of(self, width, dtype):
        """The type of the list of the equal sections of a sequence."""
        shape = tf.stack((self.batch, self.length(), width))
        return _List(shape, (self.inputs.shape[0], None, width), dtype)

    def cut(self, sequence, place):
        """The equal section at a place in time, or the last for `None`."""
        length = self.length()
        rest = self.time - self.count * length
        if place is None:
            return sequence[:, :rest] if self.reverse else sequence[:, -rest:]
        first = place * length + (rest if self.reverse else 0)
        part = tf.slice(sequence, (0, first, 0), (-1, length, -1))
        # A slice of a length that is a tensor forgets the other sizes.
        part.set_shape((sequence.shape[0], None, sequence.shape[2]))
        return part

    def join(self, equal, last):
        """The sequence of a list of equal sections, and of the last."""
        width = last.shape[2]
        equal = self.list_of(width, last.dtype).stack(equal)
        equal = tf.transpose(equal, (1, 0, 2, 3))
        shape = self.batch, self.count * self.length(), width
        parts = [tf.reshape(equal, shape), last]
        joined = tf.concat(parts[::-1] if self.reverse else parts, axis=1)
        return tf.ensure_shape(joined, (*self.inputs.shape[:2], width))

    def loop(self, body, carry, backwards=False):
        """`carry = body(place, *carry)` for each of the equal sections."""
        from_the_end = self.reverse != backwards

        def step(index, *carry):
            place = self.count - 1 - index if from_the_end else index
            return index + 1, *body(place, *carry)

        _, *carry = tf.while_loop(
            lambda index, *_: index < self.count,
            step,
            (0, *carry),
            parallel_iterations=1,
        )
        return carry


class _Sections:
    """The operands of each section, the last for the place `None`."""

    def __init__(self, cuts, resets, operands):
        self.cuts, self.resets, self.operands = cuts, resets, operands
        self.parts = (len(operands) - 1) // 4
        self.sequences = [
            index
            for index, operand in enumerate(operands)
            if operand.shape.rank == 3
        ]
        state = operands[-1]
        self.states = _List(tf.shape(state), state.shape, state.dtype)

    def at(self, place, state):
        """Resets and operands."""
        operands = [*self.operands[: -self.parts], *state]
        for index in self.sequences:
            operands[index] = self.cuts.cut(operands[index], place)
        if self.resets is None:
            return None, operands
        return self.cuts.cut(self.resets[:, :, None], place)[:, :, 0], operands

    def list_like(self, index):
        """An empty list for a sequence, as wide as an operand."""
        operand = self.operands[index]
        equal = self.cuts.list_of(operand.shape[-1], operand.dtype)
        return equal.empty(self.cuts.count)


def _by_sections(whole, cuts, resets, operands):
    @tf.custom_gradient
    def run(*operands):
        sections = _Sections(cuts, resets, _fixed(operands))
        results, entering = _forward(whole, sections)

        def gradient(*cotangents):
            return _gradient(whole, sections, operands, entering, cotangents)

        return results, gradient

    return run(*operands)


def _fixed(tensors):
    """The tensors, through which no tape looks.

    One that waits for a second derivative would record the loop, and XLA has no
    gradient of a loop whose length is a tensor.
    """
    return [tf.stop_gradient(tensor) for tensor in tensors]


def _forward(whole, sections):
    """Outputs and final state, and the states that enter the sections."""
    cuts, states, parts = sections.cuts, sections.states, sections.parts

    def body(place, outputs, entering, state):
        entering = [
            _List.write(handle, place, part)
            for handle, part in zip(entering, state)
        ]
        result, *state = whole(*sections.at(place, state))
        return _List.write(outputs, place, result), entering, state

    # The outputs are as wide as the output kernel.
    outputs = sections.list_like(-2 * parts)
    state = list(sections.operands[-parts:])
    entering = [states.empty(cuts.count) for _ in state]
    outputs, entering, state = cuts.loop(body, (outputs, entering, state))
    last, *final_state = whole(*sections.at(None, state))
    return [cuts.join(outputs, last), *final_state], (entering, state)


def _gradient(whole, sections, operands, entering, cotangents):
    """Cotangents of the operands, which have a gradient of their own."""
    count = len(operands)

    def plain_gradients(given):
        function = partial(whole, sections.resets)
        return pull_back(function, given[:count], list(given[count:]))

    @tf.custom_gradient
    def run(*given):
        gradients = _backward(whole, sections, entering, _fixed(cotangents))

        def second(*upstream):
            return pull_back(plain_gradients, given, upstream)

        return gradients, second

    return run(*operands, *cotangents)


def _backward(whole, sections, entering, cotangents):
    cuts, parts = sections.cuts, sections.parts
    d_outputs, *d_state = cotangents

    def pulled_back(place, state, d_state):
        """Cotangents of sequences, of weights, and of the state."""
        resets, given = sections.at(place, state)
        d_results = [cuts.cut(d_outputs, place), *d_state]
        found = pull_back(partial(whole, resets), given, d_results)
        found, d_state = found[:-parts], found[-parts:]
        sequences = [found[index] for index in sections.sequences]
        weights = [
            part
            for index, part in enumerate(found)
            if index not in sections.sequences
        ]
        return sequences, weights, d_state

    def body(place, sequences, weights, d_state):
        state = [sections.states.read(handle, place) for handle in entering[0]]
        found, more, d_state = pulled_back(place, state, d_state)
        sequences = [
            _List.write(handle, place, part)
            for handle, part in zip(sequences, found)
        ]
        return sequences, [a + b for a, b in zip(weights, more)], d_state

    last, weights, d_state = pulled_back(None, entering[1], d_state)
    empty = [sections.list_like(index) for index in sections.sequences]
    sequences, gradients, d_state = cuts.loop(
        body, (empty, weights, d_state), backwards=True
    )
    for index, *pair in zip(sections.sequences, sequences, last):
        gradients.insert(index, cuts.join(*pair))
    return [*gradients, *d_state]
