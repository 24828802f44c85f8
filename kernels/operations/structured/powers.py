"""Powers of the transitions of state-space systems, and their responses.

All functions work with Abar - I and never form Abar: small timescales put Abar
close to the identity, where float32 would retain few digits of the difference.
"""

import math

from keras import ops

from keras_linrec.kernels.full_precision import einsum
from keras_linrec.kernels.full_precision import matmul

# If the number of steps is known at run time only: the steps in a chunk, and
# the number of times chunks may double, which reaches 4 million steps.
_CHUNK = 64
_CHUNK_DOUBLINGS = 16


class TransitionPowers:
    """The powers of Abar for sequences of a given length.

    Step jS + i of a sequence is reached by i single steps and j steps of a
    whole chunk of S, so that sqrt(time) of each suffice.

    Args:
        transition_minus_identity: tensor (features, N, N), Abar - I.
        time: the number of steps; an integer, or a tensor if it is known at
            run time only.
        size: integer, S, a power of 2. Defaults to `None`: about sqrt(time),
            or 64 if `time` is a tensor.

    Attributes:
        intra_chunk: list of tensors, Abar^(2^k) - I for 2^k < S.
        inter_chunk: list of tensors, Abar^(S 2^k) - I.
        size: integer, S.
        count: the number of chunks.
    """

    def __init__(self, transition_minus_identity, time, size=None):
        self.transition_minus_identity = transition_minus_identity
        self.time = time
        static = isinstance(time, int)
        if size is None and static:
            size = 2 ** math.ceil(math.log2(time) / 2)
        self.size = size or _CHUNK
        self.count = -(-time // self.size)
        self.intra_chunk = [transition_minus_identity]
        while 2 ** len(self.intra_chunk) <= self.size:
            self.intra_chunk.append(doubled(self.intra_chunk[-1]))
        self.inter_chunk = [self.intra_chunk.pop()]
        doublings = self.count.bit_length() if static else _CHUNK_DOUBLINGS
        for power in range(1, doublings):
            last = self.inter_chunk[-1]
            if not static:
                last = self._unless_too_long(2**power, last)
            self.inter_chunk.append(doubled(last))

    def _unless_too_long(self, chunks, delta):
        """`delta`, or zero if the sequences have fewer chunks than this.

        Powers that are not needed could overflow in an unstable system, and
        infinity times their zero gradients is NaN.
        """
        return ops.where(chunks <= self.count, delta, 0.0)

    def columns(self, vectors):
        """Abar^i v for i < S, (..., features, N, S)."""
        columns = vectors[..., None]
        for delta in self.intra_chunk:
            columns = ops.concatenate(
                [columns, advanced(delta, columns, "s")], axis=-1
            )
        return columns

    def rows(self, vectors):
        """c Abar^(jS) for j < count, (count, features, M, N)."""
        return rows_of_powers(self.inter_chunk, vectors, self.count)

    def fold(self, states):
        """sum_j Abar^(S (count - j)) x_j over the count + 1 states x_j.

        Args:
            states: tensor (count + 1, batch, features, N).
        """
        for delta in self.inter_chunk:
            odd = ops.zeros_like(states[: ops.shape(states)[0] % 2])
            states = ops.concatenate([odd, states], axis=0)
            states = advanced(delta, states[0::2]) + states[1::2]
        return states[0]

    def apply(self, states, exponents):
        """Abar^e x for exponents e (batch,) below S."""
        for bit, delta in enumerate(self.intra_chunk):
            applies = (exponents // 2**bit) % 2 == 1
            states = ops.where(
                applies[:, None, None], advanced(delta, states), states
            )
        return states


def rows_of_powers(deltas, vectors, count):
    """c Abar^(jS) for j < count, (count, features, M, N).

    Args:
        deltas: list of tensors, Abar^(S 2^k) - I.
        vectors: tensor (features, M, N), c.
        count: integer or tensor, the number of powers.
    """
    rows = vectors[None]
    for delta in deltas:
        more = rows[: count - ops.shape(rows)[0]]
        more = more + einsum("jfmn,fnk->jfmk", more, delta)
        rows = ops.concatenate([rows, more], axis=0)
    return rows


def doubled(delta):
    """Abar^(2k) - I from Abar^k - I."""
    return 2.0 * delta + matmul(delta, delta)


def advanced(delta, states, columns=""):
    """Abar x for states (..., features, N), or (..., features, N, columns)."""
    # Not `matmul`: with operands of ranks 4 and 3, TensorFlow 2.20 and 2.21
    # write beyond their buffer (tensorflow#117700).
    return states + einsum(f"fnm,...fm{columns}->...fn{columns}", delta, states)


def impulse_by_powers(powers, input_vector, output_matrix):
    """K_k = C Abar^k Bbar, the output k steps after a unit impulse.

    Args:
        powers: `TransitionPowers` of Abar.
        input_vector: tensor (features, N), Bbar.
        output_matrix: tensor (features, channels, N), C.

    Returns:
        A tensor (features, channels, time).
    """
    rows = powers.rows(output_matrix)
    response = einsum("jfmn,fni->fmji", rows, powers.columns(input_vector))
    shape = ops.shape(output_matrix)[:2]
    response = ops.reshape(response, (*shape, powers.count * powers.size))
    return response[:, :, : powers.time]
