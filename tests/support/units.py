"""The sequence units under test, a record each."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from functools import partial

import keras
import numpy as np
from definitions import causal_convolution
from definitions import delta_net
from definitions import ldstack
from definitions import linoss
from definitions import lipschitz_rnn
from definitions import lru
from definitions import lssl
from definitions import mamba2
from definitions import minimal
from definitions import orthogonal_rnn
from definitions import rglru
from definitions import rotrnn
from definitions import s4d
from definitions import s5
from support.autodiff import compiled
from support.autodiff import to_numpy

from keras_linrec.layers import LRU
from keras_linrec.layers import LSSL
from keras_linrec.layers import RGLRU
from keras_linrec.layers import S4D
from keras_linrec.layers import S5
from keras_linrec.layers import AntisymmetricRNN
from keras_linrec.layers import CausalConvolution
from keras_linrec.layers import DeltaNet
from keras_linrec.layers import LDStack
from keras_linrec.layers import LinearDynamicalSystem
from keras_linrec.layers import LinOSS
from keras_linrec.layers import LipschitzRNN
from keras_linrec.layers import Mamba2
from keras_linrec.layers import MinGRU
from keras_linrec.layers import MinLSTM
from keras_linrec.layers import OrthogonalRNN
from keras_linrec.layers import RotRNN

# The activations that forms name, for the definitions.
ACTIVATIONS = {
    "elu": ldstack.elu,
    "linear": np.asarray,
    "modrelu": orthogonal_rnn.modrelu,
    "oplu": orthogonal_rnn.oplu,
    "relu": lambda a: np.maximum(a, 0),
    "tanh": np.tanh,
}


@dataclass(frozen=True)
class Unit:
    """What the tests know of a unit. Called, it makes a small layer.

    Attributes:
        layer: the class.
        arguments: of a small layer, which returns sequences.
        definition: the paper's equations in float64: a function of the weights
            by name, inputs and initial states, which returns outputs and
            final states. It takes by name those of the layer's arguments that
            do not show in the weights.
        forms: further arguments, one dictionary for each path through the
            layer. The selection takes the first two on backends that compile.
        saved: arguments of the layers that the tests of files save.
        kernels: the names of the weights that `kernel_regularizer` and
            `kernel_constraint` apply to.
        tolerance: of outputs, relative to the definition's. It grows by 2e-7 a
            step.
        long_tolerance: the same after 100,000 steps.
        largest: upper limits of arguments where the definition is
            differentiated by differences, one number at a time.
        takes_time_deltas: whether a call takes the lengths of its steps.
        knows_its_states: whether a layer knows the shapes of its states before
            it is built.
        smooth: arguments without corners, which differences over many steps
            would step over.
        forgetful: arguments with which states stay bounded while a stateful
            layer trains on and on.
    """

    layer: type
    arguments: dict
    definition: Callable
    forms: tuple = ({},)
    saved: tuple = ({},)
    kernels: tuple = ("input_kernel", "output_kernel")
    tolerance: float = 5e-5
    long_tolerance: float = 1e-3
    largest: dict = field(default_factory=dict)
    takes_time_deltas: bool = False
    knows_its_states: bool = True
    smooth: dict = field(default_factory=dict)
    forgetful: dict = field(default_factory=dict)

    def __call__(self, units=4, **arguments):
        return self.layer(units, **{**self.arguments, **arguments})

    @property
    def title(self):
        """The unit's name in the table of capabilities."""
        return f"`{self.layer.__name__}`"

    def defined(self, form, weights, inputs, *states, **options):
        """What the definition gives for a layer of this form."""
        taken = inspect.signature(self.definition).parameters
        arguments = {
            name: ACTIVATIONS[value] if name == "activation" else value
            for name, value in {**self.arguments, **form}.items()
            if name in taken
        }
        return self.definition(
            weights, inputs, *states, **{**arguments, **options}
        )

    def limited(self, form):
        """A form that is small enough for differences of every number."""
        given = {"units": 4, **self.arguments, **form}
        limited = {
            name: min(given[name], most) for name, most in self.largest.items()
        }
        return {**form, **limited}


UNITS = {
    "lssl": Unit(
        LSSL,
        {"state_size": 6, "channels": 2, "dt_min": 0.01},
        lssl.lssl,
        forms=(
            {},
            {"state_size": 64, "dt_max": 0.5},
            {"measure": "legt"},
            {"measure": "lagt", "channels": 1},
            {"state_size": 1, "channels": 3, "use_bias": False},
            {"alpha": 1.0},
            {"alpha": 0.0, "dt_min": 0.001, "dt_max": 0.01},
            {"stable_transition": True},
        ),
        saved=(
            {"stable_transition": True},
            {
                "measure": "legt",
                "trainable_transition": False,
                "trainable_timescale": False,
            },
        ),
        kernels=("kernel",),
        largest={"state_size": 6},
        takes_time_deltas=True,
        # It has one for each input feature.
        knows_its_states=False,
    ),
    "rotrnn": Unit(
        RotRNN,
        {"state_size": 10, "num_heads": 2},
        rotrnn.rotrnn,
        forms=(
            {},
            {"bidirectional": True},
            {"units": 3, "activation": "tanh"},
            {"state_size": 8, "num_heads": 4},
            {"state_size": 24, "num_heads": 2},
            {"state_size": 33, "num_heads": 1, "gamma_max": 0.9999},
        ),
        saved=({"dropout": 0.1}, {"units": None, "bidirectional": True}),
        tolerance=2e-5,
        largest={"state_size": 6, "num_heads": 2},
    ),
    "lru": Unit(
        LRU,
        {"state_size": 6},
        lru.lru,
        forms=(
            {},
            {"units": 3, "activation": "tanh", "state_size": 9},
            {"state_size": 33, "r_min": 0.1, "r_max": 0.9999},
        ),
        kernels=("input_real", "input_imag", "output_real", "output_imag"),
        tolerance=2e-5,
        largest={"state_size": 9},
    ),
    "s5": Unit(
        S5,
        {"state_size": 6, "dt_min": 0.01},
        s5.s5,
        forms=(
            {},
            {
                "bidirectional": True,
                "num_blocks": 2,
                "discretization": "bilinear",
            },
            {"units": 3, "activation": "tanh", "eigenvalues": "clipped"},
            {"state_size": 33, "num_blocks": 11, "dt_max": 2.0},
            {"discretization": "bilinear", "eigenvalues": "free"},
        ),
        saved=(
            {"units": None, "bidirectional": True},
            {"num_blocks": 3, "eigenvalues": "clipped"},
        ),
        kernels=("input_real", "input_imag", "output_real", "output_imag"),
        tolerance=2e-5,
        largest={"state_size": 11},
        takes_time_deltas=True,
    ),
    "s4d": Unit(
        S4D,
        {"state_size": 6, "channels": 2, "dt_min": 0.01},
        s4d.s4d,
        forms=(
            {},
            {"state_size": 64, "initial_eigenvalues": "inv", "dt_max": 0.5},
            {"initial_eigenvalues": "legs", "channels": 1, "units": 3},
            {"state_size": 2, "channels": 3, "use_bias": False},
        ),
        saved=(
            {"initial_eigenvalues": "legs"},
            {"trainable_transition": False, "trainable_timescale": False},
        ),
        kernels=("kernel",),
        largest={"state_size": 6},
        takes_time_deltas=True,
        # It has those of each input feature.
        knows_its_states=False,
    ),
    "linoss": Unit(
        LinOSS,
        {"state_size": 6},
        linoss.linoss,
        forms=(
            {},
            {"damping": True, "units": 3, "activation": "tanh"},
            {"discretization": "im", "dt_max": 2.0},
            {"state_size": 33, "dt_min": 0.01},
        ),
        saved=({"discretization": "im"}, {"damping": True}),
        kernels=("input_real", "input_imag", "output_real", "output_imag"),
        largest={"state_size": 6},
        takes_time_deltas=True,
        # Nothing decays in it: float32's error of an angle adds up, to 2e-3
        # in the native scan and to 1e-2 in the portable one of JAX.
        long_tolerance=2e-2,
        # And so do inputs.
        forgetful={"damping": True, "r_max": 0.95},
    ),
    "linear_dynamical_system": Unit(
        LinearDynamicalSystem,
        {"state_size": 9, "eigenvalues": "unit"},
        ldstack.linear_dynamical_system,
        forms=(
            {},
            {"eigenvalues": "hinge", "mimo": "general", "use_bias": False},
            {"eigenvalues": "standard", "state_size": 3, "activation": "tanh"},
            {"mimo": "average", "state_size": 11},
        ),
        saved=({"mimo": "average"},),
        tolerance=2e-5,
        # Where nothing decays, float32's error of an angle adds up.
        long_tolerance=5e-3,
        # And so do inputs on the unit circle, epoch after epoch.
        forgetful={
            "eigenvalues": "standard",
            "state_size": 6,
            "initial_eigenvalues": [0.3 + 0.4j, 0.3 - 0.4j],
        },
    ),
    "ldstack": Unit(
        LDStack,
        # Logarithms of magnitudes stay negative when weights are moved.
        {"state_size": 6, "eigenvalues": "log_polar"},
        ldstack.ldstack,
        forms=(
            {},
            {
                "eigenvalues": "hinge",
                "mimo": "general",
                "state_size": 7,
                "slope": 0.5,
                "activation": "tanh",
                "use_state_bias": True,
            },
            {"basis": "companion", "state_size": 9, "depth": 3},
            {"eigenvalues": "standard", "state_size": 33, "depth": 1},
            {
                "eigenvalues": "log_polar_hinge",
                "mimo": "average",
                "projections": 2,
                "activation": "tanh",
                "depth": 3,
            },
            {"eigenvalues": "hinge", "basis": "companion", "mimo": "general"},
        ),
        saved=({"mimo": "general", "use_state_bias": True},),
        largest={"state_size": 9},
        forgetful={"initial_eigenvalues": [0.3 + 0.4j, 0.3 - 0.4j]},
    ),
    # The nonlinear units return the last output by default, as Keras' own do.
    "orthogonal_rnn": Unit(
        OrthogonalRNN,
        {"reflections": 3, "return_sequences": True},
        orthogonal_rnn.orthogonal_rnn,
        forms=(
            {},
            {"units": 10, "activation": "modrelu", "field": "complex"},
            {"units": 5, "reflections": 5, "use_bias": False},
            {"units": 20, "reflections": 5},
            {"units": 34, "activation": "oplu"},
            {"units": 6, "activation": "modrelu"},
            {"units": 6, "activation": "tanh", "field": "complex"},
        ),
        saved=({"reflections": 4, "activation": "oplu"},),
        kernels=("kernel",),
        largest={"units": 20},
        smooth={"activation": "tanh"},
        # What a ReLU adds to a state of constant norm adds up.
        forgetful={"activation": "tanh"},
    ),
    "lipschitz_rnn": Unit(
        LipschitzRNN,
        {"step_size": 0.3, "gamma": 0.5, "return_sequences": True},
        lipschitz_rnn.lipschitz_rnn,
        forms=(
            {},
            {"gated": True, "gamma": (0.1, 0.0), "solver": "rk2"},
            {"units": 33, "solver": "rk2", "beta": (0.6, 0.9)},
            {"solver": "rk4", "trainable_step_size": True},
            {"alpha": 0.0, "activation": "relu"},
            {"stable_transition": True, "trainable_step_size": True},
            {"stable_transition": True, "solver": "rk2", "alpha": 0.7},
        ),
        saved=({"gated": True, "trainable_step_size": True},),
        kernels=("kernel",),
        largest={"units": 5},
        takes_time_deltas=True,
    ),
    "antisymmetric_rnn": Unit(
        AntisymmetricRNN,
        {"step_size": 0.3, "gamma": 0.5, "return_sequences": True},
        partial(lipschitz_rnn.lipschitz_rnn, alpha=0.0, beta=1.0),
        forms=({}, {"solver": "rk4", "gated": True}),
        saved=({"solver": "rk2"},),
        kernels=("kernel",),
        takes_time_deltas=True,
    ),
    "min_gru": Unit(
        MinGRU,
        {},
        minimal.min_gru,
        forms=(
            {},
            {"candidate": "positive", "bias_initializer": "random_normal"},
            {"units": 33, "use_bias": False},
        ),
        kernels=("gate_kernel", "kernel"),
        tolerance=2e-5,
        largest={"units": 9},
    ),
    "min_lstm": Unit(
        MinLSTM,
        {},
        minimal.min_lstm,
        forms=(
            {},
            {"candidate": "positive", "bias_initializer": "random_normal"},
            {"units": 33, "use_bias": False},
        ),
        kernels=("forget_kernel", "input_kernel", "kernel"),
        tolerance=2e-5,
        largest={"units": 9},
    ),
    "rglru": Unit(
        RGLRU,
        {},
        rglru.rglru,
        forms=(
            {},
            {"num_heads": 2, "bias_initializer": "random_normal"},
            {"units": 3, "use_bias": False},
            {"units": 33, "num_heads": 3, "r_min": 0.1, "r_max": 0.9999},
        ),
        kernels=("projection_kernel", "decay_kernel", "gate_kernel"),
        tolerance=2e-5,
        largest={"units": 6},
        # Otherwise what one epoch leaves in the states outlasts the next.
        forgetful={"r_min": 0.1, "r_max": 0.5},
    ),
    "delta_net": Unit(
        DeltaNet,
        # With the kernels and steps of the defaults, the slope of a decay is
        # lost in the rounding of the definition's differences.
        {
            "num_heads": 2,
            "key_dim": 3,
            "value_dim": 4,
            "dt_min": 0.05,
            "kernel_initializer": "he_normal",
        },
        delta_net.delta_net,
        forms=(
            {},
            {
                "reflections": 2,
                "negative_eigenvalues": True,
                "key_heads": 1,
                "use_bias": True,
                "bias_initializer": "random_normal",
            },
            {"gated": False, "output_gate": False, "units": 3},
            {"num_heads": 3, "key_dim": 17, "value_dim": 33, "kernel_size": 2},
            {"reflections": 3, "num_heads": 1, "negative_eigenvalues": True},
        ),
        saved=(
            {},
            {"gated": False, "output_gate": False, "reflections": 2},
        ),
        kernels=(
            "query_kernel",
            "key_kernel",
            "value_kernel",
            "write_kernel",
            "timescale_kernel",
            "gate_kernel",
            "convolution_kernel",
            "output_kernel",
        ),
        largest={"num_heads": 2, "key_dim": 3, "value_dim": 4},
    ),
    "mamba2": Unit(
        Mamba2,
        # As above.
        {
            "num_heads": 2,
            "state_size": 5,
            "dt_min": 0.05,
            "kernel_initializer": "he_normal",
        },
        mamba2.mamba2,
        forms=(
            {},
            {"num_groups": 2, "expand": 4, "units": 3},
            {"num_heads": 3, "state_size": 33, "expand": 5},
            {"num_heads": 1, "use_bias": False, "kernel_size": 2},
        ),
        saved=({}, {"num_groups": 2, "use_bias": False}),
        kernels=("input_kernel", "convolution_kernel", "output_kernel"),
        largest={"state_size": 5},
        # The number of its channels follows from that of the features.
        knows_its_states=False,
    ),
    "causal_convolution": Unit(
        CausalConvolution,
        {},
        causal_convolution.causal_convolution,
        forms=(
            {},
            {"kernel_size": 2, "activation": "tanh"},
            {"units": 3, "kernel_size": 7, "use_bias": False},
        ),
        saved=({"kernel_size": 3, "activation": "tanh"},),
        kernels=("projection_kernel", "kernel"),
        tolerance=2e-5,
    ),
}
# In the selection it stands for all, on backends that compile.
REPRESENTATIVE = ("rotrnn",)


def saved_layers():
    """The layers that the tests of files save, one after another."""
    return [unit(**form) for unit in UNITS.values() for form in unit.saved]


def weights_of(layer):
    """The weights as float64 arrays, by name."""
    names = [weight.name for weight in layer.weights]
    return dict(zip(names, to_numpy(layer.weights)))


def randomise(layer, seed=0):
    """Move every weight away from its initial value."""
    generator = np.random.default_rng(seed)
    for weight in layer.weights:
        value = keras.ops.convert_to_numpy(weight)
        noise = generator.standard_normal(value.shape)
        weight.assign(value * (1 + 0.1 * noise) + 0.01 * noise * (value != 0))
    return layer


def time_deltas_of(time):
    """Lengths of steps between 0 and 2, (2, time)."""
    generator = np.random.default_rng(5)
    return generator.uniform(0, 2, (2, time)).astype("float32")


def sequences(time, batch=2, features=3, seed=0):
    generator = np.random.default_rng([seed, time])
    return generator.standard_normal((batch, time, features)).astype("float32")


def state_shapes(layer):
    """Those of a row's states."""
    if isinstance(layer, keras.layers.RNN):
        return [(size,) for size in np.atleast_1d(layer.state_size).tolist()]
    return layer.state_shapes


def initial_states(layer, batch=2, seed=1):
    generator = np.random.default_rng(seed)
    return [
        generator.standard_normal((batch, *shape)).astype("float32")
        for shape in state_shapes(layer)
    ]


def in_steps(layer, inputs):
    """The outputs of single steps, and the final states."""
    states, outputs = layer.get_initial_state(len(inputs)), []
    for step in range(inputs.shape[1]):
        output, states = layer.step(inputs[:, step], states)
        outputs.append(array(output))
    return np.stack(outputs, axis=1), states


def array(tensor):
    return keras.ops.convert_to_numpy(tensor)


def close(got, expected, tolerance=2e-5):
    np.testing.assert_allclose(
        array(got), array(expected), rtol=0, atol=tolerance
    )


def outputs_of(layer, inputs):
    """What a layer makes of sequences, in one program on JAX."""
    if not layer.built:
        layer.build(inputs.shape)
    return array(compiled(lambda given: layer(given[0]))([inputs]))
