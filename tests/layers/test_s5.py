"""S5: how it starts, and its two directions."""

import numpy as np
import pytest
from support.units import UNITS
from support.units import array
from support.units import close
from support.units import randomise
from support.units import sequences
from support.units import weights_of

from keras_linrec.layers import S5


def built(features=3, **arguments):
    layer = S5(4, **arguments)
    layer.build((None, None, features))
    return layer


def normal_hippo(size):
    """HiPPO-N of the paper's equations 8 and 13, with 1-based indices."""
    n = np.arange(1.0, size + 1)
    root = np.sqrt(2 * n - 1)
    upper = np.triu(np.outer(root, root), 1) / 2
    return upper - upper.T - np.eye(size) / 2


@pytest.mark.parametrize("blocks", [1, 3])
def test_eigenvalues_start_as_those_of_blocks_of_normal_hippo(blocks):
    weights = weights_of(built(state_size=12, num_blocks=blocks))
    assert np.allclose(np.exp(weights["transition_log_real"]), 0.5)
    exact = np.linalg.eigvals(normal_hippo(24 // blocks))
    exact = np.sort(exact.imag)[12 // blocks :]
    got = weights["transition_imag"].reshape(blocks, -1)
    assert np.allclose(got, exact, rtol=1e-5)
    # What the formulas of the authors' code give for 8 real states.
    if blocks == 3:
        known = [0.42748871, 1.95779415, 5.35420852, 19.85741037]
        assert np.allclose(got, known, rtol=1e-6)


def test_the_layer_starts_as_the_real_system_that_it_was_diagonalised_from():
    """y = C0 x, x' = A x + B0 u with A of size 2 state_size."""
    layer = built(state_size=4, num_blocks=2, dt_min=0.1, dt_max=0.1001)
    weights = weights_of(layer)
    matrix = np.kron(np.eye(2), normal_hippo(4))
    _, vectors = np.linalg.eigh(-1j * (normal_hippo(4) + np.eye(4) / 2))
    vectors = np.kron(np.eye(2), vectors[:, 2:])
    b = (weights["input_real"] + 1j * weights["input_imag"]).T
    c = (weights["output_real"] + 1j * weights["output_imag"]).T
    # An eigenvector is known but for a phase, which both share.
    eigenvalues = -0.5 + 1j * weights["transition_imag"]
    for power in range(4):
        got = 2 * (c * eigenvalues**power @ b).real
        b0 = 2 * (vectors @ b).real
        c0 = 2 * (c @ vectors.conj().T).real
        expected = c0 @ np.linalg.matrix_power(matrix, power) @ b0
        assert np.allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_kernels_start_as_lecun_normal_numbers_times_eigenvectors():
    weights = weights_of(built(features=50, state_size=200))
    # Half the real states' variance is in each of a conjugate pair.
    for name, fan_in in (("input", 50), ("output", 400)):
        for part in ("real", "imag"):
            numbers = weights[f"{name}_{part}"]
            assert abs(numbers.var() * 2 * fan_in - 1) < 0.2


def test_both_directions_take_the_lengths_of_their_steps():
    layer = randomise(built(bidirectional=True, state_size=6))
    inputs, lengths = sequences(6), np.full((2, 6), 2.0)
    close(layer(inputs, time_deltas=lengths), layer(inputs, step_rescale=2.0))


def test_clipped_eigenvalues_stay_below_the_authors_limit():
    layer = built(eigenvalues="clipped", state_size=4)
    layer.transition_real.assign([3.0, 0.0, -1e-5, -2.0])
    timescale = np.exp(array(layer.log_timescale).astype("float64"))
    modulus = np.hypot(*map(array, layer.diagonal_system().decay))
    expected = np.exp(timescale * [-1e-4, -1e-4, -1e-4, -2.0])
    assert np.allclose(modulus, expected, atol=1e-6)
    free = built(eigenvalues="free", state_size=4)
    free.transition_real.assign([3.0, 0.0, -1e-5, -2.0])
    assert np.hypot(*map(array, free.diagonal_system().decay)).max() > 1


def test_both_ways_neither_streams_nor_returns_the_last_output():
    layer = UNITS["s5"](bidirectional=True)
    with pytest.raises(ValueError, match="bidirectional=True"):
        layer._require_streaming()
    with pytest.raises(ValueError, match="return_sequences=False"):
        layer.return_sequences = False
