"""Which tests a run takes: the selection, the rest, the weekly ones, or all.

The selection is what the README's command runs. Under PyTorch it has nearly all
tests; under JAX and TensorFlow, which compile, it has the scans, every unit
against its definition, and the capabilities of representative layers. The rest
has most other tests, of which `.ci/run` runs all under PyTorch, and a slice a
day under the others. The weekly ones, of which it runs a seventh a day, take
long and repeat what others cover.
The three parts together run every test under every backend once. Plain pytest
runs whatever it is given.

A test, or a parameter of one, that is not in the selection is marked:

    @pytest.mark.rest                          under every backend
    @pytest.mark.rest("jax", "tensorflow")     under these
    @pytest.mark.weekly("jax", "tensorflow")   weekly under these

`tests/run.py` sets two variables: the part that a process takes, and its slice
of that part.
"""

import os
from pathlib import Path

import pytest

PART = "KERAS_LINREC_TEST_PART"
SLICE = "KERAS_LINREC_TEST_SLICE"
SELECTION, REST, WEEKLY, ALL = "selection", "rest", "weekly", "all"
# Removed, so that a pytest started by a test runs whatever it is given.
part = os.environ.pop(PART, ALL)
slice_index, slice_count = map(int, os.environ.pop(SLICE, "1/1").split("/"))

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "keras_linrec"
# These backends compile programs, where PyTorch runs eagerly.
COMPILING = ("jax", "tensorflow")

# Files that test one backend's code, no framework at all, or all of them in
# processes of their own; and tools, whose layers are tested under each backend.
ONLY_UNDER = {
    "test_batched_gradients.py": "torch",
    "test_checkpoints_of_authors.py": "torch",
    "test_cuda.py": "torch",
    "test_cuda_jax.py": "jax",
    "test_cuda_nonlinear.py": "torch",
    "test_cuda_resources.py": "torch",
    "test_cuda_response.py": "torch",
    "test_torch_compile.py": "torch",
    "test_cuda_tensorflow.py": "tensorflow",
    "test_device_check.py": "torch",
    "test_devices.py": "jax",
    "test_docs.py": "torch",
    "test_faults.py": "torch",
    "test_files_across_backends.py": "jax",
    "test_formulas.py": "torch",
    "test_hippo.py": "torch",
    "test_hippo_windows.py": "torch",
    "test_learning_rates.py": "torch",
    "test_models_of_pages.py": "torch",
    "test_native_build.py": "torch",
    "test_native_compilers.py": "torch",
    "test_native_core.py": "torch",
    "test_native_jax.py": "jax",
    "test_native_nonlinear_scan.py": "torch",
    "test_native_streamed.py": "torch",
    "test_native_threads.py": "torch",
    "test_native_tensorflow.py": "tensorflow",
    "test_native_torch.py": "torch",
    "test_pallas.py": "jax",
    "test_readme.py": "torch",
    "test_recipe_tasks.py": "torch",
    "test_release.py": "torch",
    "test_reproduce.py": "torch",
    "test_serve_stream.py": "torch",
    "test_task_guides.py": "torch",
    "test_torch_module.py": "torch",
}
# Files that the selection runs under some backends only, or under none:
# examples and files, which repeat there what other tests cover under each
# backend; models, and the tests of single units beside `test_units.py` and the
# conformance suite, drawn cases and threads, which JAX and TensorFlow compile
# for minutes; tests that start a process per backend or device; pages; and
# kernels for emulated hardware.
SELECTED_UNDER = {
    "test_analysis.py": ("torch",),
    "test_arguments.py": ("torch",),
    "test_averaging_models.py": ("torch",),
    "test_bad_arguments.py": (),
    "test_bidirectional.py": ("torch",),
    "test_byte_order.py": ("torch",),
    "test_canonical_form.py": ("torch",),
    "test_carries.py": (),
    "test_causal_convolution.py": ("torch",),
    "test_cuda_jax.py": (),
    "test_cuda_response.py": (),
    "test_cuda_tensorflow.py": (),
    "test_defaults.py": ("torch",),
    "test_dense_parts.py": ("torch",),
    "test_device_check.py": (),
    "test_devices.py": (),
    "test_diagonal_layers.py": ("torch",),
    "test_docs.py": (),
    "test_export.py": ("torch",),
    "test_files_across_backends.py": (),
    "test_for_signals.py": ("torch",),
    "test_freed_memory.py": ("torch",),
    "test_householder.py": ("torch",),
    "test_impulse_response.py": ("torch",),
    "test_kept_models.py": (),
    "test_layer_properties.py": ("torch",),
    "test_ldstack.py": ("torch",),
    "test_ldstack_examples.py": ("torch",),
    "test_learning_rates.py": (),
    "test_lipschitz_rnn.py": ("torch",),
    "test_lipschitz_stability.py": ("torch",),
    "test_lru.py": ("torch",),
    "test_lssl.py": ("torch",),
    "test_lssl_measures.py": ("torch",),
    "test_models.py": ("torch",),
    "test_models_of_pages.py": (),
    "test_moves.py": ("torch",),
    "test_native_carried_response.py": ("torch",),
    "test_native_compilers.py": (),
    "test_native_impulse_response.py": ("torch",),
    "test_native_varying_response.py": ("torch",),
    "test_nlp.py": ("torch",),
    "test_nlp_examples.py": ("torch",),
    "test_nlp_generation.py": ("torch",),
    "test_nlp_texts.py": ("torch",),
    "test_optimizers.py": (),
    "test_orthogonal_rnn.py": ("torch",),
    "test_pallas.py": (),
    "test_prebuilt.py": (),
    "test_promises_of_weights.py": ("torch",),
    "test_properties.py": ("torch",),
    "test_recipe_tasks.py": (),
    "test_release.py": (),
    "test_reproduce.py": (),
    "test_residual_block.py": ("torch",),
    "test_rnn.py": ("torch",),
    "test_robustness.py": ("torch",),
    "test_sampling_rates.py": ("torch",),
    "test_saved_files.py": ("torch",),
    "test_saving.py": ("torch",),
    "test_scan_properties.py": ("torch",),
    "test_sections.py": ("torch",),
    "test_self_test.py": (),
    "test_sequence_model_chunks.py": ("torch",),
    "test_sequential_digits.py": (),
    "test_set_later.py": ("torch",),
    "test_serve_stream.py": (),
    "test_small_numbers.py": ("torch",),
    "test_soak.py": (),
    "test_stable_examples.py": ("torch",),
    "test_state_norms.py": ("torch",),
    "test_stored_values.py": ("torch",),
    "test_task_guides.py": (),
    "test_threads.py": ("torch",),
    "test_three_tones.py": ("torch",),
    "test_torch_compile.py": (),
}
# Examples, models, and what follows from parts that the rest tests under each
# backend: JAX and TensorFlow compile these for 30 minutes.
WEEKLY_UNDER = {
    "test_arguments.py": COMPILING,
    "test_averaging_models.py": COMPILING,
    "test_defaults.py": COMPILING,
    "test_dense_parts.py": COMPILING,
    "test_ldstack_examples.py": COMPILING,
    "test_nlp.py": COMPILING,
    "test_nlp_examples.py": COMPILING,
    "test_nlp_generation.py": COMPILING,
    "test_nlp_texts.py": COMPILING,
    "test_optimizers.py": COMPILING,
    "test_robustness.py": COMPILING,
    "test_sampling_rates.py": COMPILING,
    "test_sequence_model_chunks.py": COMPILING,
    "test_sequential_digits.py": COMPILING,
    "test_soak.py": COMPILING,
    "test_stable_examples.py": COMPILING,
    "test_state_norms.py": COMPILING,
    "test_three_tones.py": COMPILING,
}
# Docstring examples, whose layers are tested under every backend elsewhere:
# weekly under the other backends.
EXAMPLES_SELECTED_UNDER = ("torch",)


def standing_for_all(values, chosen, backends=COMPILING, part=REST):
    """Parameters of which only `chosen` are in the selection.

    Args:
        values: the parameters, each a value or a tuple of values.
        chosen: those that are in the selection under every backend.
        backends: where the others are left to the rest; none for all
            backends.
        part: what the others are left to. Defaults to the rest.
    """
    left = getattr(pytest.mark, part)(*backends)
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[] if value in chosen else left,
        )
        for value in values
    ]


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "rest(*backends): not in the selection under these backends, or any",
    )
    config.addinivalue_line(
        "markers", "weekly(*backends): on Saturdays under these, or any"
    )
    files = {path.name for path in TESTS.rglob("test_*.py")}
    missing = [
        name
        for name in (*ONLY_UNDER, *SELECTED_UNDER, *WEEKLY_UNDER)
        if name not in files
    ]
    if missing:
        raise pytest.UsageError(
            "tests/selection.py should name files of tests/. "
            f"Received: {', '.join(missing)}"
        )


def pytest_ignore_collect(collection_path):
    """True for a file from which this process takes no test."""
    if collection_path.suffix != ".py":
        return None
    taken = is_taken(collection_path) and in_slice(collection_path)
    return None if taken else True


def pytest_collection_modifyitems(config, items):
    if part == ALL:
        return
    taken = {True: [], False: []}
    for item in items:
        taken[part_of(item) == part].append(item)
    config.hook.pytest_deselected(items=taken[False])
    items[:] = taken[True]


def backend():
    return os.environ["KERAS_BACKEND"]


def is_taken(path):
    """Whether this part of the tests includes tests of a file."""
    return selected_here(path) if part == SELECTION else runs_here(path)


def runs_here(path):
    """Whether a file has tests that apply to this backend."""
    if path.is_relative_to(PACKAGE):
        return True
    is_test = path.name.startswith("test_")
    return is_test and ONLY_UNDER.get(path.name, backend()) == backend()


def selected_here(path):
    """Whether the selection includes tests of a file under this backend."""
    if path.is_relative_to(PACKAGE):
        return backend() in EXAMPLES_SELECTED_UNDER
    selected_under = SELECTED_UNDER.get(path.name, (backend(),))
    return runs_here(path) and backend() in selected_under


def part_of(item):
    """The part that has a test under this backend."""
    if is_marked(item, WEEKLY) or is_weekly(item.path):
        return WEEKLY
    if is_marked(item, REST) or not selected_here(item.path):
        return REST
    return SELECTION


def is_marked(item, name):
    """Whether a mark of this name applies under this backend."""
    marks = item.iter_markers(name)
    return any(not mark.args or backend() in mark.args for mark in marks)


def is_weekly(path):
    """Whether all tests of a file are weekly under this backend."""
    if path.is_relative_to(PACKAGE):
        return backend() not in EXAMPLES_SELECTED_UNDER
    return backend() in WEEKLY_UNDER.get(path.name, ())


def in_slice(path):
    """Whether a file is in this process's slice, `"1/3"` the first of three.

    Files are dealt out in turn; the package's examples count as one file.
    """
    files = [
        path for path in sorted(TESTS.rglob("test_*.py")) if is_taken(path)
    ]
    place = files.index(path) if path in files else len(files)
    return place % slice_count == slice_index - 1
