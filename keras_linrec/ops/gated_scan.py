"""The scan whose gates compute the decay of each step."""

from keras import ops

from keras_linrec.kernels.operations.gated_scan import Driven as Driven
from keras_linrec.kernels.operations.gated_scan import Gates as Gates
from keras_linrec.kernels.operations.gated_scan import opened as opened
from keras_linrec.ops.dispatch import kernel_for
from keras_linrec.ops.precision import accumulation_dtype
from keras_linrec.ops.scan import resets_of_scan


def gated_scan(gates, driven, initial_state=None, reset_mask=None):
    """The recurrence h_t = decay_t * h_{t-1} + entering_t of some gates.

    The native kernel computes decays and what enters block by block and never
    stores those of all steps, nor their gradients.

    Args:
        gates: `Gates`.
        driven: `Driven`, of sequences (batch, time, ...).
        initial_state: tensor, (batch, channels). Defaults to `None`: zero.
        reset_mask: boolean tensor, (batch, time), as in `linear_scan`.
            Defaults to `None`: no resets.

    Returns:
        `(outputs, final_state)`: the states of all steps, (batch, time,
        channels), and the last one, (batch, channels), with the dtypes and
        derivatives of `linear_scan`.
    """
    dtype = accumulation_dtype(*driven, initial_state)
    driven = Driven(
        *(part if part is None else ops.cast(part, dtype) for part in driven)
    )
    drive = driven.drive
    channels = drive.shape[-1] // gates.drives
    if initial_state is None:
        initial_state = ops.zeros((ops.shape(drive)[0], channels), dtype)
    resets = resets_of_scan(reset_mask, drive.shape[:2], False, dtype)
    run = kernel_for(
        "gated_scan",
        drive,
        channels=channels,
        per_step=True,
        resets=reset_mask is not None,
    )
    return run(gates, driven, ops.cast(initial_state, dtype), resets)
