"""Modal coordinates of real systems, run as complex channels.

Each pair of eigenvalues has two real coordinates (u, v), adjacent in a vector
of modal coordinates; an unpaired eigenvalue has one, the last. A step
multiplies (u, v) by

    [[a, -b], [b, a]]   for a pair a + ib, a - ib: u + iv is a complex number
    [[a, b], [b, a]]    for real a + b, a - b:     u + v and u - v are separate

which is continuous where a pair changes from one kind to the other. An input
that enters every pair as (1, 0) reaches all states.
"""

from typing import NamedTuple

from keras import ops

from keras_linrec.complex_pairs import multiply
from keras_linrec.complex_pairs import powers
from keras_linrec.ops.canonical_form import canonical_input
from keras_linrec.ops.rotation import complex_from_pairs
from keras_linrec.ops.rotation import pairs_from_complex


class ModalForm(NamedTuple):
    """The map between systems' modal coordinates and complex channels.

    A pair is one channel. If pairs may be two real numbers, each has a second
    channel, which stays unused while the pair is conjugate.

    Attributes:
        spectrum: a `Spectrum`; see `keras_linrec.ops.algebra.eigenvalues`.
        size: integer, the number of states of a system.
    """

    spectrum: object
    size: int

    @property
    def systems(self):
        return self.spectrum.real.shape[0]

    @property
    def pairs(self):
        return self.size // 2

    @property
    def channels(self):
        """The number of channels of one system."""
        second = 0 if self.spectrum.partner is None else self.pairs
        return self.size - self.pairs + second

    @property
    def decay(self):
        """The decays of the channels of all systems, a pair of tensors."""
        real, imag, partner = self.spectrum
        if partner is not None:
            real = ops.concatenate([real, partner], axis=1)
            imag = ops.concatenate([imag, ops.zeros_like(partner)], axis=1)
        return ops.reshape(real, (-1,)), ops.reshape(imag, (-1,))

    def into_channels(self, rows):
        """Modal coordinates (count, states) as a pair (count, channels)."""
        rows = ops.reshape(rows, (-1, self.systems, self.size))
        real, imag = complex_from_pairs(rows)
        if self.spectrum.partner is not None:
            is_split, pairs = self._is_split(), self.pairs
            u, v = real[..., :pairs], imag[..., :pairs]
            leftover = real[..., pairs:]
            real = [u + is_split * v, leftover, is_split * (u - v)]
            imag = [
                (1.0 - is_split) * v,
                ops.zeros_like(leftover),
                ops.zeros_like(v),
            ]
            real = ops.concatenate(real, axis=-1)
            imag = ops.concatenate(imag, axis=-1)
        shape = (-1, self.systems * self.channels)
        return ops.reshape(real, shape), ops.reshape(imag, shape)

    def from_channels(self, numbers):
        """The inverse of `into_channels`."""
        shape = (-1, self.systems, self.channels)
        real, imag = (ops.reshape(part, shape) for part in numbers)
        if self.spectrum.partner is not None:
            is_split, pairs = self._is_split(), self.pairs
            first, second = real[..., :pairs], real[..., self.size - pairs :]
            half = 0.5 * is_split * (first - second)
            leftover = real[..., pairs : self.size - pairs]
            imag = (1.0 - is_split) * imag[..., :pairs] + half
            real = ops.concatenate([first - half, leftover], axis=-1)
            imag = ops.concatenate([imag, ops.zeros_like(leftover)], axis=-1)
        coordinates = pairs_from_complex((real, imag), self.size)
        return ops.reshape(coordinates, (-1, self.systems * self.size))

    def read_out(self, kernel):
        """Convert a kernel (states, units) from modal coordinates to channels.

        Returns:
            A pair (channels, units). The real part of the channels' product
            with it is the product of the coordinates with `kernel`.
        """
        real, imag = self.into_channels(ops.transpose(kernel))
        if self.spectrum.partner is not None:
            # u and v are half the sum and half the difference of two channels.
            half = 1.0 - 0.5 * self._is_split()
            ones = ops.ones_like(self.spectrum.real[:, self.pairs :])
            scale = ops.concatenate([half, ones, half], axis=-1)
            real = real * ops.reshape(scale, (-1,))
        return ops.transpose(real), -ops.transpose(imag)

    def _is_split(self):
        """1 for pairs of real numbers, 0 for conjugate pairs."""
        imag = self.spectrum.imag[:, : self.pairs]
        return ops.where(imag == 0.0, ops.ones_like(imag), 0.0)

    def companion_basis(self):
        """The matrix S from modal coordinates m to companion states S m.

        The companion form is the transpose form of equation (2), with
        B = (0, ..., 0, 1); in modal coordinates, the input enters every pair
        as (1, 0). The columns of S are the eigenvectors (1, z, z^2, ...)
        times lemma 3's input 1 / prod (z - z_j), split into real and
        imaginary parts.

        Returns:
            A tensor (systems, size, size), S; not finite where two
            eigenvalues are equal.
        """
        first, second, leftover = self._eigenvalues()
        eigenvalues = tuple(
            ops.concatenate(parts, axis=1)
            for parts in zip(first, second, leftover)
        )
        columns = multiply(
            tuple(part[:, None] for part in canonical_input(eigenvalues)),
            powers(eigenvalues, self.size),
        )
        pairs = self.pairs
        real, imag = (
            (part[..., :pairs], part[..., pairs : 2 * pairs])
            for part in columns
        )
        u = real[0] + real[1]
        # i (x - conj(x)) is -2 Im x.
        v = imag[1] - imag[0]
        if self.spectrum.partner is not None:
            is_split = self._is_split()[:, None]
            v = v + is_split * (real[0] - real[1] - v)
        leftover = columns[0][..., 2 * pairs :]
        return pairs_from_complex(
            (
                ops.concatenate([u, leftover], axis=-1),
                ops.concatenate([v, ops.zeros_like(leftover)], axis=-1),
            ),
            self.size,
        )

    def _eigenvalues(self):
        """The first and second of all pairs, and the unpaired eigenvalues."""
        real, imag, partner = self.spectrum
        first = real[:, : self.pairs], imag[:, : self.pairs]
        second = first[0], -first[1]
        if partner is not None:
            second = ops.where(first[1] == 0.0, partner, first[0]), -first[1]
        return first, second, (real[:, self.pairs :], imag[:, self.pairs :])
