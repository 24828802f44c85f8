"""The code in Markdown pages.

The info string of a fence decides how a block is tested: "python" blocks run
one after another in one namespace, as a reader would type them;
"{.python .jax}" blocks do so in a separate process under JAX with eight
devices; "{.python .not-run}" blocks are not run.

A comment below a block names replacements that make it small enough for a test,
such as "<!-- tests: 2000 -> 64; epochs=12 -> epochs=1 -->".
"""

import os
import re
import subprocess
import sys

_FENCE = re.compile(
    r"^```([^\n]*)\n(.*?)^```$(?:\n+<!-- tests: (.*?) -->)?", re.M | re.S
)

RUN = "python"
RUN_UNDER_JAX = "{.python .jax}"
LANGUAGES = {RUN, RUN_UNDER_JAX, "{.python .not-run}", "console", "sh", "text"}


def blocks(page, small=False):
    """(language, code) of each block, padded to the page's line numbers.

    Args:
        page: the path.
        small: whether to make the replacements below the blocks.
    """
    text = page.read_text()
    found = []
    for fence in _FENCE.finditer(text):
        code = fence[2]
        if small and fence[3]:
            code = _replaced(code, fence[3].split("; "), page)
        before = "\n" * text.count("\n", 0, fence.start(2))
        found.append((fence[1], before + code))
    return found


def _replaced(code, replacements, page):
    for replacement in replacements:
        large, small = replacement.split(" -> ")
        assert large in code, f"{page} has no {large} to replace"
        code = code.replace(large, small)
    return code


def has_code(page):
    """Whether the page has code to run."""
    return any(kind in (RUN, RUN_UNDER_JAX) for kind, _ in blocks(page))


def run(page):
    """Run the page's Python blocks and return the names that they define."""
    names = {}
    for language, code in blocks(page, small=True):
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
