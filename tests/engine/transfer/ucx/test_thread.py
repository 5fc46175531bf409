"""The UCX thread and its link: endpoints that misbehave, and events that come from a thread of its own."""

from itertools import count
from types import SimpleNamespace

import pytest

from legato_engine.transfer.link import LinkError
from legato_engine.transfer.ucx import thread
from legato_engine.transfer.ucx.endpoint import UcxEndpoint
from legato_engine.transfer.ucx.thread import UcxThread


def test_an_endpoint_that_never_closes_ends_the_thread_instead_of_hanging_it(monkeypatch):
    monkeypatch.setattr(thread, "CLOSING_PATIENCE", 0.0)
    stuck = SimpleNamespace(number=7, handle=1, close=lambda: None, is_closed=lambda: False)
    running = UcxThread(count(), None, lambda event: None, lambda error: None)
    running._endpoints, running._by_handle = {7: stuck}, {1: 7}
    running._worker = SimpleNamespace(progress_once=lambda: None)
    with pytest.raises(LinkError, match="endpoint 7 did not close"):
        running.fence(7)


@pytest.fixture
def endpoint():
    return UcxEndpoint(1, 1, None, ("127.0.0.1", 1))  # it calls UCX only to send, put and close


def numbered(number, data=b"x"):
    return number.to_bytes(8, "little") + data


def test_messages_that_overtook_another_wait_for_it_and_one_that_came_before_is_refused(endpoint):
    for number in (2, 1):
        endpoint.take(numbered(number, b"%d" % number))
    assert list(endpoint.take_ordered()) == []
    endpoint.take(numbered(0, b"0"))
    assert list(endpoint.take_ordered()) == [b"0", b"1", b"2"]
    with pytest.raises(LinkError):
        endpoint.take(numbered(0))


@pytest.mark.parametrize("number", [1 << 40, (1 << 64) - 2, 4096])
def test_a_message_that_cannot_have_overtaken_so_many_is_refused(endpoint, number):
    with pytest.raises(LinkError, match=f"message {number} came, where 0 is next"):
        endpoint.take(numbered(number))


def test_waiting_messages_are_bounded_in_bytes_and_those_taken_do_not_count(endpoint):
    mebibyte = bytes(1 << 20)
    for number in range(200):
        endpoint.take(numbered(number, mebibyte))
        assert len(list(endpoint.take_ordered())) == 1
    early = (endpoint.take(numbered(number, mebibyte)) for number in range(201, 300))
    with pytest.raises(LinkError):
        list(early)
