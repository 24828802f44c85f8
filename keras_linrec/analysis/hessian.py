"""The curvature of a classifier's loss, from Hessian-vector products."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_linrec import types
from keras_linrec.analysis._classifier import batches
from keras_linrec.analysis._classifier import classification_task
from keras_linrec.ops import differentiation
from keras_linrec.validation import checked_seed
from keras_linrec.validation import require_between
from keras_linrec.validation import require_count


@dataclass(frozen=True)
class ExtremeEigenvalues:
    """The two ends of a spectrum, with bounds on their errors.

    Attributes:
        smallest, largest: floats, the algebraically smallest and largest
            eigenvalue.
        smallest_residual, largest_residual: floats |H v - lambda v|; an exact
            eigenvalue lies within this distance.
    """

    smallest: float
    largest: float
    smallest_residual: float
    largest_residual: float

    @property
    def condition_number(self):
        """largest / smallest, positive only for a definite matrix.

        A negative value means a saddle: its magnitude is the ratio of the
        strongest upward to the strongest downward curvature. The value is
        infinite if the smallest eigenvalue is zero within its residual.
        """
        if abs(self.smallest) <= self.smallest_residual:
            return np.inf
        return self.largest / self.smallest


@dataclass(frozen=True)
class TraceEstimate:
    """An estimated trace.

    Attributes:
        value: float, the mean over the samples.
        standard_error: float, of that mean; infinite for one sample.
    """

    value: float
    standard_error: float


@dataclass(frozen=True)
class HessianSummary:
    """The properties of the Hessian in table 3 of the paper.

    Attributes:
        eigenvalues: `ExtremeEigenvalues`.
        trace: `TraceEstimate`.
    """

    eigenvalues: ExtremeEigenvalues
    trace: TraceEstimate

    def __str__(self):
        ends = self.eigenvalues
        return (
            f"largest eigenvalue {ends.largest:.4g}, "
            f"smallest {ends.smallest:.4g}, "
            f"condition number {ends.condition_number:.4g}, "
            f"trace {self.trace.value:.4g} +- {self.trace.standard_error:.2g}"
        )


class Hessian:
    """The Hessian of a classifier's loss in its trainable variables.

    The loss is the mean over the examples, in inference mode and without
    regularisers. The matrix is never formed: each product with a vector is
    the gradient of a gradient. This requires layers whose kernels can be
    differentiated twice, as all kernels of this package can.

    Args:
        model: a built Keras model with one input and outputs (batch,
            classes), or (batch, 1) for two classes.
        inputs: array (examples, ...).
        labels: array (examples, ...), in the form that the loss takes: class
            numbers or one-hot rows.
        loss: a Keras loss, its name, or a function of labels and outputs.
            Defaults to `None`: the one the model is compiled with.
        batch_size: integer, the number of examples in a batch; the products
            of batches are summed. Defaults to 128.

    Raises:
        ValueError: if the model is not built, not a classifier or has no
            trainable weights, inputs and labels differ in length, or the loss
            is unknown.

    Reference:
        [Lipschitz Recurrent Neural Networks](
        https://arxiv.org/abs/2006.12070), section 7, table 3.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_linrec.analysis import Hessian
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> hessian = Hessian(model, np.eye(3), np.array([0, 1, 1]), loss)
    >>> hessian.size
    8
    >>> ends = hessian.extreme_eigenvalues(seed=0)
    >>> -1e-4 < ends.smallest < ends.largest <= 1.0
    True
    """

    def __init__(
        self,
        model: Any,
        inputs: types.Tensor,
        labels: types.Tensor,
        loss: types.Loss = None,
        batch_size: int = 128,
    ):
        self._classifier, self.inputs, self.labels = classification_task(
            model, inputs, labels, loss, batch_size
        )
        self.batch_size = batch_size
        variables = model.trainable_variables
        if not variables:
            raise ValueError(
                "`model` should have trainable weights, by which its loss is "
                f"differentiated. Received: model={model.name} without one"
            )
        self._shapes = [tuple(variable.shape) for variable in variables]
        self._dtypes = [variable.dtype for variable in variables]
        self._gradient = differentiation.gradient(self._loss)
        self._product = differentiation.hessian_vector_product(self._loss)

    @property
    def size(self):
        """The number of trainable parameters."""
        return sum(int(np.prod(shape)) for shape in self._shapes)

    def product(self, vector: types.Tensor) -> types.Tensor:
        """The Hessian times a vector.

        Args:
            vector: array (size,), in the order of `model.trainable_variables`.

        Returns:
            float64 array (size,).

        Raises:
            ValueError: if `vector` has a wrong shape, or the product is not
                finite.
        """
        vectors = self._split(vector)
        product = self._sum(
            lambda tensors, constants: self._product(
                tensors, vectors, constants
            )
        )
        if not np.isfinite(product).all():
            raise ValueError(
                "The Hessian is not finite: the model's weights, its loss or "
                "the inputs are not finite, or too large. Received: a product "
                "that contains NaN or infinity"
            )
        return product

    def gradient(self) -> types.Tensor:
        """The gradient of the same loss, float64 array (size,)."""
        return self._sum(self._gradient)

    def extreme_eigenvalues(
        self,
        iterations: int = 50,
        tolerance: float = 1e-3,
        seed: types.Seed = None,
    ) -> ExtremeEigenvalues:
        """The two ends of the spectrum, by the Lanczos method.

        All Lanczos vectors are kept and reorthogonalised, so that no
        eigenvalue is found twice. The largest eigenvalue is approached from
        below, the smallest from above.

        Args:
            iterations: integer, the maximum number of products with the
                Hessian. Defaults to 50.
            tolerance: float; the method stops when both residuals are below
                this share of the largest magnitude. Defaults to 1e-3.
            seed: integer, for the first vector. Defaults to `None`: random.

        Returns:
            `ExtremeEigenvalues`.

        Raises:
            ValueError: as `product`, or if `iterations` is not a positive
                integer.
        """
        require_count("iterations", iterations)
        require_between("tolerance", tolerance, 0, math.inf, "()")
        generator = np.random.default_rng(checked_seed(seed))
        return lanczos(
            self.product,
            generator.standard_normal(self.size),
            min(iterations, self.size),
            tolerance,
        )

    def trace(
        self, samples: int = 30, seed: types.Seed = None
    ) -> TraceEstimate:
        """The trace, by Hutchinson's estimator with random signs.

        Args:
            samples: integer, the number of products with the Hessian.
                Defaults to 30.
            seed: integer, for the signs. Defaults to `None`: random.

        Returns:
            `TraceEstimate`.

        Raises:
            ValueError: as `product`, or if `samples` is not a positive
                integer.
        """
        require_count("samples", samples)
        generator = np.random.default_rng(checked_seed(seed))
        values = []
        for _ in range(samples):
            signs = generator.choice([-1.0, 1.0], size=self.size)
            values.append(signs @ self.product(signs))
        error = np.inf
        if samples > 1:
            error = np.std(values, ddof=1) / np.sqrt(samples)
        return TraceEstimate(float(np.mean(values)), float(error))

    def summary(
        self,
        iterations: int = 50,
        tolerance: float = 1e-3,
        samples: int = 30,
        seed: types.Seed = None,
    ) -> HessianSummary:
        """The largest eigenvalue, the condition number and the trace.

        The paper's condition number is the largest eigenvalue divided by the
        smallest. Here, the smallest is meant algebraically: at a point that
        is not a minimum it is negative, and so is the ratio.

        Args:
            iterations, tolerance: as in `extreme_eigenvalues`.
            samples: as in `trace`.
            seed: integer, for both. Defaults to `None`: random.

        Returns:
            `HessianSummary`.

        Raises:
            ValueError: as `extreme_eigenvalues` and `trace`.
        """
        return HessianSummary(
            self.extreme_eigenvalues(iterations, tolerance, seed),
            self.trace(samples, seed),
        )

    def _loss(self, tensors, constants):
        others, inputs, labels = constants
        outputs = self._classifier.outputs((tensors, others), inputs)
        return self._classifier.mean_loss(labels, outputs)

    def _sum(self, function):
        trainable, others = self._classifier.weights()
        total = np.zeros(self.size)
        for part in batches(len(self.inputs), self.batch_size):
            constants = (
                others,
                ops.convert_to_tensor(self.inputs[part]),
                ops.convert_to_tensor(self.labels[part]),
            )
            share = (part.stop - part.start) / len(self.inputs)
            total += share * _join(function(trainable, constants))
        return total

    def _split(self, vector):
        vector = np.asarray(vector)
        if vector.shape != (self.size,):
            raise ValueError(
                f"`vector` should have the shape ({self.size},). "
                f"Received: vector.shape={vector.shape}"
            )
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        parts = np.split(vector, np.cumsum(sizes)[:-1])
        return [
            ops.convert_to_tensor(part.reshape(shape), dtype=dtype)
            for part, shape, dtype in zip(parts, self._shapes, self._dtypes)
        ]


def lanczos(product, start, iterations, tolerance):
    """`ExtremeEigenvalues` of a symmetric operator.

    Args:
        product: function of an array (size,) that returns another.
        start: array (size,), not zero.
        iterations: integer, at most `size`.
        tolerance: float.
    """
    basis = np.zeros((iterations, len(start)))
    diagonal, off_diagonal = [], []
    vector = start / np.linalg.norm(start)
    for index in range(iterations):
        basis[index] = vector
        image = product(vector)
        diagonal.append(vector @ image)
        known = basis[: index + 1]
        # A second pass removes what rounding left in the first.
        for _ in range(2):
            image = image - known.T @ (known @ image)
        length = np.linalg.norm(image)
        ends = _ends(diagonal, off_diagonal, length)
        scale = max(abs(ends.smallest), abs(ends.largest))
        worst = max(ends.smallest_residual, ends.largest_residual)
        if worst <= tolerance * scale:
            break
        off_diagonal.append(length)
        vector = image / length
    return ends


def _ends(diagonal, off_diagonal, length):
    matrix = (
        np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
    )
    values, vectors = np.linalg.eigh(matrix)
    residuals = length * np.abs(vectors[-1])
    return ExtremeEigenvalues(
        float(values[0]),
        float(values[-1]),
        float(residuals[0]),
        float(residuals[-1]),
    )


def _join(tensors):
    parts = [ops.convert_to_numpy(tensor).ravel() for tensor in tensors]
    return np.concatenate(parts).astype("float64")
