"""Cores of a process's threads while it computes steps; called by `uninterpreted`."""

import os
import threading
from typing import Any

import numba
import torch

from legato_engine.kernels.cpu.thread_ids import thread_ids
from legato_engine.runner import cores


def bind(two: list[int], threads: int, more: list[int]) -> list[Any]:
    """Binds this number of threads to these two cores, where the process may also use the cores `more`.

    Returns the cores of the threads that compute, of all other threads, and of a thread that is started
    afterwards, before and after its release; True if the first computing thread is the caller; and the number of
    threads that torch has started since.
    """
    os.sched_setaffinity(0, two)
    cores._allowed = {*two, *more}
    observed: list[Any] = []
    thread = threading.Thread(target=_bind, args=(threads, observed))  # as in a worker: not the process's first thread
    thread.start()
    thread.join()
    return observed


def _bind(threads: int, observed: list[Any]) -> None:
    numba.set_num_threads(threads)
    torch.set_num_threads(threads)
    cores.bind()
    before, later = _threads(), list[Any]()
    torch.zeros(1 << 20).exp_()
    started = len(_threads() - before)
    ids = thread_ids(threads).tolist()
    child = threading.Thread(target=lambda: later.extend([*_cores(0), cores.release(), *_cores(0)]))
    child.start()
    child.join()
    mine = ids[0] == threading.get_native_id()
    observed += [_cores(*ids), _cores(*before - set(ids)), [later[0], later[2]], mine, started]


def _cores(*threads: int) -> list[list[int]]:
    return [sorted(os.sched_getaffinity(thread)) for thread in threads]


def _threads() -> set[int]:
    return set(map(int, os.listdir("/proc/self/task")))
