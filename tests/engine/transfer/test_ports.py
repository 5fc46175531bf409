"""All that a UCX link listens on lies in the range it was given."""

import os
import random

import numpy as np

from legato_engine.transfer import ucx


def listening():
    """Ports that this process listens on."""
    own = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the listing's own
            continue
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as lines:
            rows = [line.split() for line in lines][1:]
        ports |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}
    return ports


def test_links_listen_only_on_the_ports_they_were_given():
    memory = np.zeros(4096, np.uint8)
    low = random.randrange(20000, 30000, 64)
    before, links = listening(), []
    try:
        links += [ucx.open("TCP", "127.0.0.1", memory.ctypes.data, 4096, (low, low + 63)) for _ in range(2)]
        opened = listening() - before
    finally:
        for link in links:
            link.close()
    assert len(opened) >= 2
    assert all(low <= port < low + 64 for port in opened), opened
    assert {int(link.address.rpartition(b":")[2]) for link in links} <= opened
