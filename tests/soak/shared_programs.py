"""Programs that the calls of a case share."""

import threading

from support.programs import program

from keras_linrec.settings import requested_kernel


class Programs:
    """One program for each layer, mode and kernel of a case.

    JAX would otherwise compile one for each call.
    """

    def __init__(self):
        self.made = {}
        self.lock = threading.Lock()

    def of(self, function, layer, mode):
        """The program of a function that depends on the layer alone."""
        key = layer, mode, requested_kernel()
        with self.lock:
            if key not in self.made:
                self.made[key] = program(function, mode)
            return self.made[key]
