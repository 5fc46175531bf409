"""Connections to a transfer port over which no worker speaks end, and cost no time; those of workers stay."""

import contextlib
import os
import socket
import time

import numpy as np
import pytest
from readiness import wait_readable

from legato_engine.server import transfer_port
from legato_engine.transfer.link import Connected, Received
from legato_engine.transfer.ucx import sockets, strangers
from legato_engine.transfer.ucx.link import UcxLink
from legato_engine.transfer.ucx.transports import choose

PATIENCE = 90.0  # seconds until a test gives up; nothing waits this long when all is well


@pytest.fixture
def links(monkeypatch):
    monkeypatch.setattr(strangers, "INTERVAL", 0.2)
    opened, memory = [], np.zeros(1 << 16, np.uint8)

    def open_link(host):
        opened.append(UcxLink(choose("TCP"), host, memory.ctypes.data, memory.nbytes, None))
        return opened[-1]

    yield open_link
    for link in opened:
        link.close()


def until(condition):
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up
        os.sched_yield()


def heard(link, kind):
    found = []

    def came():
        found.extend(event for event in link.poll() if isinstance(event, kind))
        return found

    until(came)
    return found[0]


def knock(link, sent):
    host, port = sockets.split(link.address)
    stranger = socket.create_connection((host, port))
    stranger.sendall(sent)
    return stranger


def until_ended(stranger):
    """It is reset, or closed by UCX by itself."""
    stranger.settimeout(PATIENCE)
    with stranger, contextlib.suppress(ConnectionResetError):
        assert stranger.recv(1) == b""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_strangers_are_reset_and_a_worker_s_connection_is_not(links, host):
    own, other = links(host), links(host)
    number = other.connect(own.address)
    accepted = heard(own, Connected)
    pairs = ((other, number, own), (own, accepted.connection, other))

    def speak():
        for sender, to, receiver in pairs:
            sender.send(to, b"here")
            assert heard(receiver, Received).data == b"here"

    speak()  # so that all sockets of the two are there
    before = len(os.listdir("/proc/self/fd"))
    knocking = [knock(own, sent) for sent in (b"", b"x", b"\xff" * 4096, b"GET / HTTP/1.1\r\n\r\n")]
    knock(own, b"\xff" * 4096).close()
    for stranger in knocking:
        until_ended(stranger)
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert transfer_port.abandoned(own.address) == 0
    speak()


def test_bytes_that_are_none_of_ucx_s_do_not_keep_it_busy(links):
    def spent(*opened):
        before = time.process_time()
        assert not wait_readable(opened, 0.5)
        return time.process_time() - before

    others = spent()  # by threads that earlier tests of this process left
    link = links("127.0.0.1")
    until_ended(knock(link, b"\xff" * 4096))
    until(lambda: spent(link) - others < 0.25)  # on a busy machine, what it does at first takes a while
