"""Names of a layer's variables that no counter of Keras is in."""

import keras


def named_variables(layer, seen=frozenset()):
    """The variables of a layer and of those within it, by name.

    A name has the attributes that lead to a variable, and the variable's own:
    `blocks.0.unit.bias`. Variables of one name and owner are numbered.

    Args:
        layer: a layer of Keras that is built.
        seen: the identities of the layers that it is part of.
    """
    seen = seen | {id(layer)}
    names = {}
    for path, part in _parts(layer):
        if id(part) in seen:
            continue
        for name, variable in named_variables(part, seen).items():
            names.setdefault(id(variable), f"{path}.{name}")
    named = {}
    for variable in layer.variables:
        name = names.get(id(variable)) or _free(variable.name, named)
        named[name] = variable
    return named


def _parts(layer):
    """The layers that are attributes of a layer, or in lists of its."""
    attributes = {**vars(layer), **dict(layer.named_children())}
    if isinstance(layer, keras.Model):
        # Where a `Sequential` and a functional model have theirs.
        attributes["layers"] = layer.layers
    for name, value in attributes.items():
        if isinstance(value, keras.layers.Layer):
            found = {name: value}
        elif isinstance(value, (list, tuple)):
            found = {f"{name}.{at}": part for at, part in enumerate(value)}
        else:
            continue
        for path, part in found.items():
            is_part = isinstance(part, keras.layers.Layer)
            if is_part and not path.startswith("_"):
                yield path, part


def _free(name, named):
    """The name, with a number if it is among those that are taken."""
    count, free = 0, name
    while free in named:
        count += 1
        free = f"{name}_{count}"
    return free
