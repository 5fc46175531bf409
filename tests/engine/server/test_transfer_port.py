"""Connections to the transfer port that nobody closes are counted."""

import socket

import pytest

from legato_engine.server import transfer_port


@pytest.mark.parametrize("address", [b"", b"memory", b"127.0.0.1:"])
def test_a_worker_without_a_transfer_port_has_no_such_connections(address):
    assert transfer_port.abandoned(address) == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_that_the_peer_has_closed_are_counted_by_port(host):
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
