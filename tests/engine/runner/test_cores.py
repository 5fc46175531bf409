"""Threads of a step have a core each, where there are as many cores as threads, and nothing else is bound."""

import json
import os
import subprocess
import sys

import pytest

# For each case of (threads, more cores), in a process of its own, prints the cores of the threads that compute, of all
# others, and of one that is started afterwards, before and after its release; whether the first is the caller's; and
# how many threads torch has started since.
PROGRAM = """
import json
import os
import sys
import threading

import numba
import torch

from legato_engine.kernels.cpu.thread_ids import thread_ids
from legato_engine.runner import cores


def of(*threads):
    return [sorted(os.sched_getaffinity(thread)) for thread in threads]


def threads():
    return set(map(int, os.listdir("/proc/self/task")))


def run(count, more):
    numba.set_num_threads(count)
    torch.set_num_threads(count)
    cores._allowed |= set(more)
    cores.bind()
    before, later = threads(), []
    torch.zeros(1 << 20).exp_()
    started = len(threads() - before)
    ids = thread_ids(count).tolist()
    child = threading.Thread(target=lambda: later.extend(of(0) + [cores.release()] + of(0)))
    child.start()
    child.join()
    mine = ids[0] == threading.get_native_id()
    print(json.dumps([of(*ids), of(*before - set(ids)), [later[0], later[2]], mine, started]), flush=True)


for case in json.loads(sys.argv[1]):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    thread = threading.Thread(target=run, args=case)  # as in a worker, not the first thread of the process
    thread.start()
    thread.join()
    os._exit(0)
"""
CASES = [(2, []), (1, []), (2, [1000])]  # threads, and cores that the process may use beside its two

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="one core")


@pytest.fixture(scope="module")
def found():
    """By case, on two cores."""
    started = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(CASES)],
        preexec_fn=lambda: os.sched_setaffinity(0, CORES[:2]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert started.stdout, started.stderr
    return [json.loads(line) for line in started.stdout.splitlines()]


def test_as_many_threads_as_cores_have_one_each(found):
    first, second = CORES[:2]
    computing, others, later, mine, started = found[0]
    assert computing == [[first], [second]]
    assert all(each == [first, second] for each in others)
    assert later == [[first], [first, second]], "until it is released"
    assert mine
    assert not started, "threads of torch would be bound as the one that starts them"


@pytest.mark.parametrize("case", [1, 2])
def test_otherwise_the_choice_is_the_systems(found, case):
    computing, others, later, _, _ = found[case]
    assert len(computing) == CASES[case][0]
    assert all(each == CORES[:2] for each in computing + others + later)
