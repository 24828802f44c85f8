"""S4D as its paper writes it: Gu et al. 2022, in float64.

x'(t) = A x(t) + B u(t), y(t) = C x(t) + D u(t) for each feature, with a
diagonal A = -exp(a) + i b and B = 1 (sections 3.2 to 3.4), of conjugate pairs
one each (section 3.3): y = 2 Re(C x) + D u. Zero-order hold (section 2,
equation 3): A_bar = exp(dt A), B_bar = (dt A)^-1 (exp(dt A) - I) dt B.
"""

import numpy as np
from scipy.special import erf


def gelu(x):
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def s4d(
    weights,
    inputs,
    real=None,
    imag=None,
    activation=gelu,
    time_deltas=None,
    step_rescale=1.0,
):
    """The layer's outputs, and the two parts of the final state.

    `time_deltas` (batch, time) are the lengths of the steps in multiples of
    dt.
    """
    batch, time, features = inputs.shape
    a = -np.exp(weights["transition_log_real"])
    a = a + 1j * weights["transition_imag"]
    c = weights["output_real"] + 1j * weights["output_imag"]
    timescale = step_rescale * np.exp(weights["log_timescale"])
    if time_deltas is None:
        time_deltas = np.ones((batch, time))
    if real is None:
        real = imag = np.zeros((batch, features, a.shape[1]))
    states = real + 1j * imag
    outputs = np.zeros((batch, time, features, c.shape[1]))
    for row, step, feature in np.ndindex(batch, time, features):
        dt = time_deltas[row, step] * timescale[feature]
        # np.expm1 of a complex number keeps its digits.
        b_bar = np.expm1(dt * a[feature]) / a[feature]
        u = inputs[row, step, feature]
        x = np.exp(dt * a[feature]) * states[row, feature] + b_bar * u
        states[row, feature] = x
        outputs[row, step, feature] = (
            2 * (c[feature] @ x).real + weights["feedthrough"][feature] * u
        )
    outputs = activation(outputs).reshape(batch, time, -1) @ weights["kernel"]
    return outputs + weights.get("bias", 0.0), states.real, states.imag
