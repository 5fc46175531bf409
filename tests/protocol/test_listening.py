"""`::` answers both IP families, as probes and gateways of either ask for, and IPv4 where a machine has no IPv6."""

import socket

import pytest

from legato_engine.server import listen
from legato_gateway.http import server
from legato_protocol.process import listening

LISTEN = {
    "protocol": lambda: listening.listen(listening.EVERY_ADDRESS, 0, 1),
    "gateway": lambda: server._bound("::", 0, "--port"),
    "worker": lambda: listen.bind("--health-port", "::", 0),
}


@pytest.mark.parametrize("process", LISTEN)
@pytest.mark.parametrize(("ipv6", "reached"), [(True, ["127.0.0.1", "::1"]), (False, ["127.0.0.1"])])
def test_every_address_is_listened_on(monkeypatch, process, ipv6, reached):
    if ipv6 and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: ipv6)
    with LISTEN[process]() as listener:
        for host in reached:
            socket.create_connection((host, listener.getsockname()[1])).close()
