"""What is particular to the link over UCX: events come from a thread of its own."""

import os

import numpy as np
import pytest
from readiness import wait_readable

from legato_engine.transfer import ucx
from legato_engine.transfer.link import PeerDown

PATIENCE = 20.0


@pytest.fixture
def link():
    memory = np.zeros(4096, np.uint8)
    link = ucx.open("TCP", "127.0.0.1", memory.ctypes.data, 4096)
    yield link
    link.close()


def is_awake(link, seconds=0.0):
    return bool(wait_readable([link], seconds))


def test_an_event_whose_wake_is_still_to_come_is_no_fault(link):
    """The thread may stand still, under SIGSTOP for seconds, after it has queued an event and before it says so."""
    number = link.connect(b"nowhere")
    assert is_awake(link, PATIENCE)
    os.eventfd_read(link.fileno())
    (event,) = link.poll()
    assert isinstance(event, PeerDown)
    assert event.connection == number


def test_a_wake_that_comes_after_its_event_does_not_stay(link):
    """Whoever waits for the link would wait no more: it would spin."""
    os.eventfd_write(link.fileno(), 1)
    assert link.poll() == []
    assert not is_awake(link)
