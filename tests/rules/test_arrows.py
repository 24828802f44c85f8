"""Imports run one way: from the public layers down to the kernels."""

import ast
from pathlib import Path

import keras_linrec
from keras_linrec import kernels

# From the bottom up: a part imports only itself and parts listed before it.
FOUNDATION = (
    "activations",
    "complex_pairs",
    "double_precision",
    "files",
    "settings",
    "validation",
    "version",
)
STOREYS = (
    ("types",),
    FOUNDATION,
    ("config", "saving", "stored_values"),
    ("kernels",),
    ("ops",),
    ("constraints", "initializers", "optimizers"),
    ("layers",),
    ("models",),
    ("analysis", "export", "nlp", "torch"),
    ("__init__",),
)
FRAMEWORKS = {"jax", "jaxlib", "tensorflow", "torch"}
PACKAGE = Path(keras_linrec.__file__).parent
KERNELS = Path(kernels.__file__).parent


def files():
    """Each file of the package with its path as a tuple: ("ops", "scan")."""
    for path in PACKAGE.rglob("*.py"):
        yield path, path.relative_to(PACKAGE).with_suffix("").parts
    for path in KERNELS.rglob("*.py"):
        parts = path.relative_to(KERNELS).with_suffix("").parts
        yield path, ("kernels", *parts)


def imported(path):
    """The modules that a file imports, also within functions, as tuples."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (tuple(name.name.split(".")) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            module = tuple(node.module.split("."))
            yield from ((*module, name.name) for name in node.names)


def own(path):
    """The modules of this package that a file imports, as ("ops", "scan")."""
    return [
        module[1:]
        for module in imported(path)
        if module[0] == "keras_linrec" and len(module) > 1
    ]


def storey(part):
    (index,) = (i for i, parts in enumerate(STOREYS) if part in parts)
    return index


def test_every_part_has_a_storey():
    parts = {parts[0] for _, parts in files()}
    assert parts == {part for parts in STOREYS for part in parts}


def test_arrows_run_downward():
    for path, parts in files():
        for module in own(path):
            same = module[0] == parts[0]
            below = storey(module[0]) < storey(parts[0])
            assert same or below, f"{path} imports {'.'.join(module)}"


def test_the_foundation_imports_types_alone():
    for path, parts in files():
        if parts[0] in FOUNDATION:
            assert {module[0] for module in own(path)} <= {"types"}, path


def test_only_operations_call_kernels():
    for path, parts in files():
        if parts[0] not in ("kernels", "ops", "__init__"):
            assert not [m for m in own(path) if m[0] == "kernels"], path


def test_only_the_kernels_of_a_framework_import_it():
    for path, parts in files():
        allowed = set()
        if parts[0] == "kernels" and len(parts) > 2:
            allowed = {parts[1]}
        if parts[0] == "torch":
            allowed = {"torch"}
        if parts == ("double_precision",):
            # It replaces functions that Keras lacks on JAX.
            allowed = {"jax"}
        frameworks = FRAMEWORKS & {module[0] for module in imported(path)}
        assert frameworks <= allowed, path
