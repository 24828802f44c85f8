"""Presets whose errors name them."""

import os

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
            return super().from_preset(preset, *args, **kwargs)
