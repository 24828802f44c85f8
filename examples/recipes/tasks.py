"""What the models of the recipes learn: training batches and tests.

Which examples a training step sees follows from the seed and the number of the
step alone, so that a run that was interrupted goes on with the same ones.
"""

from functools import lru_cache

import keras
import numpy as np

TEST_BATCH_SIZE = 100
# The share of the training data that chooses, and how it is drawn.
HELD_OUT = 0.1
HELD_OUT_SEED = 52


class Task:
    """Training batches by number, and test batches.

    Attributes:
        inputs: dictionary of the shapes of the inputs, without the batch.
        dtypes: dictionary of the dtypes of those that are not float32.
        loss: what is minimised, an argument of `compile`.
        metrics: list, what else is measured.
        num_classes: integer, or `None` for a task without classes.
    """

    loss = "sparse_categorical_crossentropy"
    metrics = ("accuracy",)
    num_classes = None
    dtypes = {"mask": "bool"}

    def keras_inputs(self):
        """The inputs of a model, by name."""
        return {
            name: keras.Input(
                shape, name=name, dtype=self.dtypes.get(name, "float32")
            )
            for name, shape in self.inputs.items()
        }

    def steps_of_epoch(self, batch_size):
        """The batches in which all training examples occur once."""
        raise ValueError(
            "A recipe for sequences that are drawn should have `steps`. "
            "Received: steps=None"
        )

    def batch(self, seed, number, batch_size):
        """Inputs and targets of a training step, the same in every run."""
        raise NotImplementedError

    def tests(self):
        """Batches of inputs and targets, the same in every run."""
        raise NotImplementedError

    def hold_out(self):
        """Take a tenth from the training data, by which a run chooses.

        Sequences that are drawn need none.
        """

    def validations(self):
        """Batches like those of `tests`, of what is held out."""
        raise NotImplementedError


class DrawnTask(Task):
    """Sequences that are drawn anew in every training step.

    Args:
        draw: function of a number of sequences and a generator, which returns
            inputs and targets.
        shape: shape of one sequence.
        test_size: integer, the number of test sequences.
        loss: what is minimised.
        metrics: what else is measured.
        num_classes: integer. Defaults to `None`, a task without classes.
    """

    def __init__(
        self, draw, shape, test_size, loss, metrics=(), num_classes=None
    ):
        self.draw = draw
        self.inputs = {"sequences": shape}
        self.test_size = test_size
        self.loss = loss
        self.metrics = metrics
        self.num_classes = num_classes

    def batch(self, seed, number, batch_size):
        # The last number tells training from testing.
        generator = np.random.default_rng([seed, number, 0])
        sequences, targets = self.draw(batch_size, generator)
        return {"sequences": sequences}, targets

    def tests(self):
        return self._drawn(1)

    def validations(self):
        return self._drawn(2)

    def _drawn(self, part):
        for first in range(0, self.test_size, TEST_BATCH_SIZE):
            generator = np.random.default_rng([0, first, part])
            sequences, targets = self.draw(TEST_BATCH_SIZE, generator)
            yield {"sequences": sequences}, targets


class FixedTask(Task):
    """Training and test sequences that are given.

    Args:
        train, test: pairs of sequences and labels. Sequences are an array
            (examples, time, features), or a list of arrays (time, features) or
            of tokens (time,), which become batches with masks.
        multiple: integer, to a multiple of which batches of various lengths
            are padded, because JAX compiles for each length.
        vary: function of a training sequence and a generator, which returns a
            variation of it, cut to the width of the batch that it would be in
            as it is. Defaults to `None`: sequences as they are.
        oversampling: integer, one of so many steps is a sample, and the others
            are interpolated. Defaults to 1.
    """

    def __init__(self, train, test, multiple=1, vary=None, oversampling=1):
        self.vary = vary
        self.oversampling = oversampling
        self.train = train
        self.test = test
        self.multiple = multiple
        sequences, labels = train
        self.num_classes = int(labels.max()) + 1
        if isinstance(sequences, list):
            self.inputs = {
                "sequences": (None, *sequences[0].shape[1:]),
                "mask": (None,),
            }
            self.dtypes = {
                "sequences": str(sequences[0].dtype),
                "mask": "bool",
            }
        else:
            self.inputs = {"sequences": sequences.shape[1:]}
        self.order = lru_cache(maxsize=2)(self._order)

    def steps_of_epoch(self, batch_size):
        return len(self.train[1]) // batch_size

    def batch(self, seed, number, batch_size):
        epoch, place = divmod(number, self.steps_of_epoch(batch_size))
        rows = self.order(seed, epoch, batch_size)[place]
        if self.vary is None:
            return self._taken(self.train, rows)
        sequences, labels = self.train
        width = self._width(sequences, rows)
        generator = np.random.default_rng([seed, number, 0])
        given = [self.vary(sequences[row], generator)[:width] for row in rows]
        return padded(given, width), labels[rows]

    def hold_out(self):
        count = len(self.train[1])
        generator = np.random.default_rng(HELD_OUT_SEED)
        chosen = np.zeros(count, bool)
        chosen[
            generator.permutation(count)[: max(1, int(HELD_OUT * count))]
        ] = 1
        self.validation = rows_of(self.train, chosen)
        self.train = rows_of(self.train, ~chosen)

    def tests(self):
        return self._all_of(self.test)

    def validations(self):
        return self._all_of(self.validation)

    def _all_of(self, part):
        sequences, labels = part
        order = np.arange(len(labels))
        if isinstance(sequences, list):
            order = np.argsort([len(s) for s in sequences], kind="stable")
        rows = np.array_split(order, -(-len(order) // TEST_BATCH_SIZE))
        for some in self._varied(part, rows):
            yield self._taken(part, some)

    def _order(self, seed, epoch, batch_size):
        """The examples of each training step of an epoch.

        Those that do not fill a batch are left out of this epoch.
        """
        sequences, labels = self.train
        generator = np.random.default_rng([seed, epoch])
        order = generator.permutation(len(labels))
        if isinstance(sequences, list):
            # Examples of about the same length together.
            lengths = np.array([len(sequences[row]) for row in order])
            noise = generator.uniform(0.9, 1.1, len(lengths))
            order = order[np.argsort(lengths * noise)]
        steps = self.steps_of_epoch(batch_size)
        batches = order[: steps * batch_size].reshape(steps, batch_size)
        generator.shuffle(batches)
        return self._varied(self.train, list(batches))

    def _varied(self, part, batches):
        """The same batches, of which the first two differ in width.

        Under TensorFlow, Keras 3.15 fixes every axis in which the first two
        batches agree.
        """
        sequences, _ = part
        if not isinstance(sequences, list) or len(batches) < 2:
            return batches
        widths = [self._width(sequences, rows) for rows in batches]
        others = [i for i, width in enumerate(widths) if width != widths[0]]
        if others and 1 not in others:
            batches[1], batches[others[0]] = batches[others[0]], batches[1]
        return batches

    def _width(self, sequences, rows):
        longest = max(len(sequences[row]) for row in rows)
        return -(-longest // self.multiple) * self.multiple

    def _taken(self, part, rows):
        """The inputs and labels of some examples of a part."""
        sequences, labels = part
        if not isinstance(sequences, list):
            return {"sequences": sequences[rows]}, labels[rows]
        width = self._width(sequences, rows)
        return padded([sequences[row] for row in rows], width), labels[rows]


def rows_of(part, chosen):
    """The sequences and labels where `chosen` is true."""
    sequences, labels = part
    if isinstance(sequences, list):
        sequences = [s for s, taken in zip(sequences, chosen) if taken]
    else:
        sequences = sequences[chosen]
    return sequences, labels[chosen]


def padded(sequences, width):
    """Sequences of various lengths as one array, and their mask."""
    lengths = np.array([len(sequence) for sequence in sequences])
    _, *shape = sequences[0].shape
    batch = np.zeros((len(sequences), width, *shape), sequences[0].dtype)
    for row, sequence in zip(batch, sequences):
        row[: len(sequence)] = sequence
    return {"sequences": batch, "mask": np.arange(width) < lengths[:, None]}


class IrregularTask(FixedTask):
    """Sequences whose last feature is the time since the step before.

    A model gets it as a feature and, where the recipe asks for it, as the
    length of the step, from which a unit in continuous time computes.
    """

    def __init__(self, train, test, time_deltas):
        super().__init__(train, test, multiple=10)
        self.time_deltas = time_deltas
        if time_deltas:
            self.inputs["time_deltas"] = (None,)

    def _taken(self, part, rows):
        inputs, labels = super()._taken(part, rows)
        if self.time_deltas:
            deltas = inputs["sequences"][..., -1]
            inputs["time_deltas"] = np.where(inputs["mask"], deltas, 1.0)
        return inputs, labels


class PaddedTask(FixedTask):
    """Sequences of one length, with normal noise behind them.

    The noise of a training step follows from its seed and number; that of an
    example of the test, or of what is held out, is always the same.
    """

    def __init__(self, train, test, steps):
        super().__init__(train, test)
        self.steps = steps
        self.inputs = {"sequences": (steps, train[0].shape[2])}

    def batch(self, seed, number, batch_size):
        inputs, labels = super().batch(seed, number, batch_size)
        return self._padded(inputs, [seed, number, 0]), labels

    def _all_of(self, part):
        for number, (inputs, labels) in enumerate(super()._all_of(part)):
            yield self._padded(inputs, [0, number, 1]), labels

    def _padded(self, inputs, key):
        sequences = inputs["sequences"]
        count, height, features = sequences.shape
        generator = np.random.default_rng(key)
        shape = count, self.steps - height, features
        noise = generator.standard_normal(shape, "float32")
        return {"sequences": np.concatenate([sequences, noise], axis=1)}


class TextTask(Task):
    """The next byte of a text, at every step of random rows.

    Args:
        text: integer array, the bytes.
        length: integer, the bytes of a row.
        ahead: integer, how many steps after it a byte is predicted. Defaults
            to 1, the next byte.
    """

    num_classes = 256
    dtypes = {"sequences": "int32"}

    def __init__(self, text, length, ahead=1):
        # The last tenth is the test.
        count = int(len(text) * 0.9)
        self.train, self.test = text[:count], text[count:]
        self.length = length
        self.ahead = ahead
        self.inputs = {"sequences": (length,)}

    def batch(self, seed, number, batch_size):
        generator = np.random.default_rng([seed, number])
        first = generator.integers(
            len(self.train) - self.length - self.ahead + 1, size=batch_size
        )
        return self._rows(self.train, first)

    def hold_out(self):
        # The last rows, as those of the test are.
        count = len(self.train) - int(HELD_OUT * len(self.train))
        self.train, self.validation = self.train[:count], self.train[count:]

    def tests(self):
        return self._all_of(self.test)

    def validations(self):
        return self._all_of(self.validation)

    def _all_of(self, text):
        last = len(text) - self.length - self.ahead + 1
        first = np.arange(0, last, self.length)
        for some in np.array_split(first, -(-len(first) // TEST_BATCH_SIZE)):
            yield self._rows(text, some)

    def _rows(self, text, first):
        places = first[:, None] + np.arange(self.length)
        return {"sequences": text[places]}, text[places + self.ahead]
