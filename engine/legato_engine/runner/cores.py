"""Gives each thread of a step a processor core of its own, if there are as many cores as threads.

The threads of a step wait for each other some 240 times. If another process of any priority runs on one of two cores,
Linux may leave both threads on the other core for seconds: a decode step of SmolLM2 then took 149 ms instead of 18 ms.
With more cores than threads, as on a node that several workers share, Linux chooses.
"""

import os

import numba
import torch

from legato_engine.backends.sharded.rank import ALONE, Rank
from legato_engine.kernels.cpu.thread_ids import thread_ids

_allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
_MANY = 1 << 18  # numbers that torch computes with all its threads


def prepare() -> None:
    """Compiles the kernel that `bind` calls."""
    thread_ids(1)


def bind(rank: Rank = ALONE) -> None:
    """Binds the calling thread and its compute threads to a core each, if there are as many cores as threads of all
    ranks.

    Threads that the calling thread starts later inherit its core, unless they call `release`.
    """
    count = numba.get_num_threads()
    if count * rank.count != len(_allowed):
        return
    torch.zeros(_MANY).exp_()  # starts torch's own threads first: they must not inherit the core
    ids = thread_ids(count).tolist()
    if len(set(ids)) == count:
        for core, thread in zip(sorted(_allowed)[rank.index * count :], ids, strict=False):
            os.sched_setaffinity(thread, {core})


def release() -> None:
    """Lets the calling thread run on any core again."""
    if _allowed:
        os.sched_setaffinity(0, _allowed)
