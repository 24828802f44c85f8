"""Moves of the unmasked steps of each row to its front, and back."""

import numpy as np


def matrices(mask, to_places, with_masked):
    """The moves as matrices (batch, time, time).

    Each step comes from the front of its row, where the unmasked steps stand in
    their order. With `with_masked` a masked step comes from where the unmasked
    one before it does, if there is one. The move to the front is the transpose.
    """
    batch, time = mask.shape
    moves = np.zeros((batch, time, time))
    for row in range(batch):
        place = -1
        for step in range(time):
            place += mask[row, step]
            if mask[row, step] or with_masked and place >= 0:
                moves[row, step, place] = 1.0
    return moves if to_places else np.swapaxes(moves, 1, 2)
