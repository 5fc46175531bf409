"""Promises of every link, on the one in memory and on UCX between two processes."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from readiness import wait_readable

from legato_engine.transfer import ucx
from legato_engine.transfer.fakes.memory import MemoryLink, Network
from legato_engine.transfer.link import Connected, Fenced, LinkError, PeerDown, PutDone, PutFailed, PutSpan, Received
from legato_engine.transfer.ucx.transports import available_transports

SIZE = 8 << 20
PATIENCE = 90.0  # seconds until a test gives up; nothing waits this long when all is well


class MemorySide:
    """One side of a pair in this process."""

    def __init__(self, network, name):
        self.memory = np.zeros(SIZE, np.uint8)
        self.network = network
        self.link = MemoryLink(network, name, self.memory.ctypes.data, SIZE)
        self.address, self.rkey, self.base = self.link.address, self.link.rkey, self.memory.ctypes.data
        self.fill, self.kill = self.memory.fill, self.link.close
        self.begin, self.end = lambda name, *arguments: getattr(self, name)(*arguments), lambda: None

    def __getattr__(self, name):
        return getattr(self.link, name)

    def put(self, connection, spans, tag):
        self.link.put(connection, [PutSpan(self.base + a, b, n) for a, b, n in spans], tag)

    def read(self, start, length):
        return self.memory[start : start + length].tobytes()

    def events(self, seconds):
        self.network.run(self.network.now + 1.0)
        return self.link.poll()


class ProcessSide:
    """One side of a pair in a process of its own."""

    def __init__(self, transport):
        script = Path(__file__).with_name("link_peer.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), transport, str(SIZE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.address, self.rkey, self.base, self.pid = self.about()

    def begin(self, name, *arguments):
        pickle.dump((name, arguments), self.process.stdin)
        self.process.stdin.flush()

    def end(self):
        return pickle.load(self.process.stdout)

    def __getattr__(self, name):
        return lambda *arguments: (self.begin(name, *arguments), self.end())[1]

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def processes():
    """Two processes per transport, kept from test to test unless one was killed."""
    pairs = {}
    yield pairs
    for pair in pairs.values():
        for side in pair:
            side.close()


LACKING = available_transports()["RDMA"]
RDMA = pytest.param("RDMA", marks=pytest.mark.skipif(bool(LACKING), reason="; ".join(LACKING)))


@pytest.fixture(params=["memory", "TCP", "SharedMemory", RDMA])
def sides(request, processes):
    if request.param == "memory":
        network = Network()
        return [MemorySide(network, name) for name in "ab"]
    pair = processes.setdefault(request.param, [None, None])
    for i, side in enumerate(pair):
        if side is None or side.process.poll() is not None:
            if side is not None:
                side.close()
            pair[i] = ProcessSide(request.param)
    for side in pair:
        side.fill(0)
        while side.events(0.2):
            pass
    return pair


def wait(side, *kinds, seen=None, at=None):
    """Polls until one event of each kind (of connection `at`) came; returns them, and collects all in `seen`."""
    seen = [] if seen is None else seen
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        seen += side.events(0.05)
        mine = [event for event in seen if at in (None, event.connection)]
        found = [next((event for event in mine if isinstance(event, kind)), None) for kind in kinds]
        if None not in found:
            return found
    raise AssertionError(f"only {seen} came, waited for {kinds}")


def join(a, b):
    """Connects a to b and lets both write; returns the connection's name at each."""
    at_a = a.connect(b.address)
    wait(a, Connected)
    a.send(at_a, b"hi")
    at_b = wait(b, Connected, Received)[0].connection
    b.send(at_b, b"hi")
    wait(a, Received)
    a.attach(at_a, b.rkey)
    b.attach(at_b, a.rkey)
    return at_a, at_b


def test_messages_arrive_whole_and_in_order(sides):
    a, b = sides
    at_a, _ = join(a, b)
    sent = [bytes([i]) * (300_000 if i % 3 == 0 else 10 + i) for i in range(12)]
    for data in sent:
        a.send(at_a, data)
    seen = []
    deadline = time.monotonic() + PATIENCE
    while len(seen) < len(sent) and time.monotonic() < deadline:
        seen += [event.data for event in b.events(0.05) if isinstance(event, Received)]
    assert seen == sent


@pytest.mark.parametrize("accepted", [False, True])
def test_a_finished_put_is_in_the_peers_memory_and_nowhere_else(sides, accepted):
    """Both the side that connected and the one that accepted can write."""
    a, b = sides
    at_a, at_b = join(a, b)
    writer, reader, connection = (b, a, at_b) if accepted else (a, b, at_a)
    writer.fill(7)
    spans = [(0, reader.base + 4096, 1000), (5000, reader.base + 2_000_000, 3_000_000)]
    writer.put(connection, spans, 5)
    assert wait(writer, PutDone)[0] == PutDone(connection, 5)
    landed = np.frombuffer(reader.read(0, SIZE), np.uint8)
    expected = np.zeros(SIZE, np.uint8)
    expected[4096:5096] = expected[2_000_000:5_000_000] = 7
    assert np.array_equal(landed, expected)


@pytest.mark.parametrize(
    "address", [b"127.0.0.1:1", b"127.0.0.1:70000", b"127.0.0.1:-1", b"no-address:80", b"", b"\xff\xfe", b"127.0.0.1:0"]
)
def test_connecting_to_nobody_ends_in_peer_down(sides, address):
    """Addresses come from other machines: one that cannot be one is nobody's too."""
    a, b = sides
    connection = a.connect(address)
    assert wait(a, PeerDown, at=connection)
    join(a, b)  # and the link lives on


def test_what_names_no_connection_is_answered_or_ignored(sides):
    a, _ = sides
    a.send(999, b"x")
    a.fence(999)
    a.put(999, [(0, a.base, 8)], 3)
    assert wait(a, PutFailed)[0].tag == 3


def test_a_killed_peer_is_noticed_on_an_idle_connection(sides):
    a, b = sides
    at_a, _ = join(a, b)
    b.kill()
    assert wait(a, PeerDown, at=at_a)
    assert wait(a, PeerDown, at=a.connect(b.address)), "nobody listens there any more"


def test_the_fencing_sides_own_puts_end_before_it_is_fenced(sides):
    a, b = sides
    at_a, _ = join(a, b)
    b.stop()  # so that the puts stay in flight
    for tag in range(4):
        a.put(at_a, [(0, b.base, SIZE)], tag)
    a.fence(at_a)
    seen = []
    wait(a, Fenced, seen=seen)
    b.resume()
    ends = [event for event in seen if isinstance(event, PutDone | PutFailed)]
    assert sorted(event.tag for event in ends) == [0, 1, 2, 3]
    assert isinstance(seen[-1], Fenced)


@pytest.mark.parametrize("pushing", [False, True], ids=["idle", "mid-put"])
def test_nothing_of_a_stopped_sender_lands_after_the_fence(sides, pushing):
    """The sender is stopped, outlives its lease, and writes when it wakes up."""
    a, b = sides
    at_a, at_b = join(a, b)
    a.fill(7)
    b.stop()  # so that the puts stay in flight
    for tag in range(8 * pushing):
        a.put(at_a, [(0, b.base, SIZE)], tag)
    a.stop()
    if not pushing:
        a.begin("put", at_a, [(0, b.base, SIZE)], 99)  # read and written only when it wakes up
    b.resume()
    b.fence(at_b)
    wait(b, Fenced)
    b.fill(1)
    a.resume()
    if not pushing:
        a.end()
    wait(a, PeerDown, PutFailed, at=at_a)  # in either order
    assert b.read(0, SIZE) == b"\x01" * SIZE
    b.events(0.05)  # b's own loop has run on
    assert b.read(0, SIZE) == b"\x01" * SIZE


def test_a_fault_of_the_links_own_is_raised_and_does_not_look_like_silence():
    memory = np.zeros(4096, np.uint8)
    link = ucx.open("TCP", "127.0.0.1", memory.ctypes.data, len(memory))
    link.send(link.connect(link.address), None)  # no bytes: the thread cannot make sense of it
    told = []

    def poll_on():
        while wait_readable([link.fileno()], PATIENCE):
            told.extend(link.poll())

    with pytest.raises(LinkError, match="the UCX thread has ended: TypeError"):
        poll_on()
    with pytest.raises(LinkError, match="the UCX thread has ended"):
        link.connect(link.address)
    link.close()
