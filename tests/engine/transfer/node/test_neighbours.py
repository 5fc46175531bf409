"""Doors of workers on one node, their memory files, and what opens neither."""

import fcntl
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from readiness import wait_readable

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.connections.seals import Token
from legato_engine.transfer.node import handshake, selftest
from legato_engine.transfer.node.door import Visit
from legato_engine.transfer.node.handshake import ArenaOffer, ArenaOwner
from legato_engine.transfer.node.host_pulls import HostPulls
from legato_engine.transfer.node.memory_file import MappedFile, MemoryFile, allocate
from legato_engine.transfer.node.neighbours import PATIENCE, DoorNeighbours, OwnArena
from legato_protocol.wire.handoff import PeerHello

BLOCKS, SIZE = 4, 4096
TOKEN = Token.from_text("secret")


class Worker:
    """A worker's memory and door in `folder`; `now` is its clock."""

    def __init__(self, folder, name, block_bytes=SIZE):
        self.file = MemoryFile(BLOCKS * block_bytes)
        self.owner = ArenaOwner(name, f"epoch-{name}")
        self.words = np.frombuffer(self.file.memory, np.uint8).reshape(BLOCKS, -1)
        self.now = 0.0
        offer = ArenaOffer(BLOCKS, block_bytes)
        self.neighbours = DoorNeighbours(OwnArena(self.owner, offer, self.file), lambda: self.now, folder)
        self.neighbours.trust(("secret",))
        self.hello = hello_of(self.owner, self.neighbours.node)


def hello_of(owner, node):
    return PeerHello(owner.worker, owner.epoch, "kv", "tiny", b"", 0, b"", b"", node=node)


def meet(a, b, hello=None, token=TOKEN):
    """`a` visits `b`. Returns the arena that it gets."""
    a.neighbours.meet(1, hello or b.hello, token)
    if not a.neighbours.is_settled(1):
        assert wait_readable([b.neighbours.fileno()], 90)
        b.neighbours.poll()
        assert wait_readable([a.neighbours.fileno()], 90)
        a.neighbours.poll()
    assert a.neighbours.is_settled(1)
    assert list(a.neighbours.timers()) == []
    return a.neighbours.arena(1)


def test_a_visitor_copies_blocks_and_cannot_write(pair):
    a, b = pair
    arena = meet(a, b)
    b.words[:] = np.arange(BLOCKS, dtype=np.uint8)[:, None] + 1
    pulls = HostPulls(ArenaMemory(a.words, BLOCKS))
    copy = pulls.begin(arena, [3, 0, 1], [0, 2, 3])
    assert copy.sums() == ArenaMemory(b.words, BLOCKS).sums([3, 0, 1])
    assert a.words[:, 0].tolist() == [4, 0, 1, 2]
    assert (a.neighbours.readable, a.neighbours.unreadable) == (1, 0)
    b.words[:] = 9  # a late write changes nothing here
    assert a.words[:, 0].tolist() == [4, 0, 1, 2]
    for access in (lambda: mmap.mmap(b.file.fd, SIZE), lambda: os.ftruncate(b.file.fd, 1)):
        with pytest.raises(PermissionError):
            access()
    pulls.close()
    a.neighbours.leave(1)
    assert a.neighbours.arena(1) is None


@pytest.mark.parametrize(
    "refused",
    [
        {"token": Token.from_text("another")},
        {"hello": hello_of(ArenaOwner("b", "a later epoch"), None)},
        {"hello": hello_of(ArenaOwner("b", "epoch-b"), "another node")},
    ],
    ids=["token", "epoch", "node"],
)
def test_no_arena_is_opened_for_another(pair, refused):
    """A worker of another node is not tried; other failures are counted."""
    a, b = pair
    hello = refused.get("hello", b.hello)
    if hello.node is None:
        hello = hello_of(ArenaOwner(hello.worker, hello.epoch), a.neighbours.node)
    assert meet(a, b, hello, refused.get("token", TOKEN)) is None
    assert a.neighbours.unreadable == (hello.node == a.neighbours.node)


def test_a_later_token_opens_the_door_and_blocks_of_another_size_do_not(folder, pair):
    a, b = pair
    b.neighbours.trust(("new", "secret"))
    assert meet(a, b, token=Token.from_text("new")) is not None
    assert meet(Worker(folder, "c", SIZE * 2), b) is None


def test_a_process_that_answers_for_another_is_not_believed(folder, pair):
    a, b = pair
    b.neighbours.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / b.owner.door))
        listener.listen()
        a.neighbours.meet(1, b.hello, TOKEN)
        visitor = listener.accept()[0]
        socket.send_fds(visitor, [bytes(32) + struct.pack("<QQ", BLOCKS, SIZE)], [a.file.fd])
        a.neighbours.poll()
    assert (a.neighbours.arena(1), a.neighbours.unreadable) == (None, 1)


def test_a_visitor_without_the_token_gets_nothing(folder, pair):
    a, _ = pair
    for asked in (b"", bytes(48), handshake.ask(a.owner, "another", bytes(16))):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
            visitor.connect(str(folder / a.owner.door))
            visitor.send(asked)
            a.neighbours.poll()
            assert socket.recv_fds(visitor, 4096, 1)[:2] == (b"", [])


def test_a_stopped_worker_is_waited_for_a_second(pair):
    a, b = pair
    a.neighbours.meet(1, b.hello, TOKEN)
    a.neighbours.poll()
    assert not a.neighbours.is_settled(1)
    assert [*a.neighbours.timers()] == [PATIENCE]
    a.now = PATIENCE
    a.neighbours.poll()
    assert (a.neighbours.is_settled(1), a.neighbours.arena(1), a.neighbours.unreadable) == (True, None, 1)
    b.neighbours.poll()  # the visitor has gone


def test_memory_that_could_shrink_or_is_too_small_is_not_mapped(pair):
    file, loose = pair[0].file, os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, SIZE)
    for fd, blocks, why in (
        (file.fd, BLOCKS + 1, "does not hold 5 blocks"),
        (file.fd, 0, "0 blocks"),
        (loose, 1, "size"),
    ):
        with pytest.raises(ValueError, match=why):
            MappedFile(fd, blocks, SIZE)
    os.close(loose)


OWNER = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_neighbours import Worker
worker = Worker(Path(sys.argv[1]), "b")
worker.words[:] = 7
print(flush=True)
while True:
    worker.neighbours.poll()
    time.sleep(0.01)
"""


def test_memory_of_a_killed_worker_stays_readable_and_the_next_start_removes_its_door(folder, pair):
    a, b = pair
    b.neighbours.close()
    command = [sys.executable, "-c", OWNER, str(folder), str(Path(__file__).parent), *sys.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        a.neighbours.meet(1, b.hello, TOKEN)
        while not a.neighbours.is_settled(1):  # the other process has knocked at all doors, too
            assert wait_readable([a.neighbours.fileno()], 90)
            a.neighbours.poll()
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    arena = a.neighbours.arena(1)
    assert arena.read(0, BLOCKS * SIZE) == b"\7" * BLOCKS * SIZE
    assert (folder / b.owner.door).exists()
    with pytest.raises(ConnectionRefusedError):
        Visit(folder, b.owner, "secret")
    Worker(folder, "c").neighbours.close()
    assert [path.name for path in folder.iterdir()] == [a.owner.door]


def test_the_self_test_passes_and_finds_memory_that_others_may_write(pair, monkeypatch):
    a, _ = pair
    selftest.check(a.neighbours, a.owner, a.file, "secret")
    assert not a.words.any()
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, call, seals=0: 6)
    unsealed = MemoryFile(BLOCKS * SIZE)
    with pytest.raises(ValueError, match="does not see the arena's bytes"):
        selftest.check(a.neighbours, a.owner, unsealed, "secret")
    with pytest.raises(ValueError, match="lets other processes write"):
        selftest._check_sealed(unsealed)


def test_memory_is_private_unless_it_is_shared_and_where_the_kernel_has_no_files(monkeypatch):
    assert allocate(SIZE, shared=False)[1] is None
    assert allocate(SIZE, shared=True)[1] is not None
    monkeypatch.setattr(os, "memfd_create", lambda *_: (_ for _ in ()).throw(OSError("no such call")))
    memory, file = allocate(SIZE, shared=True)
    assert (len(memory), file) == (SIZE, None)
