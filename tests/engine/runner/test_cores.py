"""Threads of a step have a core each, where there are as many cores as threads, and nothing else is bound."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
import threading

import numba
import torch

from legato_engine.kernels.thread_ids import thread_ids
from legato_engine.runner import cores


def inherited():
    found = []

    def look():
        found.append(os.sched_getaffinity(0))
        cores.release()
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found


def run():
    numba.set_num_threads({threads})
    torch.set_num_threads({threads})
    everywhere = os.sched_getaffinity(0)
    cores._allowed |= set({more})
    assert cores.bind() == {bound}
    before = set(os.listdir("/proc/self/task"))
    torch.zeros(1 << 20).exp_()
    started = set(os.listdir("/proc/self/task")) - before
    assert not ({bound} and started), "threads of torch that are bound as this one is"
    ids = thread_ids({threads}).tolist()
    assert ids[0] == threading.get_native_id()
    mine = [os.sched_getaffinity(thread) for thread in ids]
    assert set.union(*mine) == everywhere
    assert [len(each) for each in mine] == [1 if {bound} else len(everywhere)] * {threads}
    assert all(os.sched_getaffinity(int(thread)) == everywhere for thread in before - set(map(str, ids)))
    assert inherited() == [mine[0], everywhere]


thread = threading.Thread(target=run)  # as in a worker, not the first thread of the process
failed = []
threading.excepthook = lambda given: failed.append(given.exc_value) or threading.__excepthook__(given)
thread.start()
thread.join()
assert not failed
"""

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def run(threads, bound, cores, more=()):
    program = PROGRAM.format(threads=threads, bound=bound, more=list(more))
    started = subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert started.returncode == 0, started.stderr


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
def test_as_many_threads_as_cores_have_one_each():
    run(2, True, CORES[:2])


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
@pytest.mark.parametrize(("threads", "more"), [(1, []), (2, [1000])])
def test_otherwise_the_choice_is_the_systems(threads, more):
    run(threads, False, CORES[:2], more)
