"""The C++ core on JAX.

Importing this module builds and loads the library.
"""

from keras_linrec.kernels.jax.native_scans import (
    nonlinear_scan as nonlinear_scan,
)
from keras_linrec.kernels.jax.native_scans import (
    projected_scan as projected_scan,
)
from keras_linrec.kernels.jax.native_scans import scan as scan
from keras_linrec.kernels.jax.native_sequences import (
    causal_convolution as causal_convolution,
)
from keras_linrec.kernels.jax.native_sequences import move_steps as move_steps
from keras_linrec.kernels.jax.native_systems import (
    carried_response as carried_response,
)
from keras_linrec.kernels.jax.native_systems import (
    impulse_response as impulse_response,
)
from keras_linrec.kernels.jax.native_systems import (
    varying_response as varying_response,
)
