"""The base of the minimal gated units of Feng et al. 2024."""

from typing import Literal
from typing import get_args

from keras_linrec.double_precision import product
from keras_linrec.layers.base.gated_layer import GatedLayer
from keras_linrec.layers.base.input_weights import side_by_side
from keras_linrec.ops.gated_scan import Driven
from keras_linrec.ops.gated_scan import Gates
from keras_linrec.validation import require_choice

Candidate = Literal["linear", "positive"]


class MinimalLayer(GatedLayer):
    """A state that moves towards a candidate by a share of the way.

        h_t = (1 - share_t) h_{t-1} + share_t g(W_h u_t + b_h)

    A unit names the gates that have weights in `_gate_prefixes`: the gate of
    what enters, or one of what is forgotten before it.

    Args:
        units: integer, or `None`.
        candidate: `"linear"` or `"positive"`, what g is.
        **kwargs: those of `GatedLayer`.
    """

    _gate_prefixes = ()

    def __init__(self, units=None, candidate="linear", **kwargs):
        super().__init__(units, **kwargs)
        self.candidate = candidate

    def _accept_candidate(self, name, value):
        require_choice(name, value, get_args(Candidate))
        return value

    def gating(self):
        two = len(self._gate_prefixes) == 2
        return Gates(two=two, positive=self.candidate == "positive")

    def build_unit(self, features):
        shape = features, self.output_units
        for prefix in (*self._gate_prefixes, ""):
            kernel, bias = self._add_input_weights(shape, prefix)
            setattr(self, f"{prefix}kernel", kernel)
            setattr(self, f"{prefix}bias", bias)

    def step_constants(self):
        return side_by_side(
            *(
                (
                    getattr(self, f"{prefix}kernel"),
                    getattr(self, f"{prefix}bias"),
                )
                for prefix in (*self._gate_prefixes, "")
            )
        )

    def driven(self, inputs, constants):
        kernel, *bias = constants
        return Driven(product(inputs, kernel), *bias)

    def get_config(self):
        return {**super().get_config(), "candidate": self.candidate}
