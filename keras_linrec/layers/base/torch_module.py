"""What PyTorch asks of a layer, which is a module there.

No other backend calls these methods.
"""

import re
import warnings

# The name under which Keras gives a module its variables, by their paths.
_VARIABLES = "_torch_params"


class LoadsAnyName:
    """A mixin: weights load whatever a layer of the same kind was called.

    The keys of `state_dict` hold the paths of variables, and those the names
    of layers, which count up in a process: `rot_rnn`, `rot_rnn_1`.
    """

    def _load_from_state_dict(self, state_dict, prefix, *args):
        # Parts that are layers of Keras have such keys too.
        start = prefix.removesuffix(".")
        for name, module in self.named_modules(prefix=start):
            variables = module._modules.get(_VARIABLES)
            if variables is not None:
                start = f"{name}.{_VARIABLES}." if name else f"{_VARIABLES}."
                own = [start + path for path in variables]
                _rename(state_dict, start, own)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _rename(state_dict, start, own):
    """Give the entries that begin with `start` the keys of this instance."""
    own = sorted(own, key=_in_order)
    given = [key for key in state_dict if key.startswith(start)]
    given = sorted(given, key=_in_order)
    # The names of variables count nothing: those of a like layer are alike.
    if given != own and _ends(given) == _ends(own):
        values = [state_dict.pop(key) for key in given]
        state_dict.update(zip(own, values))


def _in_order(key):
    """Sorts layers of one kind as they were made: `lru`, `lru_2`, `lru_10`."""
    parts = (re.fullmatch(r"(.*?)(?:_(\d+))?", part) for part in key.split("/"))
    return [(part[1], int(part[2] or 0)) for part in parts]


def _ends(keys):
    return [key.rpartition("/")[2] for key in keys]


class SaysIfUnbuilt(LoadsAnyName):
    """A mixin: parameters that do not exist yet are not passed over silently.

    An optimizer that is made before the first call would train the rest of a
    network only.
    """

    def named_modules(self, *args, **kwargs):
        if self.built:
            yield from super().named_modules(*args, **kwargs)
            return
        # PyTorch looks for parameters in every module that this gives, and at
        # once. Whoever wants the modules alone does not look.
        plain = self.__dict__["_parameters"]
        watched = self.__dict__["_parameters"] = _Watched(plain)
        try:
            yield from super().named_modules(*args, **kwargs)
        finally:
            self.__dict__["_parameters"] = plain
        if watched.is_asked:
            warnings.warn(
                f"Layer '{self.name}' has no weights yet, so that they are "
                "missing among these parameters, and an optimizer would not "
                "train them. Call the layer or its model once before, or build "
                "it: `layer.build((None, None, features))`.",
                stacklevel=2,
            )


class _Watched(dict):
    """A dictionary that notes whether its entries were asked for."""

    is_asked = False

    def items(self):
        self.is_asked = True
        return super().items()
