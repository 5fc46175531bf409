"""What an endpoint of the UCX link takes from its peer."""

import pytest

from legato_engine.transfer.link import LinkError
from legato_engine.transfer.ucx.endpoint import UcxEndpoint


@pytest.fixture
def endpoint():
    return UcxEndpoint(1, 1, None, ("127.0.0.1", 1))  # it calls UCX only to send, put and close


def numbered(number, data=b"x"):
    return number.to_bytes(8, "little") + data


def test_messages_that_overtook_another_wait_for_it(endpoint):
    for number in (2, 1):
        endpoint.take(numbered(number, b"%d" % number))
    assert list(endpoint.received()) == []
    endpoint.take(numbered(0, b"0"))
    assert list(endpoint.received()) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("number", [1 << 40, (1 << 64) - 2, 4096])
def test_a_message_that_cannot_have_overtaken_so_many_is_refused(endpoint, number):
    with pytest.raises(LinkError, match=f"message {number} came, where 0 is next"):
        endpoint.take(numbered(number))


def test_a_message_that_came_before_is_refused(endpoint):
    endpoint.take(numbered(0))
    assert list(endpoint.received()) == [b"x"]
    with pytest.raises(LinkError):
        endpoint.take(numbered(0))


def test_what_waits_is_bounded_in_bytes_and_what_was_taken_does_not_count(endpoint):
    mebibyte = bytes(1 << 20)
    for number in range(200):
        endpoint.take(numbered(number, mebibyte))
        assert len(list(endpoint.received())) == 1
    early = (endpoint.take(numbered(number, mebibyte)) for number in range(201, 300))
    with pytest.raises(LinkError):
        list(early)
