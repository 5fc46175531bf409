"""Hand-offs between two real processes over UCX: whole, and with the peer killed, stopped or of another service."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import certificates
import msgspec
import pytest
import secured_workers
import torch
from readiness import wait_readable
from secured_workers import NAME, channels

from legato_engine.kernels.block_sums.naive import sum_blocks
from legato_engine.transfer import ucx
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.cuda import CudaCopies, CudaSums
from legato_engine.transfer.events import Aborted, Arrived, Granted, Released, WritingBegan
from legato_engine.transfer.link import Received
from legato_engine.transfer.seals import prove
from legato_engine.transfer.staging import Staging
from legato_protocol import block_hash
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.stream import Peer

BLOCK, BLOCK_BYTES, BLOCKS, RING = 16, 1 << 20, 24, 8
PATIENCE = 30.0


class Pair:
    """One agent here, the other one in a process of the given role."""

    def __init__(self, transport, push=0, lease=10.0, token="secret", role="sender", own=None, theirs=None, staged=""):
        """`own` and `theirs` are folders with the files of internal TLS, Strict; without, there is none. UCX reaches
        the arenas of both sides but those that are `staged`: here, there, or both."""
        self.arena = torch.zeros(BLOCKS * BLOCK_BYTES, dtype=torch.uint8)
        memory, staging = ArenaMemory(self.arena, BLOCKS), None
        reached = memory.address, memory.length
        if "here" in staged:
            copies = CudaCopies(self.arena, BLOCKS, BLOCKS + RING, CudaSums(self.arena, BLOCKS, sum_blocks))
            staging = Staging.over(copies, BLOCKS, RING)
            reached = copies.address, copies.nbytes
        link = ucx.open(transport, "127.0.0.1", *reached)
        self.agent = TransferAgent(
            link,
            memory,
            worker="here",
            epoch="h1",
            kv_revision="kv",
            layout="test",
            block_size=BLOCK,
            token="secret",
            lease=lease,
            clock=time.monotonic,
            channels=channels(own),
            staging=staging,
        )
        script = Path(__file__).with_name("agent_peer.py")
        shared = os.environ | {"PYTHONPATH": str(Path(secured_workers.__file__).parent)}
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=shared
        )
        order = {"transport": transport, "token": token, "lease": lease, "push": push, "role": role, "tls": theirs}
        order["staged"] = "there" in staged
        self.process.stdin.write(json.dumps({**order, "address": link.address.decode()}) + "\n")
        self.process.stdin.flush()
        about = json.loads(self.process.stdout.readline())
        self.pid = about["pid"]
        self.peer = Peer(role, "p1", about["address"].encode(), bool(theirs))

    def grant(self):
        self.agent.grant(1, 1, self.peer, range(BLOCKS), 0, block_hash.root("kv"))

    def begin_push(self):
        """Expects room 1, and once granted pushes most of it: without `Final` it cannot be committed."""
        root = block_hash.root("kv")
        hashes = block_hash.chain(pack_tokens(range(BLOCKS * BLOCK)), BLOCK, root)
        self.agent.expect(1, 1, self.peer, root)
        self.wait(has(Granted))
        self.agent.push(1, 0, range(BLOCKS - 1), hashes[: BLOCKS - 1])

    def wait(self, condition):
        seen, deadline = [], time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            timer = self.agent.next_timer()
            wait_readable([self.agent.fileno()], min(0.1, 0.1 if timer is None else timer))
            seen += [event for event in self.agent.poll() if not isinstance(event, WritingBegan)]
            if condition(seen):
                return seen
        raise AssertionError(f"only {seen} came; {self.agent.counts()}")

    def wait_written(self, block):
        self.wait(lambda _: int(self.arena[(block + 1) * BLOCK_BYTES - 1]) == 7)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.agent.close()


@pytest.fixture
def pair(request):
    pair = Pair(**request.param)
    yield pair
    pair.close()


def kinds(events):
    return [type(event) for event in events]


def has(kind):
    return lambda seen: kind in kinds(seen)


ALL = BLOCKS - 1


@pytest.mark.parametrize("pair", [{"transport": t, "push": ALL} for t in ("TCP", "SharedMemory")], indirect=True)
def test_a_sequence_arrives_whole_and_both_sides_know(pair):
    seen = recorded(pair.agent._link)
    pair.grant()
    arrived = pair.wait(has(Arrived))[0]
    assert (arrived.blocks, arrived.source) == (BLOCKS, "sender")
    assert bool((pair.arena == 7).all())
    assert pair.agent.pending() == 0
    told = [json.loads(pair.process.stdout.readline())["event"] for _ in range(2)]
    assert told == ["Granted", "Committed"]
    assert readable(pair, seen, arrived) == {"rkey", "proof", "session", "tokens"}, "without TLS"


@pytest.mark.parametrize(
    "pair",
    [{"transport": "TCP", "push": ALL, "staged": staged} for staged in ("here", "there", "here and there")],
    indirect=True,
    ids=lambda given: given["staged"],
)
def test_a_sequence_arrives_whole_where_ucx_does_not_reach_an_arena(pair):
    pair.grant()
    pair.wait(has(Arrived))
    assert bool((pair.arena == 7).all())
    assert pair.agent.pending() == 0


@pytest.mark.parametrize("pair", [{"transport": "TCP", "push": 5, "staged": "here"}], indirect=True)
def test_what_a_killed_sender_has_written_to_slots_stays_there_and_they_are_free(pair):
    pair.grant()
    pair.wait_written(4)
    os.kill(pair.pid, signal.SIGKILL)
    pair.wait(has(Released))
    landing = pair.agent._context.staging.landing
    pair.wait(lambda _: landing.free == landing.count)


@pytest.mark.parametrize("pair", [{"transport": "TCP", "push": 5}], indirect=True)
def test_a_sender_killed_while_pushing_leaves_no_block_behind(pair):
    pair.grant()
    pair.wait_written(4)
    os.kill(pair.pid, signal.SIGKILL)
    events = pair.wait(has(Released))
    assert kinds(events) == [Aborted, Released]
    assert events[0].retry
    assert pair.agent.counts().quarantined_blocks == 0
    pair.agent.check_integrity()


@pytest.mark.parametrize("pair", [{"transport": "TCP", "push": 5, "lease": 1.0}], indirect=True)
def test_a_sender_that_stops_outlives_its_lease_and_wakes_up_writes_nothing(pair):
    pair.grant()
    pair.wait_written(0)
    os.kill(pair.pid, signal.SIGSTOP)
    events = pair.wait(has(Released))
    assert kinds(events) == [Aborted, Released]
    assert pair.agent.counts().fences == 1
    pair.arena.fill_(1)
    os.kill(pair.pid, signal.SIGCONT)
    told = [json.loads(pair.process.stdout.readline())["event"] for _ in range(2)]
    assert told == ["Granted", "Aborted"]
    assert bool((pair.arena == 1).all())


@pytest.mark.parametrize("pair", [{"transport": "TCP", "push": 5}], indirect=True)
def test_a_cancelled_hand_off_is_released_by_the_senders_ack(pair):
    pair.grant()
    pair.wait_written(2)
    pair.agent.abort(1, "the client is gone")
    events = pair.wait(has(Released))
    assert kinds(events) == [Aborted, Released]
    assert pair.agent.counts().fences == 0


@pytest.mark.parametrize("pair", [{"transport": "TCP", "push": 5, "token": "another"}], indirect=True)
def test_a_peer_of_another_service_is_refused(pair):
    pair.grant()
    events = pair.wait(has(Released))
    assert kinds(events) == [Aborted, Released]
    assert not pair.arena.any()


RECEIVER = {"transport": "TCP", "role": "receiver"}


@pytest.mark.parametrize("pair", [RECEIVER], indirect=True)
def test_a_receiver_killed_while_it_is_written_to_gives_the_sender_its_blocks_back(pair):
    pair.begin_push()
    os.kill(pair.pid, signal.SIGKILL)
    (aborted,) = pair.wait(has(Aborted))
    assert (aborted.side, aborted.retry) == ("sender", True)
    assert aborted.cause in ("peer_died", "broken")
    assert pair.agent.pending() == 0
    pair.agent.check_integrity()


@pytest.mark.parametrize("pair", [{**RECEIVER, "lease": 1.0}], indirect=True)
def test_a_receiver_that_stops_is_fenced_and_hears_of_it_when_it_wakes_up(pair):
    pair.begin_push()
    os.kill(pair.pid, signal.SIGSTOP)
    (aborted,) = pair.wait(has(Aborted))
    assert (aborted.side, aborted.cause) == ("sender", "peer_silent")
    assert pair.agent.counts().fences == 1
    assert pair.agent.pending() == 0
    pair.agent.check_integrity()
    os.kill(pair.pid, signal.SIGCONT)
    told = []
    while "Released" not in told:
        told.append(json.loads(pair.process.stdout.readline())["event"])
    assert "Arrived" not in told
    assert "Aborted" in told


def tls_folder(tmp_path, name):
    """Of an authority of its own."""
    folder = tmp_path / name
    folder.mkdir()
    certificates.make(tmp_path / f"{name}-made", names=f"subjectAltName=DNS:{NAME}").install(folder)
    return str(folder)


@pytest.fixture
def made():
    pairs = []

    def make(**settings):
        pairs.append(Pair("TCP", **settings))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()


def recorded(link):
    """All messages that go over this worker's connections from here on, as UCX carries them, both ways."""
    seen, send, poll = [], link.send, link.poll

    def heard():
        events = poll()
        seen.extend(event.data for event in events if isinstance(event, Received))
        return events

    link.send = lambda number, data: (seen.append(data), send(number, data))
    link.poll = heard
    return seen


def readable(pair, seen, arrived):
    """What of a hand-off's control can be read in these messages."""
    memory = msgspec.msgpack.encode([pair.arena.data_ptr(), pair.agent._link.rkey])[1:]  # as `PeerHello` has it
    secrets = {
        "rkey": memory,
        "proof": prove("secret", "here", "h1"),
        "session": msgspec.msgpack.encode(["h1", 1, 1])[1:],  # epoch, room and attempt, as every message begins
        "tokens": arrived.final.token_ids,
    }
    return {name for name, secret in secrets.items() if any(secret in data for data in seen)}


def test_with_tls_nothing_of_the_control_messages_is_on_the_wire_in_the_clear(made, tmp_path):
    folder = tls_folder(tmp_path, "tls")
    pair = made(push=ALL, own=folder, theirs=folder)
    seen = recorded(pair.agent._link)
    pair.grant()
    arrived = pair.wait(has(Arrived))[0]
    assert bool((pair.arena == 7).all())
    told = [json.loads(pair.process.stdout.readline())["event"] for _ in range(2)]
    assert told == ["Granted", "Committed"]
    assert readable(pair, seen, arrived) == set()
    counts = pair.agent.counts()
    assert (counts.tls_peers, counts.plain_peers) == (1, 0)


@pytest.mark.parametrize(("role", "tls"), [("sender", True), ("receiver", False)])
def test_strict_refuses_a_peer_of_another_authority_or_without_tls(made, tmp_path, role, tls):
    theirs = tls_folder(tmp_path, "theirs") if tls else None
    pair = made(own=tls_folder(tmp_path, "own"), theirs=theirs, role=role)
    if role == "sender":
        pair.grant()
        aborted = pair.wait(has(Released))[0]
        assert aborted.retry
        assert "its certificate is not accepted" in aborted.reason
    else:
        pair.agent.expect(1, 1, pair.peer, block_hash.root("kv"))
        pair.wait(lambda _: pair.agent.counts().refused_plain)
    assert pair.agent.counts().refused_peers == 1
    assert pair.agent.counts().tls_peers == pair.agent.counts().plain_peers == 0
    assert not pair.arena.any()
