"""The thread that steps are computed in."""

import threading

import pytest
from readiness import wait_readable

from legato_engine.core.compute import ComputeThread

PATIENCE = 90.0  # seconds until a test gives up; nothing waits this long when all is well


@pytest.fixture
def compute():
    made = ComputeThread()
    yield made
    made._thread.shutdown()
    made._done.close()


def result(compute):
    assert wait_readable([compute], PATIENCE)
    return compute.result()


def test_a_step_is_reported_when_it_is_done_and_once(compute):
    go = threading.Event()
    compute.start(lambda: ((), ()) if go.wait(PATIENCE) else None)
    assert compute.result() is None
    go.set()
    assert result(compute) == ((), ())
    assert compute.result() is None


def test_an_error_of_a_step_reaches_the_loop(compute):
    compute.start(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        result(compute)


def test_all_is_computed_in_one_thread_that_is_not_the_callers(compute):
    first = compute.call(threading.get_ident)
    compute.start(threading.get_ident)
    assert result(compute) == first != threading.get_ident()
