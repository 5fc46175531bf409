"""Connections to the transfer port that nobody closes are counted."""

import os
import socket
import time

import numpy as np
import pytest

from legato_engine.server import transfer_port
from legato_engine.transfer.ucx import strangers
from legato_engine.transfer.ucx.link import UcxLink
from legato_engine.transfer.ucx.transports import choose

PATIENCE = 20.0  # seconds until a test gives up; nothing waits this long when all is well


@pytest.mark.parametrize("address", [b"", b"memory", b"127.0.0.1:"])
def test_a_worker_without_a_transfer_port_has_no_such_connections(address: bytes) -> None:
    assert transfer_port.abandoned(address) == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_that_the_peer_has_closed_are_counted_by_port(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server, socket.create_server((host, 0), family=family):
        address = f"{host}:{server.getsockname()[1]}".encode()
        first, second = (socket.create_connection(server.getsockname()[:2]) for _ in range(2))
        kept = [server.accept()[0] for _ in range(2)]
        assert transfer_port.abandoned(address) == 0
        first.close()
        assert kept[0].recv(1) == b""
        assert transfer_port.abandoned(address) == 1
        for end in (second, *kept):
            end.close()


def test_what_ucx_keeps_after_foreign_bytes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "INTERVAL", 10 * PATIENCE)
    memory = np.zeros(1 << 16, np.uint8)
    link = UcxLink(choose("TCP"), "127.0.0.1", memory.ctypes.data, memory.nbytes, None)
    host, port = link.address.decode().rsplit(":", 1)
    for _ in range(3):
        with socket.create_connection((host, int(port))) as foreign:
            foreign.sendall(b"\xff" * 4096)
    give_up = time.monotonic() + PATIENCE
    while transfer_port.abandoned(link.address) < 3 and time.monotonic() < give_up:
        link.poll()
        os.sched_yield()
    assert transfer_port.abandoned(link.address) == 3
    address = link.address
    link.close()
    assert transfer_port.abandoned(address) == 0
