"""All that a UCX link listens on lies in the range and at the address it was given."""

import os
import random
import socket
from pathlib import Path

import numpy as np
import pytest
from readiness import wait_readable

from legato_engine.transfer import ucx
from legato_engine.transfer.link import Connected, LinkError, Received
from legato_engine.transfer.ucx import sockets

PATIENCE = 90.0  # seconds until a test gives up; nothing waits this long when all is well


def listening():
    own = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the listing's own
            continue
    found = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        with open(f"/proc/self/net/{table}") as lines:
            rows = [line.split() for line in lines][1:]
        for row in rows:
            if row[3] == "0A" and f"socket:[{row[9]}]" in own:
                address, _, port = row[1].rpartition(":")
                words = [bytes.fromhex(address)[i : i + 4][::-1] for i in range(0, len(address) // 2, 4)]
                found.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


@pytest.fixture
def opened():
    """Opens two links; and their addresses and ports, of which none is left once they are closed."""
    memory, before, links = np.zeros(4096, np.uint8), listening(), []

    def open_two(transport, host, *ports):
        links.extend(ucx.open(transport, host, memory.ctypes.data, 4096, *ports) for _ in range(2))
        found = listening() - before
        assert {int(link.address.rpartition(b":")[2]) for link in links} <= {port for _, port in found}
        return links, found

    yield open_two
    for link in links:
        link.close()
    assert not listening() - before


def test_links_listen_only_on_the_ports_they_were_given(opened):
    low = random.randrange(20000, 30000, 64)
    _, found = opened("TCP", "127.0.0.1", (low, low + 63))
    assert len(found) >= 2
    assert all(low <= port < low + 64 for _, port in found), found


def own_addresses():
    """The first IPv4 address of each interface, as a pod has one beside 127.0.0.1; and IPv6's loopback. A bridge
    without a container is down."""
    states = Path("/sys/class/net")
    found = [each for each in sockets.addresses() if (states / each[0] / "operstate").read_text() != "down\n"]
    first = {name: address for name, address in reversed(found) if ":" not in address}
    return sorted({*first.values(), *(address for _, address in found if address == "::1")})


@pytest.mark.parametrize("transport", ["TCP", "SharedMemory"])
@pytest.mark.parametrize("host", own_addresses())
def test_links_listen_only_at_the_address_they_were_given_and_reach_each_other_there(opened, host, transport):
    (a, b), found = opened(transport, host)
    assert {address for address, _ in found} == {host}
    a.send(a.connect(b.address), b"hi")
    seen = []
    while Received not in seen and wait_readable([b.fileno()], PATIENCE):
        seen += [type(event) for event in b.poll()]
    assert seen == [Connected, Received]


def test_an_address_of_another_machine_is_refused():
    memory = np.zeros(4096, np.uint8)
    with pytest.raises(LinkError, match=r"not an address of this machine.*127\.0\.0\.1"):
        ucx.open("TCP", "198.51.100.1", memory.ctypes.data, 4096)
