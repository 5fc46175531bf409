"""Hand-offs between two real processes over UCX: whole, and with the peer killed or stopped.

What else a session can meet is in test_agent, in virtual time; what a link promises over UCX, in test_link.
"""

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
import ucx_worker
from readiness import wait_readable
from ucx_worker import BLOCK, BLOCK_BYTES, BLOCKS, NAME, open_agent

from legato_engine.transfer.events import Aborted, Arrived, Granted, Released, WritingBegan
from legato_engine.transfer.link import Received
from legato_engine.transfer.seals import prove
from legato_protocol import block_hash
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.stream import Peer

PATIENCE = 30.0


class Pair:
    """One agent here, the other one in a process of the given role."""

    def __init__(self, transport, push=0, lease=10.0, role="sender", own=None, theirs=None, staged=""):
        """`own` and `theirs` are folders with the files of internal TLS, Strict; without, there is none. UCX reaches
        the arenas of both sides but those that are `staged`: here, there, or both."""
        self.agent, link, self.arena = open_agent("here", "h1", 0, transport, lease, own, "here" in staged)
        script = Path(__file__).with_name("agent_peer.py")
        shared = os.environ | {"PYTHONPATH": str(Path(ucx_worker.__file__).parent)}
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=shared
        )
        order = {"transport": transport, "lease": lease, "push": push, "role": role, "tls": theirs}
        order["staged"] = "there" in staged
        self.process.stdin.write(json.dumps({**order, "address": link.address.decode()}) + "\n")
        self.process.stdin.flush()
        about = json.loads(self.process.stdout.readline())
        self.pid = about["pid"]
        self.peer = Peer(role, "p1", about["address"].encode(), bool(theirs))

    def grant(self):
        self.agent.grant(1, 1, self.peer, range(BLOCKS), 0, block_hash.root("kv"))

    def told(self, count):
        """The next events of the other process."""
        return [json.loads(self.process.stdout.readline())["event"] for _ in range(count)]

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


def has(kind):
    return lambda seen: any(isinstance(event, kind) for event in seen)


ALL = BLOCKS - 1


@pytest.mark.parametrize("pair", [{"transport": t, "push": ALL} for t in ("TCP", "SharedMemory")], indirect=True)
def test_a_sequence_arrives_whole_and_both_sides_know(pair):
    seen = recorded(pair.agent._link)
    pair.grant()
    arrived = pair.wait(has(Arrived))[0]
    assert (arrived.blocks, arrived.source) == (BLOCKS, "sender")
    assert bool((pair.arena == 7).all())
    assert pair.agent.pending() == 0
    assert pair.told(2) == ["Granted", "Committed"]
    assert readable(pair, seen, arrived) == {"rkey", "proof", "session", "tokens"}, "without TLS"


@pytest.mark.parametrize("pair", [{"transport": "TCP", "push": ALL, "staged": "here and there"}], indirect=True)
def test_a_sequence_arrives_whole_where_ucx_does_not_reach_the_arenas(pair):
    pair.grant()
    pair.wait(has(Arrived))
    assert bool((pair.arena == 7).all())
    assert pair.agent.pending() == 0


@pytest.mark.parametrize("pair", [{"transport": "TCP", "push": 5, "staged": "here"}], indirect=True)
def test_a_sender_killed_while_pushing_leaves_no_block_or_slot_behind(pair):
    pair.grant()
    pair.wait_written(4)
    os.kill(pair.pid, signal.SIGKILL)
    aborted, released = pair.wait(has(Released))
    assert (type(aborted), aborted.retry, type(released)) == (Aborted, True, Released)
    landing = pair.agent._context.staging.landing
    pair.wait(lambda _: landing.free == landing.count)
    assert pair.agent.counts().quarantined_blocks == 0
    pair.agent.check_integrity()


@pytest.mark.parametrize("pair", [{"transport": "TCP", "push": 5, "lease": 1.0}], indirect=True)
def test_a_sender_that_stops_outlives_its_lease_and_wakes_up_writes_nothing(pair):
    pair.grant()
    pair.wait_written(0)
    os.kill(pair.pid, signal.SIGSTOP)
    assert [type(event) for event in pair.wait(has(Released))] == [Aborted, Released]
    assert pair.agent.counts().fences == 1
    pair.arena.fill_(1)
    os.kill(pair.pid, signal.SIGCONT)
    assert pair.told(2) == ["Granted", "Aborted"]
    assert bool((pair.arena == 1).all())


@pytest.mark.parametrize("pair", [{"transport": "TCP", "role": "receiver", "lease": 1.0}], indirect=True)
def test_a_receiver_that_stops_is_fenced_and_hears_of_it_when_it_wakes_up(pair):
    root = block_hash.root("kv")
    hashes = block_hash.chain(pack_tokens(range(BLOCKS * BLOCK)), BLOCK, root)
    pair.agent.expect(1, 1, pair.peer, root)
    pair.wait(has(Granted))
    pair.agent.push(1, 0, range(ALL), hashes[:ALL])  # without `Final` it cannot be committed
    os.kill(pair.pid, signal.SIGSTOP)
    (aborted,) = pair.wait(has(Aborted))
    assert (aborted.side, aborted.cause) == ("sender", "peer_silent")
    assert pair.agent.counts().fences == 1
    assert pair.agent.pending() == 0
    pair.agent.check_integrity()
    os.kill(pair.pid, signal.SIGCONT)
    told = []
    while "Released" not in told:
        told += pair.told(1)
    assert "Arrived" not in told
    assert "Aborted" in told


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


def test_with_tls_nothing_of_the_control_messages_is_on_the_wire_in_the_clear(tmp_path):
    folder = tmp_path / "tls"
    folder.mkdir()
    certificates.make(tmp_path / "made", names=f"subjectAltName=DNS:{NAME}").install(folder)
    pair = Pair("TCP", push=ALL, own=str(folder), theirs=str(folder))
    try:
        seen = recorded(pair.agent._link)
        pair.grant()
        arrived = pair.wait(has(Arrived))[0]
        assert bool((pair.arena == 7).all())
        assert pair.told(2) == ["Granted", "Committed"]
        assert readable(pair, seen, arrived) == set()
        counts = pair.agent.counts()
        assert (counts.tls_peers, counts.plain_peers) == (1, 0)
    finally:
        pair.close()
