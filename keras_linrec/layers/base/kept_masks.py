"""Masks behind Keras' recurrent layers, in every version of Keras."""

import keras


def keep_masks(layer):
    """Let a recurrent layer of Keras hand on its mask.

    Keras' loop and its `Bidirectional` read their mask, and compute that of
    their outputs. From 3.16 on, Keras does not use the latter: it drops the
    mask and warns, unless the layer says that it supports masks.

    Args:
        layer: any layer. Those that are not Keras' loop, nor its
            `Bidirectional` or a layer within one, stay as they are.
    """
    if isinstance(layer, keras.layers.Bidirectional):
        keep_masks(layer.forward_layer)
        keep_masks(layer.backward_layer)
    elif not isinstance(layer, keras.layers.RNN):
        return
    layer.supports_masking = True
