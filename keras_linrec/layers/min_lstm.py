"""MinLSTM: an LSTM whose gates read the input alone."""

import keras

from keras_linrec import types
from keras_linrec.layers.base.minimal_layer import Candidate
from keras_linrec.layers.base.minimal_layer import MinimalLayer
from keras_linrec.layers.base.set_later import for_bases


@keras.saving.register_keras_serializable("keras_linrec")
class MinLSTM(MinimalLayer):
    """Minimal long short-term memory - Feng et al. 2024.

    The layer is nonlinear in its inputs, by its gates, and linear in its
    state, so that all steps are computed in parallel where the kernel is
    parallel:

        f_t = sigmoid(W_f u_t + b_f)
        i_t = sigmoid(W_i u_t + b_i)
        f'_t = f_t / (f_t + i_t)
        i'_t = i_t / (f_t + i_t)
        h_t = f'_t h_{t-1} + i'_t g(W_h u_t + b_h)

    There is no cell state beside h. f' and i' add up to 1: i' is computed as
    sigmoid(log i - log f), which stays exact where both gates are closed. g is
    the identity, or with `candidate="positive"` the function of the paper's
    form in logarithms, as in `MinGRU`.

    | weight | shape | meaning |
    |---|---|---|
    | `forget_kernel`, `forget_bias` | (features, units), (units,) | W_f^T, \
b_f |
    | `input_kernel`, `input_bias` | (features, units), (units,) | W_i^T, b_i |
    | `kernel`, `bias` | (features, units), (units,) | W_h^T, b_h |

    Args:
        units: integer, the number of output features and of states. Defaults
            to `None`, as many as the input has.
        candidate: `"linear"` or `"positive"`, what g is. Defaults to
            `"linear"`.
        use_bias: whether the gates and the candidate have biases. Defaults
            to `True`.
        kernel_initializer: for the kernels. Defaults to `"glorot_uniform"`.
        bias_initializer: for the biases. Defaults to `"zeros"`.
        kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: for the kernels and the biases. Default to `None`.
        dropout: float in [0, 1), the share of input features to drop during
            training, the same ones at every time step. Defaults to 0.
        seed: integer, the seed of the dropout. Defaults to `None`.
        return_sequences: whether to return the outputs of all time steps or
            only the last. Defaults to `True`.
        return_state: whether to return the final state too. Defaults to
            `False`.
        go_backwards: whether to read the sequence from its end; the outputs
            come in the order of reading. Defaults to `False`.
        stateful: whether each batch starts from the final state of the last
            one. Needs a fixed batch size. Defaults to `False`.
        zero_output_for_mask: whether masked steps give zeros instead of
            repeating the previous output. Defaults to `False`.
        **kwargs: `name`, `dtype`, `trainable`, `activity_regularizer`.

    Call arguments:
        initial_state: list of one tensor (batch, units), h before the first
            step. Defaults to `None`: zeros, or the state of the previous
            batch if `stateful`.
        See `call` for `mask`, `reset_mask` and what else every unit takes.

    Output shape:
        (batch, time, units), or (batch, units) with `return_sequences=False`;
        with `return_state`, a tuple of that and the final state (batch,
        units), float32 whatever the policy.

    Raises:
        ValueError: for an argument out of its range, at construction.

    Reference:
        [Were RNNs All We Needed?](https://arxiv.org/abs/2410.01201), section
        3.2, and the appendix on log-space for `"positive"`.

    Example:

    >>> import numpy as np
    >>> import keras_linrec
    >>> layer = keras_linrec.layers.MinLSTM(8)
    >>> sequences = np.random.rand(2, 1000, 3).astype("float32")
    >>> tuple(layer(sequences).shape)
    (2, 1000, 8)

    The same, one step at a time:

    >>> states = layer.get_initial_state(batch_size=2)
    >>> output, states = layer.step(sequences[:, 0], states)
    >>> tuple(output.shape)
    (2, 8)
    """

    _gate_prefixes = ("forget_", "input_")

    def __init__(
        self,
        units: int | None = None,
        candidate: Candidate = "linear",
        use_bias: bool = True,
        kernel_initializer: types.Identifier = "glorot_uniform",
        bias_initializer: types.Identifier = "zeros",
        kernel_regularizer: types.Identifier = None,
        bias_regularizer: types.Identifier = None,
        kernel_constraint: types.Identifier = None,
        bias_constraint: types.Identifier = None,
        dropout: float = 0.0,
        seed: types.Seed = None,
        return_sequences: bool = True,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        zero_output_for_mask: bool = False,
        **kwargs: types.Unpack[types.LayerArguments],
    ):
        super().__init__(**for_bases(MinLSTM, locals()))
