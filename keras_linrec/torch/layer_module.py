"""A layer of Keras as a module of PyTorch that owns its parameters."""

from contextlib import contextmanager
from copy import deepcopy
from operator import attrgetter
from typing import Any

import keras
import torch

from keras_linrec.torch.named_variables import named_variables
from keras_linrec.validation import parameters_of
from keras_linrec.validation import require_count


class LayerModule(torch.nn.Module):
    """A layer for programs of PyTorch; a model of Keras takes the layer itself.

    Under Keras' PyTorch backend a layer is a module already, but one that
    computes with the variables of Keras, whatever its parameters are:
    `torch.func.functional_call` and `grad`, FSDP2 and `parametrize` have no
    effect on it, without an error. A `LayerModule` has the weights of the
    layer as parameters of its own, and computes with what is in their place.

    Trained weights are parameters. All else that Keras calls variables are
    buffers: frozen weights, statistics of a batch normalization, and, which
    `state_dict` leaves out as files of Keras do, the states of a stateful
    layer, seeds and `step_rescale`. The names are those of attributes, as in
    PyTorch: `bias` of a layer, `blocks.0.unit.bias` of a model. A parameter
    that is a single number has the shape (1,), because FSDP2 takes no other.

    `train()` and `eval()` switch dropout and batch statistics.

    The layer says what is computed; settings such as `return_sequences` can be
    set in it later. Its own weights give the module its first values. Later
    they are neither read nor changed: see `to_keras`.

    Args:
        layer: the layer: one of this package, a `Bidirectional`, a block or a
            model of it, or any other of Keras that is built by the shape of
            one tensor. It is built unless it is.
        num_features: integer, the number of input features.
        batch_size: integer, the number of rows of a batch, which a stateful
            layer needs. Defaults to `None`, any.

    Call arguments:
        *args, **kwargs: those of the layer's call, such as `mask`,
            `reset_mask`, `initial_state` and `time_deltas`. `training`
            defaults to that of the module. A mask is not handed on to the next
            module: pass it there too.
        return_losses: whether to return a pair of what the layer returns and a
            list of its losses, those of regularizers. Defaults to `False`,
            which leaves them out.

    The dtypes are those of the layer: `double()`, `half()`, `bfloat16()` and
    `to(dtype)` raise an error if they would change one. Make the layer with
    `dtype="float64"`, or with `dtype="mixed_bfloat16"`, whose parameters stay
    float32. Inputs are cast as in Keras.

    What the layers of this package promise of their weights, such as an
    orthogonal matrix, holds whatever the optimizer. A constraint that was
    given to a layer, such as `kernel_constraint`, holds after `constrain()`:
    call it after each step of the optimizer.

    A call of a stateful layer changes its buffers in place, and so does
    dropout with a `seed` and batch normalization in training. What follows is
    the same for all modules of PyTorch that do so: functions for
    `torch.func.grad` and `vmap` take the buffers as arguments; DDP needs
    `broadcast_buffers=False`, or each process goes on from the states of the
    first; `torch.utils.checkpoint` would compute again from the changed ones,
    and suits other layers only. It stands for `keras.RematScope`, which has no
    effect here.

    Raises:
        ValueError: at construction, if Keras' backend is not PyTorch, `layer`
            is not a layer or has no weights, `num_features` or `batch_size` is
            not a positive integer, or the layer is built for another number of
            features; at `to` and at a call, for parameters of another dtype
            than the layer's.

    Example:

    >>> import keras
    >>> import torch
    >>> import keras_linrec
    >>> from keras_linrec.torch import LayerModule
    >>> if keras.backend.backend() == "torch":
    ...     module = LayerModule(keras_linrec.layers.LRU(4), num_features=3)
    ...     network = torch.nn.Sequential(module, torch.nn.Linear(4, 1))
    ...     optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    ...     loss = network(torch.rand(2, 100, 3)).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     assert "0.feedthrough" in network.state_dict()
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        num_features: int,
        batch_size: int | None = None,
    ):
        super().__init__()
        _require_layer(layer)
        require_count("num_features", num_features)
        require_count("batch_size", batch_size, optional=True)
        if not layer.built:
            layer.build((batch_size, None, num_features))
        _require_features(layer, num_features)
        self.num_features = num_features
        # In a tuple: PyTorch would take its parameters for the module's too.
        self._held = (layer,)
        self._variables = named_variables(layer)
        _require_variables(layer, self._variables)
        saved = {id(weight) for weight in layer.weights}
        for name, variable in self._variables.items():
            self._register(name, variable, id(variable) in saved)
        self._dtypes = {
            name: tensor.dtype for name, tensor in self._tensors().items()
        }

    @property
    def keras_layer(self):
        """The layer of Keras, with weights of its own."""
        return self._held[0]

    def forward(self, *args: Any, return_losses: bool = False, **kwargs: Any):
        layer = self.keras_layer
        run = layer.call if self._is_traced_plainly() else layer
        with self._own_values(return_losses):
            outputs = run(*args, **{"training": self.training, **kwargs})
            losses = layer.losses if return_losses else None
        _forget_masks(outputs)
        return (outputs, losses) if return_losses else outputs

    def to_keras(self):
        """Copy the module's values into its layer, and return the layer.

        It can then be saved as a Keras layer is, or run step by step.
        """
        values = self._values()
        for name, variable in self._variables.items():
            variable.assign(values[name].detach())
        return self.keras_layer

    @torch.no_grad()
    def constrain(self):
        """Apply the layer's constraints to the parameters, in place.

        Weights that are frozen, or computed by a parametrization, stay as they
        are.
        """
        parameters = dict(self.named_parameters())
        for name, variable in self._variables.items():
            if variable.constraint is None or name not in parameters:
                continue
            parameter = parameters[name]
            with keras.device(str(parameter.device)):
                parameter.copy_(variable.constraint(parameter))

    def reset_state(self):
        """Let the next batch of a stateful layer begin a sequence.

        Raises:
            ValueError: if neither the layer nor a part of it is stateful.
        """
        layer = self.keras_layer
        stateful = [
            part
            for part in layer._flatten_layers()
            if getattr(part, "stateful", False) and hasattr(part, "reset_state")
        ]
        if not stateful:
            raise ValueError(
                "Only a stateful layer has states to reset. "
                f"Received: stateful=False in layer '{layer.name}'"
            )
        with self._own_values():
            for part in stateful:
                part.reset_state()

    def extra_repr(self):
        layer = self.keras_layer
        return (
            f"{type(layer).__name__}, num_features={self.num_features}, "
            f"dtype={layer.dtype_policy.name}"
        )

    def _is_traced_plainly(self):
        """Whether PyTorch compiles a layer for which `call` does everything.

        Keras' own call also attaches masks to the outputs, which the compiler
        cannot trace.
        """
        layer = self.keras_layer
        return (
            torch.compiler.is_compiling()
            and not layer.autocast
            and layer.activity_regularizer is None
            and "training" in parameters_of(type(layer).call)
        )

    # Parameters and buffers.

    def _register(self, name, variable, is_saved):
        """Add a parameter or buffer with a copy of a variable's value."""
        *path, last = name.split(".")
        owner = self
        for part in path:
            if part not in dict(owner.named_children()):
                _require_free(owner, part, self.keras_layer)
                owner.add_module(part, torch.nn.Module())
            owner = owner.get_submodule(part)
        _require_free(owner, last, self.keras_layer)
        value = variable.value.detach().clone()
        if not variable.trainable:
            owner.register_buffer(last, value, persistent=is_saved)
            return
        parameter = torch.nn.Parameter(value.reshape(_kept_shape(variable)))
        owner.register_parameter(last, parameter)

    def _tensors(self):
        """The module's tensors by name, whoever has replaced them."""
        return {name: attrgetter(name)(self) for name in self._variables}

    def _values(self):
        """The values of the variables by name, of the right dtypes."""
        values = {}
        for name, tensor in self._tensors().items():
            _require_dtype(self.keras_layer, tensor.dtype, self._dtypes[name])
            variable = self._variables[name]
            is_number = variable.trainable and variable.shape == ()
            values[name] = tensor.reshape(()) if is_number else tensor
        return values

    @contextmanager
    def _own_values(self, collect_losses=False):
        """A scope in which the layer computes with the module's tensors."""
        values = self._values()
        pairs = [(self._variables[name], values[name]) for name in values]
        device = next(iter(values.values())).device
        with keras.device(str(device)):
            scope = keras.StatelessScope(pairs, collect_losses)
            before = [scope.get_current_value(one) for one, _ in pairs]
            with scope:
                yield
        self._keep(values, before, scope)

    def _keep(self, values, before, scope):
        """Take over the buffers that a call has changed."""
        for (name, value), old in zip(values.items(), before):
            new = scope.get_current_value(self._variables[name])
            if new is not old:
                # In place, as PyTorch's own modules do.
                with torch.no_grad():
                    value.copy_(new)

    def _apply(self, fn, recurse=True):
        # Before the first tensor is changed.
        for dtype in set(self._dtypes.values()):
            _require_dtype(
                self.keras_layer, fn(torch.empty(0, dtype=dtype)).dtype, dtype
            )
        lost = [name for name, one in self.named_buffers() if one.is_meta]
        super()._apply(fn, recurse)
        for name in self._variables.keys() & lost:
            # No file has those that `state_dict` leaves out.
            buffer = self.get_buffer(name)
            if not buffer.is_meta:
                buffer.copy_(self._variables[name].value)
        return self

    # Copies and pickles: Keras makes a new layer, with new variables.

    def __deepcopy__(self, memo):
        # Or `parametrize` would add one that knows nothing of them. A class
        # that it makes has no `__getstate__`.
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(deepcopy(LayerModule.__getstate__(self), memo))
        return copied

    def __getstate__(self):
        state = dict(self.__dict__)
        del state["_variables"]
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self._variables = named_variables(self.keras_layer)


def _kept_shape(variable):
    """The shape of a variable as a parameter."""
    # FSDP2 refuses scalars.
    return variable.shape or (1,)


def _require_layer(layer):
    if keras.backend.backend() != "torch":
        raise ValueError(
            "`LayerModule` runs on the PyTorch backend of Keras: set the "
            "environment variable KERAS_BACKEND=torch. "
            f"Received: backend={keras.backend.backend()}"
        )
    if not isinstance(layer, keras.layers.Layer):
        raise ValueError(
            "`layer` should be a layer of Keras, with its arguments, such as "
            f"`keras_linrec.layers.LRU(8)`. Received: layer={layer}"
        )


def _require_free(owner, name, layer):
    """Raise if a module has an attribute of a name."""
    if hasattr(owner, name):
        raise ValueError(
            "`layer` should have no weight and no part with a name that "
            "modules of PyTorch use themselves. Received: the name "
            f"'{name}' in layer '{layer.name}' ({type(layer).__name__})"
        )


def _require_variables(layer, variables):
    if not variables:
        raise ValueError(
            "`layer` should have weights; for others, PyTorch has modules of "
            f"its own. Received: layer={layer}"
        )


def _require_features(layer, num_features):
    """Raise if a layer was built for another number of features."""
    config = layer.get_build_config() or {}
    shapes = config.get("shapes_dict", {"": config.get("input_shape")})
    shape = next(iter(shapes.values()))
    if shape and shape[-1] != num_features:
        raise ValueError(
            "`num_features` should be the number of features for which layer "
            f"'{layer.name}' is built, {shape[-1]}. "
            f"Received: num_features={num_features}"
        )


def _require_dtype(layer, dtype, expected):
    if dtype != expected:
        raise ValueError(
            f"Parameters of layer '{layer.name}' should keep their dtype, "
            f"{expected}, which follows from that of the layer. Make the layer "
            'with dtype="float64" for float64, or with dtype="mixed_bfloat16" '
            'or "mixed_float16" to compute in 16 bits. '
            f"Received: dtype={dtype}"
        )


def _forget_masks(outputs):
    """Remove the masks that Keras attaches to tensors.

    They would reach the next module, unless a tool of PyTorch is between.
    """
    for tensor in keras.tree.flatten(outputs):
        if getattr(tensor, "_keras_mask", None) is not None:
            tensor._keras_mask = None
