"""Arguments of a constructor, which are handed on and set again later."""

import inspect
import numbers
from functools import cache

import keras

from keras_linrec.validation import require_between
from keras_linrec.validation import require_bool

_PACKAGE = __name__.partition(".")[0]
# Keras has its own ways with these.
_OF_KERAS = {"self", "args", "kwargs", "name", "dtype", "trainable"}


class SetLater:
    """A mixin: an attribute that is set later takes effect, or is refused.

    An argument that is read at every call may be set at any time. A class has
    a method `_accept_<argument>(name, value)` for each: it checks the value as
    at construction, does what else follows from it, and returns what is kept.
    The constructor's own assignment goes through it too.

    From all other arguments weights or parts have been made. To set one of
    them again raises, since it would change the configuration alone, and with
    it the model that a file holds.
    """

    _arguments = frozenset()

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Once a class: attributes are set often. What a user's subclass adds
        # is its own affair.
        cls._arguments = _arguments_of(cls) - _OF_KERAS

    def __setattr__(self, name, value):
        cls = type(self)
        accept = getattr(cls, f"_accept_{name}", None)
        if accept is not None:
            value = accept(self, name, value)
        elif name in cls._arguments and not _has_setter(cls, name):
            self._require_first(name, value)
        super().__setattr__(name, value)

    def _require_first(self, name, value):
        """Raise unless an argument is set for the first time."""
        if hasattr(self, name) and not _is_same(getattr(self, name), value):
            raise self._cannot_change(name, value)

    def _refuse(self, name, value):
        """The `_accept_` method of an argument that is not kept."""
        raise self._cannot_change(name, value)

    def _cannot_change(self, name, value):
        kind = type(self).__name__
        return ValueError(
            f"`{name}` of '{self.name}' cannot be changed: weights or parts of "
            f"this {kind} depend on it. Make a new one with `{kind}.from_config"
            f"({{**old.get_config(), '{name}': ...}})`, and give it those of "
            f"the old weights that fit. Received: {name}={value}"
        )

    def _accept_flag(self, name, value):
        require_bool(name, value)
        return value


@cache
def _arguments_of(cls, module=_PACKAGE):
    """What constructors of a class and its bases take, those of a package."""
    return frozenset().union(
        *(
            inspect.signature(base.__init__).parameters
            for base in cls.__mro__
            if "__init__" in vars(base)
            and module in (None, base.__module__.partition(".")[0])
        )
    )


def for_bases(cls, given):
    """Those arguments of a constructor that the bases of its class take.

    A constructor spells out all that it takes, for those who call it. What it
    hands on as it is need not be listed a second time.

    Args:
        cls: the class of the constructor.
        given: `locals()`, before the constructor has others than arguments,
            the last of which is called `kwargs` if it collects further ones.

    Returns:
        A dictionary of the arguments by name.
    """
    # Those of a user's bases too. Keras' own take keywords.
    names = frozenset().union(
        *(_arguments_of(base, module=None) for base in cls.__bases__)
    )
    names = names & given.keys() - {"self", "args", "kwargs"}
    return {name: given[name] for name in names} | given.get("kwargs", {})


def may_be_set(layer, name):
    """Whether an argument of a layer may be set at any time."""
    accept = getattr(type(layer), f"_accept_{name}", None)
    return accept not in (None, SetLater._refuse)


def settings_of(layer):
    """The entries of a layer's configuration that may be set at any time."""
    config = layer.get_config()
    return {name: config[name] for name in config if may_be_set(layer, name)}


def set_all(layer, settings):
    """Set what `settings_of` gave."""
    for name, value in settings.items():
        setattr(layer, name, value)


def accepted_share(layer, name, value, seed=None):
    """The share that `layer` drops, once it can draw what it drops.

    A layer that is made without dropout has no generator, and neither do its
    files. Keras locks a layer that is built against new ones.
    """
    require_between(name, value, 0, 1, "[)")
    if value and not hasattr(layer, "seed_generator"):
        layer._tracker.unlock()
        layer.seed_generator = keras.random.SeedGenerator(seed)
        if layer.built:
            layer._tracker.lock()
    return value


def _has_setter(cls, name):
    return isinstance(getattr(cls, name, None), property)


def _is_same(one, other):
    """Whether a value is the one that is kept already."""
    for kind in (numbers.Number, str, tuple):
        if isinstance(one, kind) and isinstance(other, kind):
            return one == other
    return one is other
