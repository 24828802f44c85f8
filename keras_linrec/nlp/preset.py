"""Presets whose errors name them."""

import json
import os

from keras_hub.models import Backbone
from keras_hub.models import Task

from keras_linrec.files import naming


class NamedPreset:
    """A mixin for classes of KerasHub."""

    @classmethod
    def from_preset(cls, preset, *args, **kwargs):
        """Load from a preset, as in KerasHub.

        Args:
            preset: string, a folder, or a name that KerasHub knows.
            *args: as in KerasHub.
            **kwargs: as in KerasHub: `load_weights`, and arguments that
                replace those in the preset.

        Raises:
            ValueError: if a folder cannot be loaded, for whatever reason; it
                is named.
        """
        if not os.path.isdir(preset):
            return super().from_preset(preset, *args, **kwargs)
        with naming(preset):
            if issubclass(cls, (Backbone, Task)) and not kwargs.get("dtype"):
                kwargs |= _mixed_dtype(preset)
            return super().from_preset(preset, *args, **kwargs)


def _mixed_dtype(folder):
    """The argument `dtype` for a model saved in mixed precision.

    KerasHub, which converts weights to the global policy, knows no such name.
    """
    with open(os.path.join(folder, "config.json")) as file:
        policy = json.load(file)["config"].get("dtype") or {}
    name = policy.get("config", {}).get("name") or ""
    return {"dtype": name} if name.startswith("mixed_") else {}
