"""Words of a symmetric group: their letters are permutations.

What is asked at each letter is the product of all up to there. No letter may be
left out, and no two swapped: the products of three or more objects do not
commute.
"""

import math
from functools import cache
from itertools import permutations

import numpy as np
from recipes.tasks import DrawnTask

# Of the letters of a word that a model is tested on.
LENGTHS = (32, 64, 128, 256, 512)
SHORTEST = 4


class GroupWords(DrawnTask):
    """Random words, and the product up to each letter.

    A training batch has words of 4, 8, 16, ... or `steps` letters, and always
    as many letters: from long words alone, after 2,000 batches, DeltaNet with
    two reflections has found the sign of permutations of three objects and no
    more.

    Args:
        degree: integer, the number of objects that are permuted.
        steps: integer, the letters of the longest words in training.
        test_size: integer, the number of test words.
        loss: what is minimised.
    """

    dtypes = {"sequences": "int32"}

    def __init__(self, degree, steps, test_size, loss):
        super().__init__(
            lambda count, generator: words(count, steps, degree, generator),
            # Of any length, so that longer words can be tested.
            shape=(None,),
            test_size=test_size,
            loss=loss,
            metrics=("accuracy",),
            num_classes=math.factorial(degree),
        )
        self.degree = degree
        self.steps = steps
        doublings = math.ceil(math.log2(steps / SHORTEST))
        shorter = (SHORTEST << power for power in range(doublings))
        self.lengths = *shorter, steps

    def batch(self, seed, number, batch_size):
        generator = np.random.default_rng([seed, number, 0])
        length = int(generator.choice(self.lengths))
        count = batch_size * self.steps // length
        letters, products = words(count, length, self.degree, generator)
        return {"sequences": letters}, products

    def of_length(self, steps):
        """The same task with words of another length."""
        return GroupWords(self.degree, steps, self.test_size, self.loss)


@cache
def multiplication_table(degree):
    """The number of the permutation that is one after another, (n, n).

    `table[after, before]` permutes by `before` first. The permutation 0 leaves
    all as it is.
    """
    elements = np.array(list(permutations(range(degree))))
    places = {tuple(element): i for i, element in enumerate(elements.tolist())}
    return np.array(
        [
            [places[tuple(after[before])] for before in elements]
            for after in elements
        ]
    )


def words(count, steps, degree, generator):
    """`(letters, products)`, integers (count, steps)."""
    table = multiplication_table(degree)
    letters = generator.integers(len(table), size=(count, steps))
    products = np.empty_like(letters)
    product = np.zeros(count, "int64")
    for step in range(steps):
        product = table[letters[:, step], product]
        products[:, step] = product
    return letters.astype("int32"), products.astype("int32")
