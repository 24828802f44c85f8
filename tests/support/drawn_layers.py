"""Layers with random valid arguments, from a random number generator.

Property tests and the soak draw their layers here. A new argument of a unit
belongs in the unit's function below, provided that the unit's definition takes
it or that it shows in the weights.
"""

from typing import NamedTuple

import keras
import numpy as np
from support.units import UNITS
from support.units import randomise

from keras_linrec.layers import Bidirectional
from keras_linrec.layers.base.kept_masks import keep_masks

# Even, for activations and fields that take pairs.
FEATURES = 4
MERGE_MODES = ("concat", "sum", "ave", "mul", None)
EIGENVALUES = ("standard", "unit", "hinge", "log_polar", "log_polar_hinge")


class DrawnLayer(NamedTuple):
    """A unit and its arguments.

    Attributes:
        name: the unit's name in `UNITS`.
        form: the arguments of its recurrence, `units` included.
        common: arguments that every unit takes.
        wrapper: `None`, or the class of `Bidirectional` around the unit.
        merge_mode: of that `Bidirectional`.
    """

    name: str
    form: dict
    common: dict
    wrapper: type | None = None
    merge_mode: str | None = None

    @property
    def unit(self):
        return UNITS[self.name]

    @property
    def arguments(self):
        return {"units": 4, **self.form, **self.common}

    @property
    def streams(self):
        """Whether the layer runs step by step."""
        reads_on = not (
            self.arguments.get("bidirectional")
            or self.arguments.get("go_backwards")
        )
        return (
            reads_on
            and self.wrapper is None
            and self.arguments.get("return_sequences", True)
        )

    def of_width(self, units):
        """The layer with another number of output features."""
        form = {**self.form, "units": units}
        if "reflections" in form:
            size = units // 2 if form["field"] == "complex" else units
            form["reflections"] = min(form["reflections"], size)
        if self.name == "rglru" and units % form["num_heads"]:
            form["num_heads"] = 1
        return self._replace(form=form)

    def make(self, **arguments):
        """A new layer, not built."""
        layer = self.unit(**{**self.arguments, **arguments})
        if self.wrapper is None:
            return layer
        dtype = {"dtype": layer.dtype_policy}
        wrapped = self.wrapper(layer, merge_mode=self.merge_mode, **dtype)
        # Keras 3.16 reads a mask in its own wrapper, and warns.
        keep_masks(wrapped)
        return wrapped

    def built(self, seed=0, **arguments):
        """A new layer, with every weight moved from its initial value."""
        layer = self.make(**arguments)
        layer.build((None, None, FEATURES))
        generator = np.random.default_rng(seed)
        for weight in layer.weights:
            if "bias" in weight.name:
                # Zero at first, and `randomise` leaves zeros alone.
                weight.assign(0.1 * generator.standard_normal(weight.shape))
        return randomise(layer, seed)


def draw_layer(generator, names=tuple(UNITS), **common):
    """Draw a unit and the arguments of its recurrence.

    Args:
        generator: `numpy.random.Generator`.
        names: the names of the units to draw from.
        **common: arguments that every unit takes.
    """
    name = pick(generator, names)
    form = FORMS[name](generator)
    return DrawnLayer(name, form, {"return_sequences": True, **common})


def draw_common(generator, drawn):
    """Draw the arguments that every unit takes, and perhaps a wrapper."""
    common = {
        "return_state": True,
        "return_sequences": chance(generator, 0.8),
        "go_backwards": chance(generator, 0.2),
        "zero_output_for_mask": chance(generator, 0.2),
        # Outside training it changes nothing.
        "dropout": pick(generator, [0.0, 0.3]),
    }
    if drawn.form.get("bidirectional"):
        return drawn._replace(
            common={
                **common,
                "return_sequences": True,
                "go_backwards": False,
            }
        )
    drawn = drawn._replace(common=common)
    if not chance(generator, 0.15):
        return drawn
    return drawn._replace(
        common={**common, "go_backwards": False},
        wrapper=pick(generator, [Bidirectional, keras.layers.Bidirectional]),
        merge_mode=pick(generator, MERGE_MODES),
    )


def pick(generator, values):
    """One of the values, of their own type."""
    return values[generator.integers(len(values))]


def chance(generator, probability):
    return bool(generator.random() < probability)


def between(generator, low, high):
    return float(generator.uniform(low, high))


def count(generator, low, high):
    """An integer from `low` to `high`, both included."""
    return int(generator.integers(low, high + 1))


def output_units(generator):
    return pick(generator, [None, 1, 3, 4, 9])


def with_activation(form, activation):
    """The form, which names no activation if it is the unit's own."""
    return form if activation is None else {**form, "activation": activation}


def lssl(generator):
    trains = chance(generator, 0.7)
    form = {
        "units": output_units(generator),
        "state_size": pick(generator, [1, 2, 5, 6, 17, 64]),
        "channels": count(generator, 1, 3),
        "measure": pick(generator, ["legs", "legt", "lagt"]),
        "trainable_transition": trains,
        # Less than 0.5 is unstable for some measures and timescales.
        "alpha": pick(generator, [0.5, 1.0, between(generator, 0.5, 1)]),
        "stable_transition": chance(generator, 0.3),
        "use_bias": chance(generator, 0.7),
        **timescales(generator),
    }
    return with_activation(
        form, pick(generator, [None, "linear", "tanh", "relu"])
    )


def rotrnn(generator):
    heads = count(generator, 1, 4)
    gamma_min = between(generator, 0.1, 0.9)
    form = {
        "units": output_units(generator),
        "state_size": heads * count(generator, 2, 9),
        "num_heads": heads,
        "gamma_min": gamma_min,
        "gamma_max": between(generator, gamma_min, 0.9999),
        "theta_max": between(generator, 0.1, 6.28),
        "bidirectional": chance(generator, 0.2),
    }
    return with_activation(form, pick(generator, [None, "tanh", "relu"]))


def lru(generator):
    r_min = between(generator, 0.0, 0.9)
    form = {
        "units": output_units(generator),
        "state_size": pick(generator, [1, 2, 6, 17, 33]),
        "r_min": r_min,
        "r_max": between(generator, r_min, 0.9999),
        "theta_max": between(generator, 0.1, 6.28),
    }
    return with_activation(form, pick(generator, [None, "tanh", "relu"]))


def timescales(generator):
    """The arguments of units of a continuous system."""
    dt_min = 10 ** between(generator, -3, -1.5)
    return {
        "trainable_timescale": chance(generator, 0.7),
        "dt_min": dt_min,
        "dt_max": dt_min * 10 ** between(generator, 0.1, 1.5),
        "step_rescale": pick(generator, [1.0, 0.5, 2.0]),
    }


def s5(generator):
    blocks = count(generator, 1, 3)
    form = {
        "units": output_units(generator),
        "state_size": blocks * count(generator, 1, 9),
        "num_blocks": blocks,
        "discretization": pick(generator, ["zoh", "bilinear"]),
        "eigenvalues": pick(generator, ["stable", "clipped", "free"]),
        "bidirectional": chance(generator, 0.2),
        **timescales(generator),
    }
    return with_activation(form, pick(generator, [None, "tanh", "relu"]))


def s4d(generator):
    form = {
        "units": output_units(generator),
        "state_size": 2 * count(generator, 1, 17),
        "channels": count(generator, 1, 3),
        "initial_eigenvalues": pick(generator, ["lin", "inv", "legs"]),
        "trainable_transition": chance(generator, 0.7),
        "use_bias": chance(generator, 0.7),
        **timescales(generator),
    }
    return with_activation(
        form, pick(generator, [None, "linear", "tanh", "relu"])
    )


def linoss(generator):
    discretization = pick(generator, ["imex", "im"])
    r_min = between(generator, 0.1, 0.9)
    form = {
        "units": output_units(generator),
        "state_size": pick(generator, [1, 2, 6, 17, 33]),
        "discretization": discretization,
        "damping": discretization == "imex" and chance(generator, 0.5),
        "r_min": r_min,
        "r_max": between(generator, r_min, 1.0),
        "theta_max": between(generator, 0.1, 3.14),
        **timescales(generator),
    }
    return with_activation(form, pick(generator, [None, "tanh", "relu"]))


def eigenvalue_form(generator, largest):
    """The arguments that both units given by their eigenvalues share."""
    mimo = pick(generator, ["concatenate", "average", "general"])
    # One system of several states for each feature.
    sizes = FEATURES if mimo == "concatenate" else 1
    return {
        "units": output_units(generator),
        "state_size": sizes * count(generator, 1, largest // sizes),
        "eigenvalues": pick(generator, EIGENVALUES),
        "mimo": mimo,
        "projections": count(generator, 1, 4),
        "use_bias": chance(generator, 0.7),
    }


def linear_dynamical_system(generator):
    form = eigenvalue_form(generator, largest=24)
    return with_activation(form, pick(generator, [None, "tanh", "relu"]))


def ldstack(generator):
    basis = pick(generator, ["learned", "learned", "companion"])
    # A companion matrix of many states is ill-conditioned, and warns.
    form = eigenvalue_form(generator, largest=4 if basis == "companion" else 16)
    return {
        **form,
        "depth": count(generator, 1, 3),
        "slope": pick(generator, [1.0, 0.5, between(generator, 0.1, 1)]),
        "activation": pick(generator, ["elu", "tanh", "relu"]),
        "basis": basis,
        "use_state_bias": chance(generator, 0.3),
    }


def orthogonal_rnn(generator):
    field = pick(generator, ["real", "real", "complex"])
    units = pick(generator, [2, 4, 10, 18, 34])
    if field == "real" and chance(generator, 0.3):
        units -= 1
    size = units // 2 if field == "complex" else units
    form = {
        "units": units,
        "reflections": count(generator, 1, min(size, 16)),
        "use_bias": chance(generator, 0.7),
        "field": field,
        "train_initial_state": chance(generator, 0.2),
    }
    activations = [None, "tanh", "relu"]
    if units % 2 == 0:
        # They take pairs.
        activations += ["modrelu"] + (["oplu"] if field == "real" else [])
    return with_activation(form, pick(generator, activations))


def lipschitz_rnn(generator):
    form = {
        **antisymmetric_rnn(generator),
        "beta": (between(generator, 0.5, 1), between(generator, 0.5, 1)),
        "gamma": (between(generator, 0, 0.5), between(generator, 0, 0.5)),
        "alpha": pick(generator, [1.0, 0.0, between(generator, 0, 1)]),
    }
    can_be_stable = (
        form["solver"] != "rk4" and form["alpha"] > 0 and not form["gated"]
    )
    return {
        **form,
        "stable_transition": can_be_stable and chance(generator, 0.3),
    }


def antisymmetric_rnn(generator):
    return {
        "units": pick(generator, [1, 4, 7, 18, 33]),
        "gamma": between(generator, 0, 0.5),
        "step_size": between(generator, 0.01, 0.4),
        "solver": pick(generator, ["euler", "rk2", "rk4"]),
        "activation": pick(generator, ["tanh", "relu"]),
        "gated": chance(generator, 0.3),
        "trainable_step_size": chance(generator, 0.3),
        "use_bias": chance(generator, 0.7),
    }


def minimal(generator):
    return {
        "units": output_units(generator),
        "candidate": pick(generator, ["linear", "positive"]),
        "use_bias": chance(generator, 0.7),
    }


def rglru(generator):
    heads = count(generator, 1, 4)
    r_min = between(generator, 0.0, 0.9)
    return {
        "units": heads * count(generator, 1, 5),
        "num_heads": heads,
        "r_min": r_min,
        "r_max": between(generator, r_min, 0.9999),
        "use_bias": chance(generator, 0.7),
    }


def delta_net(generator):
    heads = count(generator, 1, 4)
    return {
        "units": output_units(generator),
        "num_heads": heads,
        "key_dim": count(generator, 1, 9),
        "value_dim": count(generator, 1, 9),
        "key_heads": 1 if chance(generator, 0.3) else heads,
        "gated": chance(generator, 0.7),
        "reflections": count(generator, 1, 3),
        "negative_eigenvalues": chance(generator, 0.5),
        "output_gate": chance(generator, 0.7),
        "kernel_size": count(generator, 2, 5),
        "use_bias": chance(generator, 0.5),
    }


def mamba2(generator):
    heads = count(generator, 1, 3)
    return {
        "units": output_units(generator),
        "state_size": count(generator, 1, 9),
        "num_heads": heads,
        # A multiple, so that the heads divide the channels of any features.
        "expand": heads * count(generator, 1, 2),
        "num_groups": 1 if chance(generator, 0.5) else heads,
        "kernel_size": count(generator, 2, 5),
        "use_bias": chance(generator, 0.7),
    }


def causal_convolution(generator):
    form = {
        "units": output_units(generator),
        "kernel_size": count(generator, 2, 6),
        "use_bias": chance(generator, 0.7),
    }
    return with_activation(form, pick(generator, [None, "tanh", "relu"]))


FORMS = {
    "lssl": lssl,
    "rotrnn": rotrnn,
    "lru": lru,
    "s5": s5,
    "s4d": s4d,
    "linoss": linoss,
    "linear_dynamical_system": linear_dynamical_system,
    "ldstack": ldstack,
    "orthogonal_rnn": orthogonal_rnn,
    "lipschitz_rnn": lipschitz_rnn,
    "antisymmetric_rnn": antisymmetric_rnn,
    "min_gru": minimal,
    "min_lstm": minimal,
    "rglru": rglru,
    "delta_net": delta_net,
    "mamba2": mamba2,
    "causal_convolution": causal_convolution,
}
