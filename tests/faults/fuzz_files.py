"""Damaged and malicious files, by the thousand, from a seed.

    KERAS_BACKEND=torch python tests/faults/fuzz_files.py [COUNT [SEED]]

Changes bytes, archives, configurations and HDF5 of `.keras` files, weights
files and presets, and loads each in a process that may map a GiB more and has
half a minute. It must load, or raise a ValueError that names the file, and
start nothing. Prints what did neither.
"""

import copy
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from pathlib import Path

# A forked process would wait for ever for the threads of PyTorch's runtime.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from faults.forks import Child
from keras_linrec import nlp
from keras_linrec import saving
from keras_linrec.layers import LipschitzRNN
from keras_linrec.layers import RotRNN

MEMORY = 2**30
SECONDS = 30
BATCH = 40
FORBIDDEN = {
    "os.exec",
    "os.posix_spawn",
    "os.system",
    "pickle.find_class",
    "socket.connect",
    "subprocess.Popen",
}
CODE = [
    {
        "class_name": "__lambda__",
        "config": {"value": "aGVsbG8=", "defaults": None, "closure": None},
    },
    {
        "module": "os",
        "class_name": "function",
        "config": "system",
        "registered_name": "system",
    },
    {
        "module": "subprocess",
        "class_name": "Popen",
        "config": {"args": ["touch", "run"]},
        "registered_name": None,
    },
    {
        "module": "keras.layers",
        "class_name": "Lambda",
        "config": {"function": "os.getcwd"},
        "registered_name": None,
    },
]


def sequence_model():
    return keras.Sequential(
        [
            keras.Input((None, 3)),
            RotRNN(4, state_size=4, num_heads=2),
            LipschitzRNN(2),
        ]
    )


class Mutator:
    """Changes of files, drawn from a seed."""

    def __init__(self, seed):
        self.draw = random.Random(seed)

    def damaged(self, content):
        """Bytes with a few of them changed, removed or added."""
        content = bytearray(content)
        for _ in range(self.draw.choice([1, 1, 2, 8])):
            place = self.draw.randrange(len(content) + 1)
            length = self.draw.choice([1, 1, 2, 4, 8, 64, 1000])
            other = bytes(
                self.draw.choice([0, 255, self.draw.randrange(256)])
                for _ in range(length)
            )
            kind = self.draw.choice(
                ["change", "change", "remove", "add", "cut"]
            )
            if kind == "cut":
                del content[place:]
            else:
                end = place if kind == "add" else place + length
                content[place:end] = b"" if kind == "remove" else other
        return bytes(content)

    def value(self):
        """What a configuration does not expect."""
        deep = []
        for _ in range(self.draw.choice([1, 50, 200])):
            deep = [deep]
        return copy.deepcopy(
            self.draw.choice(
                [
                    *(None, True, False, 0, 1, -1, 0.5, 10**6, 2**24, 10**12),
                    *(-(10**12), 1e300, float("nan"), float("inf"), 10**400),
                    *("", "x", "x" * 10**5, "../../etc", "os.system", "\0"),
                    *([], {}, [1, 2], {"a": 1}, deep, *CODE),
                ]
            )
        )

    def configuration(self, text):
        """JSON in which a value is replaced or missing, or a key is added."""
        whole = json.loads(text)
        for _ in range(self.draw.choice([1, 1, 1, 3])):
            places = list(nodes(whole))
            holder, key = self.draw.choice(places)
            kind = self.draw.choice(
                ["set", "set", "set", "remove", "add", "swap"]
            )
            if kind == "set":
                holder[key] = self.value()
            elif kind == "swap":
                other, name = self.draw.choice(places)
                holder[key] = copy.deepcopy(other[name])
            elif kind == "remove":
                del holder[key]
            elif isinstance(holder, dict):
                holder[f"added_{self.draw.randrange(9)}"] = self.value()
        return json.dumps(whole)

    def weights(self, content):
        """HDF5 with a dataset or a group that is not what it was."""
        file = io.BytesIO(content)
        with h5py.File(file, "r+") as groups:
            names = []
            groups.visit(names.append)
            if not names:
                return self.damaged(content)
            name = self.draw.choice(names)
            node = groups[name]
            kind = self.draw.choice(
                ["remove", "array", "group", "huge", "link", "outside", "scale"]
            )
            if kind == "scale" and isinstance(node, h5py.Dataset):
                with np.errstate(all="ignore"):
                    node[...] = node[...] * self.draw.choice(
                        [np.nan, np.inf, 1e30, -1, 0]
                    )
                return content_of(groups, file)
            del groups[name]
            if kind == "array":
                groups[name] = self.array()
            elif kind == "group":
                groups.create_group(name + "/vars/0")
            elif kind == "huge":
                groups.create_dataset(
                    name, (10**6, 10**6), "f4", chunks=(1000, 1000)
                )
            elif kind == "link":
                groups[name] = h5py.SoftLink(
                    self.draw.choice(["/", "/nothing"])
                )
            elif kind == "outside":
                groups[name] = h5py.ExternalLink("/etc/passwd", "/")
            return content_of(groups, file)

    def array(self):
        shape = self.draw.choice([(), (0,), (2, 7), (4,), (4, 4), (1, 2, 3)])
        kind = self.draw.choice(["f2", "f8", "i8", "u1", "c16", "S3", "?"])
        return np.ones(shape).astype(kind)

    def archive(self, content):
        """A zip file with a member that is changed, missing or misnamed."""
        source = zipfile.ZipFile(io.BytesIO(content))
        parts = [(name, source.read(name)) for name in source.namelist()]
        index = self.draw.randrange(len(parts))
        name, part = parts[index]
        kind = self.draw.choice(
            ["config", "weights", "remove", "rename", "bytes", "twice", "bomb"]
        )
        changed = {n: i for i, (n, _) in enumerate(parts)}
        if kind == "config":
            index = changed["config.json"]
            parts[index] = "config.json", self.configuration(parts[index][1])
        elif kind == "weights":
            index = changed["model.weights.h5"]
            parts[index] = "model.weights.h5", self.weights(parts[index][1])
        elif kind == "remove":
            del parts[index]
        elif kind == "rename":
            other = ["../x", "/etc/x", "assets/x", "model.weights.npz"]
            parts[index] = self.draw.choice(other), part
        elif kind == "bytes":
            parts[index] = name, self.damaged(part)
        elif kind == "bomb":
            parts[index] = name, bytes(50 * 2**20)
        else:
            parts.append((name, self.damaged(part)))
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, part in parts:
                archive.writestr(name, part)
        return file.getvalue()


def content_of(groups, file):
    groups.flush()
    return file.getvalue()


def nodes(value):
    """Each place of a configuration: what holds a value, and its key."""
    items = ()
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items:
        yield value, key
        yield from nodes(inner)


class Models:
    """`.keras` files."""

    name = "model.keras"

    def __init__(self, folder):
        path = folder / "original.keras"
        sequence_model().save(path)
        self.content = path.read_bytes()

    def write(self, path, mutator):
        change = mutator.draw.choice([mutator.damaged, *3 * [mutator.archive]])
        path.write_bytes(change(self.content))

    def load(self, path):
        saving.load_model(path)


class Weights:
    """Files of weights."""

    name = "model.weights.h5"

    def __init__(self, folder):
        path = folder / "original.weights.h5"
        self.model = sequence_model()
        self.model.save_weights(path)
        self.content = path.read_bytes()

    def write(self, path, mutator):
        change = mutator.draw.choice([mutator.damaged, mutator.weights])
        path.write_bytes(change(self.content))

    def load(self, path):
        saving.load_weights(self.model, path)


class Presets:
    """Folders of KerasHub."""

    name = "preset"

    def __init__(self, folder):
        self.original = folder / "original"
        backbone = nlp.LinRecBackbone(
            259, 1, 4, 8, unit="rotrnn", unit_arguments={"state_size": 4}
        )
        backbone.save_to_preset(str(self.original))

    def write(self, path, mutator):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.original, path)
        file = mutator.draw.choice(sorted(path.iterdir()))
        content = file.read_bytes()
        change = mutator.damaged
        if mutator.draw.random() < 0.7:
            is_text = file.suffix == ".json"
            change = mutator.configuration if is_text else mutator.weights
        changed = change(content)
        file.write_bytes(
            changed.encode() if isinstance(changed, str) else changed
        )

    def load(self, path):
        nlp.LinRecBackbone.from_preset(str(path))


def attempt(kind, path):
    """What loading a file came to, in a word, or the fault."""
    signal.alarm(SECONDS)
    try:
        kind.load(path)
        return "loaded"
    except ValueError as failure:
        if str(path) in str(failure):
            return "refused"
        return f"does not name the file: {failure!r}"
    except BaseException as failure:
        return f"another error: {failure!r}"
    finally:
        signal.alarm(0)


def work(kind, folder, seeds, report):
    """Load a batch of files; report a line for each, and before it its seed."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY,) * 2)
    started = []
    sys.addaudithook(
        lambda event, _: started.append(event) if event in FORBIDDEN else None
    )
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(silence, descriptor)
    os.chdir(folder)
    for seed in seeds:
        path = folder / kind.name
        kind.write(path, Mutator(seed))
        report(f"{seed} began")
        answer = attempt(kind, path)
        if started or (folder / "run").exists():
            answer = f"started {started}"
            started.clear()
        report(f"{seed} " + " ".join(answer.split())[:300])


def fuzz(count, seed, kinds=(Models, Weights, Presets)):
    """Load `count` changed files.

    Returns:
        A dictionary of the numbers of files that were "loaded" and "refused",
        and of all faults, each with its kind and seed.
    """
    totals = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for place, cls in enumerate(kinds):
            kind = cls(folder)
            share = range(place * count // len(kinds))
            share = range(len(share), (place + 1) * count // len(kinds))
            waiting = [seed * 10**6 + index for index in share]
            while waiting:
                batch = waiting[:BATCH]
                child = Child(
                    lambda report, kind=kind, batch=batch: work(
                        kind, folder, batch, report
                    )
                )
                code, lines = child.end(BATCH * SECONDS)
                told = dict(line.split(" ", 1) for line in lines)
                for key, answer in told.items():
                    if answer == "began":
                        answer = f"died with {code}"
                    if answer not in ("loaded", "refused"):
                        answer = f"{kind.name} {key}: {answer}"
                    totals[answer] += 1
                assert told, (code, lines)
                waiting = waiting[len(told) :]
    return dict(totals)


if __name__ == "__main__":
    count, seed = (*map(int, sys.argv[1:]), *(10_000, 0)[len(sys.argv) - 1 :])
    totals = fuzz(count, seed)
    for answer, number in sorted(totals.items()):
        print(number, answer)
    sys.exit(bool(totals.keys() - {"loaded", "refused"}))
