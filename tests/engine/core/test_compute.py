"""The thread that steps are computed in."""

import os
import threading

import pytest
from readiness import wait_readable

from legato_engine.core.compute import ComputeThread

PATIENCE = 20.0  # seconds until a test gives up; nothing waits this long when all is well


@pytest.fixture
def compute():
    made = ComputeThread()
    yield made
    made._thread.shutdown()
    made._done.close()


def wait(compute):
    assert wait_readable([compute], PATIENCE)


def test_a_step_is_told_of_when_it_is_done_and_once(compute):
    go = threading.Event()
    compute.start(lambda: ((), ()) if go.wait(PATIENCE) else None)
    assert compute.result() is None
    go.set()
    wait(compute)
    assert compute.result() == ((), ())
    assert compute.result() is None


def test_what_a_step_raises_reaches_the_loop(compute):
    compute.start(lambda: 1 // 0)
    wait(compute)
    with pytest.raises(ZeroDivisionError):
        compute.result()


def test_all_is_computed_in_one_thread_beside_the_callers(compute):
    first = compute.call(threading.get_ident)
    compute.start(lambda: threading.get_ident())
    wait(compute)
    assert compute.result() == first != threading.get_ident()


def test_the_thread_and_those_that_it_starts_give_way_to_others():
    compute = ComputeThread(niceness=5)
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    found = []

    def start_another():
        thread = threading.Thread(target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
        thread.start()
        thread.join()
        return os.getpriority(os.PRIO_PROCESS, 0)

    assert compute.call(start_another) == min(19, mine + 5)
    assert found == [min(19, mine + 5)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine
    compute._thread.shutdown()
    compute._done.close()
