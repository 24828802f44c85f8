"""Threads that begin together."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

THREADS = 8


def in_threads(work):
    """The results of `work(index)` from threads that begin together."""
    barrier = Barrier(THREADS)

    def begin(index):
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))
