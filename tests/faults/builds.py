"""Faults while native code is built: kills, full disks, crowds and clocks.

A stand-in for the compiler writes the libraries, in a cache of its own.
"""

import os
import random
import signal
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

from faults.disks import small_disk
from faults.forks import Child
from keras_linrec.kernels.native import build

# Kills itself from the call on whose number is in the file `fatal`, unless 0.
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo stand-in; exit; fi
echo "$@" >> {folder}/calls
fatal=$(cat {folder}/fatal)
if [ $fatal -gt 0 ] && [ $(wc -l < {folder}/calls) -ge $fatal ]; then
    kill -9 $$
fi
sleep {seconds}
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


class Place:
    """A compiler and a cache in a folder of their own."""

    def __init__(self, folder, seconds):
        self.folder, self.cache = Path(folder), Path(folder) / "cache"
        self.calls, self.fatal = self.folder / "calls", self.folder / "fatal"
        self.is_fatal_at(0)
        path = self.folder / "compiler"
        path.write_text(COMPILER.format(folder=folder, seconds=seconds))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.environment = {
            "CXX": str(path),
            "KERAS_LINREC_CACHE_DIR": str(self.cache),
        }

    def is_fatal_at(self, call):
        self.calls.write_text("")
        self.fatal.write_text(str(call))

    def links(self):
        return self.calls.read_text().count("-shared")

    def left_over(self):
        return list(self.cache.rglob("build-*"))


@contextmanager
def place(seconds=0):
    with tempfile.TemporaryDirectory() as folder:
        made = Place(folder, seconds)
        before = {name: os.environ.get(name) for name in made.environment}
        os.environ.update(made.environment)
        # It says that it compiles, hundreds of times.
        announce, build._announce = build._announce, lambda text: None
        try:
            yield made
        finally:
            build._announce = announce
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def answer(report):
    """Report the library that is found or built, or the error."""
    try:
        report(build.library("core"))
    except build.BuildError as failure:
        report(f"BuildError: {failure}")


def killed_compilers(tries, seed):
    """The compiler is killed in one of its calls; the next attempt builds."""
    draw, survived = random.Random(seed), 0
    calls = len(build._recipe("core").objects) + 1
    for _ in range(tries):
        with place() as here:
            here.is_fatal_at(draw.randint(1, calls))
            _, (first,) = Child(answer).end(60)
            here.is_fatal_at(0)
            _, (second,) = Child(answer).end(60)
            survived += (
                "killed by signal 9" in first
                and second.endswith(".so")
                and not here.left_over()
            )
    return survived, tries


def killed_builders(tries, seed):
    """The process that builds is killed; the next one builds."""
    draw, survived = random.Random(seed), 0
    for _ in range(tries):
        with place(0.01) as here:
            code, _ = Child(answer).end(draw.uniform(0, 0.25))
            assert code in (0, -signal.SIGKILL)
            # Its compilers may still be writing.
            _, (second,) = Child(answer).end(60)
            survived += second.endswith(".so") and not here.left_over()
    return survived, tries


def crowds(processes):
    """Processes that start at once with an empty cache build once."""
    with place(0.1) as here:
        children = [Child(answer) for _ in range(processes)]
        answers = [child.end(300) for child in children]
        paths = {lines[-1] for _, lines in answers if lines}
        good = sum(
            code == 0 and lines[-1].endswith(".so") for code, lines in answers
        )
        assert len(paths) == 1 and here.links() == 1, (paths, here.links())
    return good, processes


def clocks(seed):
    """Files of the cache that are older or newer than any clock says."""
    draw, survived, tries = random.Random(seed), 0, 20
    with place() as here:
        for _ in range(tries):
            _, (path,) = Child(answer).end(60)
            for file in here.cache.rglob("*"):
                moment = draw.choice([0, 2**31 - 1, 2**33])
                os.utime(file, (moment, moment))
            survived += path.endswith(".so") and here.links() == 1
    return survived, tries


def full_disks(tries):
    """The cache's disk is full while it builds; once it is not, it builds."""
    survived = 0
    for size in range(tries):
        with place() as here, small_disk(size) as (folder, is_small):
            if not is_small:
                return 0, 0
            os.environ["KERAS_LINREC_CACHE_DIR"] = str(folder)
            _, (first,) = Child(answer).end(60)
            (folder / "filler").unlink()
            _, (second,) = Child(answer).end(60)
            refused = first.startswith("BuildError") or first.endswith(".so")
            survived += refused and second.endswith(".so")
            del here
    return survived, tries
