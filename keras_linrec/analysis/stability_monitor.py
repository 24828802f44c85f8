"""A callback that logs the stability of a model's units."""

import keras
import numpy as np

from keras_linrec.analysis._matrices import are_finite
from keras_linrec.analysis._matrices import has_transition_matrix
from keras_linrec.analysis._matrices import has_unit_matrices
from keras_linrec.analysis._matrices import unit_matrices
from keras_linrec.analysis.spectra import orthogonality_defect
from keras_linrec.analysis.stability import require_activation_facts
from keras_linrec.analysis.stability import stability_certificate

_LOGGED = (
    "largest_real_part_of_linear_matrix",
    "largest_real_part_of_recurrent_matrix",
    "largest_symmetric_eigenvalue",
    "smallest_symmetric_singular_value",
    "largest_recurrent_singular_value",
    "largest_recurrent_eigenvalue",
    "smallest_corrected_eigenvalue",
    "largest_sector_eigenvalue",
)


class StabilityMonitor(keras.callbacks.Callback):
    """Add the stability of a model's units to the logs of every epoch.

    The callback finds layers with the method `recurrent_matrix`, such as
    `LipschitzRNN`, or `transition_matrix`, such as `OrthogonalRNN`, including
    those in nested models and wrappers. The keys in the logs, which `History`,
    `CSVLogger` and `TensorBoard` record, are the layer's name, a slash, and

    - attributes of `StabilityCertificate`, among them
      `largest_real_part_of_linear_matrix` and
      `largest_real_part_of_recurrent_matrix`, the curves of figure 5 of the
      paper, and `stable`, 1 or 0;
    - or `orthogonality_defect`.

    If A or W is not finite, these attributes are NaN and `stable` is 0.
    Callbacks that come later in the list see these logs.

    Args:
        lipschitz_constant: float, for activations that
            `stability_certificate` does not know. Defaults to `None`.
        monotone: boolean, likewise. Defaults to `None`.

    Raises:
        ValueError: for an argument that is not as described; at the start of
            training, if the model has no such layer; at the end of an epoch,
            as `stability_certificate`.

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), appendix A.3, figure 5.

    Example:

    >>> import keras
    >>> from keras_linrec.analysis import StabilityMonitor
    >>> monitor = StabilityMonitor(lipschitz_constant=1.0, monotone=True)
    >>> isinstance(monitor, keras.callbacks.Callback)
    True
    """

    def __init__(
        self,
        lipschitz_constant: float | None = None,
        monotone: bool | None = None,
    ):
        super().__init__()
        require_activation_facts(lipschitz_constant, monotone)
        self.lipschitz_constant = lipschitz_constant
        self.monotone = monotone

    def on_train_begin(self, logs=None):
        if not _monitored(self.model):
            raise ValueError(
                "`StabilityMonitor` needs a model with a LipschitzRNN, an "
                "OrthogonalRNN or another layer that has `recurrent_matrix` "
                f"or `transition_matrix`. Received: model={self.model.name}"
            )

    def on_epoch_end(self, epoch, logs=None):
        if logs is None:
            return
        for name, layer in _monitored(self.model).items():
            for key, value in self._numbers(layer).items():
                logs[f"{name}/{key}"] = value

    def _numbers(self, layer):
        if not layer.built:
            return {}
        if not has_unit_matrices(layer):
            return {"orthogonality_defect": orthogonality_defect(layer)}
        if not are_finite(unit_matrices(layer)):
            # Training has diverged; log it.
            return {**dict.fromkeys(_LOGGED, np.nan), "stable": 0.0}
        certificate = stability_certificate(
            layer, self.lipschitz_constant, self.monotone
        )
        numbers = {name: getattr(certificate, name) for name in _LOGGED}
        return {**numbers, "stable": float(certificate.stable)}


def _monitored(model):
    """The units of a model by unique names."""
    found = {}
    # Shared layers occur more than once.
    for layer in {id(unit): unit for unit in _units(model)}.values():
        name, count = layer.name, 1
        while name in found:
            name, count = f"{layer.name}_{count}", count + 1
        found[name] = layer
    return found


def _units(layer):
    if has_unit_matrices(layer) or has_transition_matrix(layer):
        # Do not descend: its cell, if it has one, has the same matrices.
        return [layer]
    inner = layer._flatten_layers(include_self=False, recursive=False)
    return [unit for part in inner for unit in _units(part)]
