"""Self-tests over real UCX in a process of their own, and what becomes of those that go wrong."""

import socket
import sys
from pathlib import Path

import pytest

from legato_engine.transfer.link import LinkError
from legato_engine.transfer.selftest import process

LIMIT = 60.0


def judge(fault, limit=LIMIT):
    process.judge([sys.executable, str(Path(__file__).with_name("faulty_child.py")), fault], limit)


@pytest.mark.parametrize("transport", ["TCP", "SharedMemory"])
def test_a_transport_that_works_passes(transport):
    process.check(transport, "127.0.0.1")


def test_it_keeps_to_the_range_of_ports():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LinkError, match="could not be opened with tcp"):
            process.check("TCP", "127.0.0.1", (port, port))


def test_what_the_machine_lacks_is_the_reason():
    with pytest.raises(LinkError, match="the self-test failed: not a transport: 'Carrier Pigeon'"):
        process.check("Carrier Pigeon", "127.0.0.1")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("crashes", "crashed with SIGSEGV"),
        ("says nothing", "it ended with 0 and no result"),
        ("locks nothing", r"failed: UCX could not register memory \(.*set max locked memory"),
    ],
)
def test_what_becomes_of_a_process_that_goes_wrong_is_named(fault, said):
    with pytest.raises(LinkError, match=said):
        judge(fault)


def test_one_that_cannot_be_started_is_a_reason_too():
    with pytest.raises(LinkError, match="could not be started: No such file"):
        process.judge(["/no/such/program"])


def test_one_that_hangs_is_given_up():
    with pytest.raises(LinkError, match="did not end within"):
        judge("hangs", 0.5)
