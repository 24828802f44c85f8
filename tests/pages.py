"""The code in Markdown pages.

The info string of a fence decides how a block is tested: "python" blocks run
one after another in one namespace, as a reader would type them;
"{.python .jax}" blocks do so in a separate process under JAX with eight
devices; "{.python .not-run}" blocks are not run.
"""

import os
import re
import subprocess
import sys

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)

RUN = "python"
RUN_UNDER_JAX = "{.python .jax}"
LANGUAGES = {RUN, RUN_UNDER_JAX, "{.python .not-run}", "console", "sh", "text"}


def blocks(page):
    """(language, code) of each block, padded to the page's line numbers."""
    text = page.read_text()
    return [
        (found[1], "\n" * text.count("\n", 0, found.start(2)) + found[2])
        for found in _FENCE.finditer(text)
    ]


def has_code(page):
    """Whether the page has code to run."""
    return any(kind in (RUN, RUN_UNDER_JAX) for kind, _ in blocks(page))


def run(page):
    """Run the page's Python blocks and return the names that they define."""
    names = {}
    for language, code in blocks(page):
        if language == RUN:
            exec(compile(code, str(page), "exec"), names)
    code = "\n".join(c for kind, c in blocks(page) if kind == RUN_UNDER_JAX)
    if code:
        _run_under_jax(code)
    return names


def _run_under_jax(code):
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            **os.environ,
            "KERAS_BACKEND": "jax",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
