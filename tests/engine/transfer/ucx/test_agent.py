"""Hand-offs between two real processes over UCX: whole, and with the peer killed, stopped or of another service."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from legato_engine.transfer import ucx
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.events import Aborted, Arrived, Granted, Released, WritingBegan
from legato_protocol import block_hash
from legato_protocol.packed_tokens import pack_tokens
from legato_protocol.stream import Peer

BLOCK, BLOCK_BYTES, BLOCKS = 16, 1 << 20, 24
PATIENCE = 30.0


class Pair:
    """One agent here, the other one in a process of the given role."""

    def __init__(self, transport, push=0, lease=10.0, token="secret", role="sender"):
        self.arena = torch.zeros(BLOCKS * BLOCK_BYTES, dtype=torch.uint8)
        memory = ArenaMemory(self.arena, BLOCKS)
        link = ucx.open(transport, "127.0.0.1", memory.address, memory.length)
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
        )
        script = Path(__file__).with_name("agent_peer.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        order = {"transport": transport, "token": token, "lease": lease, "push": push, "role": role}
        self.process.stdin.write(json.dumps({**order, "address": link.address.decode()}) + "\n")
        self.process.stdin.flush()
        about = json.loads(self.process.stdout.readline())
        self.pid = about["pid"]
        self.peer = Peer(role, "p1", about["address"].encode())

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
            select.select([self.agent.fileno()], [], [], min(0.1, 0.1 if timer is None else timer))
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
    pair.grant()
    arrived = pair.wait(has(Arrived))[0]
    assert (arrived.blocks, arrived.source) == (BLOCKS, "sender")
    assert bool((pair.arena == 7).all())
    assert pair.agent.pending() == 0
    told = [json.loads(pair.process.stdout.readline())["event"] for _ in range(2)]
    assert told == ["Granted", "Committed"]


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
