"""The worker of `test_nnx`: Keras' layers as modules of Flax, as JSON.

python -m support.nnx_worker NAME...
"""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
os.environ["KERAS_NNX_ENABLED"] = "true"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from support import DOCS
from support import pages
from support.units import UNITS
from support.units import sequences

from keras_linrec import models
from keras_linrec.layers import Bidirectional
from keras_linrec.layers import RotRNN

OTHERS = {
    "bidirectional": lambda: Bidirectional(RotRNN(4, state_size=8)),
    "classifier": lambda: models.SequenceClassifier(
        3, units=4, num_layers=2, unit="rotrnn"
    ),
}


def run_page():
    """Run the block about Flax, and return its losses."""
    page = DOCS / "guides/training_loop.md"
    (code,) = (code for _, code in pages.blocks(page) if "nnx" in code)
    names = {"np": np, "optax": optax}
    exec(compile(code, str(page), "exec"), names)
    return names["values"]


def is_trained(path, variable):
    return variable.trainable


def norms(arrays):
    """Norms in the order of their sizes: Flax has an order of its own."""
    return sorted(float(jnp.linalg.norm(array)) for array in arrays)


def slopes_of(name):
    """Norms of gradients, by Flax and by `stateless_call`."""
    make = UNITS.get(name) or OTHERS[name]
    module = make()
    inputs = sequences(5)
    module(inputs)

    def loss(module):
        return jnp.sum(module(inputs) ** 2)

    def stateless(weights):
        fixed = [weight.value for weight in module.non_trainable_variables]
        outputs, _ = module.stateless_call(weights, fixed, inputs)
        return jnp.sum(outputs**2)

    trained = nnx.DiffState(0, is_trained)
    found = nnx.jit(nnx.grad(loss, argnums=trained))(module)
    weights = [weight.value for weight in module.trainable_variables]
    expected = jax.jit(jax.grad(stateless))(weights)
    return norms(jax.tree.leaves(found)), norms(expected)


def states():
    """Those of a stateful layer after a compiled call, and those returned."""
    layer = RotRNN(4, state_size=8, stateful=True, return_state=True)
    inputs = sequences(5)
    layer.build(inputs.shape)
    _, *returned = nnx.jit(lambda layer: layer(inputs))(layer)
    kept = [state.value for state in layer.states]
    return [np.asarray(part).tolist() for part in (kept, returned)]


if __name__ == "__main__":
    names = sys.argv[1:]
    found = {"slopes": {name: slopes_of(name) for name in names}}
    if "classifier" in names:
        found.update(page=run_page(), states=states())
    print(json.dumps(found))
