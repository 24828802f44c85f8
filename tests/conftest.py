"""What every test shares."""

import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).parent))

collect_ignore = ["run.py", "file_worker.py"]
if os.environ["KERAS_BACKEND"] != "jax":
    # It starts a process for every backend itself: once is enough.
    collect_ignore.append("test_files_across_backends.py")
