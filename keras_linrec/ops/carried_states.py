"""States that pass through a sequence: in by a free response, and out."""

from keras import ops

from keras_linrec.ops.scan import kernel_for


class CarriedStates:
    """The native kernels for states before and after a sequence.

    Args:
        transition: `StructuredTransition` of tensors.
        timescale: tensor (features,), dt.
        output_matrix: tensor (features, channels, N), C.
        alpha: float, the parameter of the bilinear transform.
        inputs: tensor (batch, time, features), u.
    """

    def __init__(self, transition, timescale, output_matrix, alpha, inputs):
        self._system = *transition, timescale, output_matrix
        self._alpha = alpha
        self._inputs = inputs
        self._kernels = kernel_for(
            "carried_states",
            inputs,
            channels=output_matrix.shape[-1],
            not_time=True,
        )

    def __bool__(self):
        """Whether they run here: `transition_powers` runs elsewhere."""
        return self._kernels is not None

    def free_response(self, states):
        """C Abar^(t + 1) x, the output at step t of systems without inputs.

        Args:
            states: tensor (batch, features, N), x before the first step.

        Returns:
            A tensor (batch, time, features, channels).
        """
        run, _ = self._kernels
        time = self._inputs.shape[1]
        return run(*self._system, states, time, self._alpha)

    def final_states(self, states, lengths=None):
        """The states after `lengths` steps of each row.

        Args:
            states: tensor (batch, features, N), x before the first step.
            lengths: integer tensor (batch,). Defaults to `None`: all steps.

        Returns:
            A tensor (batch, features, N).
        """
        _, run = self._kernels
        batch, time, _ = ops.shape(self._inputs)
        if lengths is None:
            lengths = ops.full((batch,), time)
        lengths = ops.cast(lengths, self._inputs.dtype)
        return run(*self._system, lengths, self._inputs, states, self._alpha)
