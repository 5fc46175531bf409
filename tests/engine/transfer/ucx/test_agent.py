"""A hand-off over UCX in real time where it does not reach the arenas.

Sessions in virtual time: test_agent; a link over UCX, with killed and stopped processes: test_link; workers that hand
over by UCX without staging: tests/engine/test_worker_process.
"""

import time

import pytest
import torch
from readiness import wait_readable

from legato_engine.kernels.reference.block_sums import sum_blocks
from legato_engine.transfer import ucx
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.device.cuda import CudaCopies, CudaSums
from legato_engine.transfer.device.staging import Staging
from legato_engine.transfer.session.events import Arrived, Committed, Granted
from legato_protocol.wire import block_hash
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Peer

BLOCK, BLOCK_BYTES, BLOCKS, RING = 16, 1 << 20, 24, 8
ROOT = block_hash.root("kv")
TOKENS = pack_tokens(range(BLOCKS * BLOCK - 3))
PATIENCE = 30.0


class Worker:
    def __init__(self, name, fill, transport):
        self.arena = torch.full((BLOCKS * BLOCK_BYTES,), fill, dtype=torch.uint8)
        copies = CudaCopies(self.arena, BLOCKS, BLOCKS + RING, CudaSums(self.arena, BLOCKS, sum_blocks))
        link = ucx.open(transport, "127.0.0.1", copies.address, copies.nbytes)
        identity = {"worker": name, "epoch": f"e-{name}", "kv_revision": "kv", "layout": "test", "token": "secret"}
        timing = {"block_size": BLOCK, "lease": 10.0, "clock": time.monotonic}
        staging = Staging.over(copies, BLOCKS, RING)
        self.agent = TransferAgent(link, ArenaMemory(self.arena, BLOCKS), **identity, **timing, staging=staging)
        self.peer = Peer(name, f"e-{name}", link.address)


@pytest.fixture(params=["TCP", "SharedMemory"])
def workers(request):
    made = [Worker("sender", 7, request.param), Worker("receiver", 0, request.param)]
    yield made
    for worker in made:
        worker.agent.close()


def wait(workers, kind):
    """Both are polled until one of them reports an event of this kind."""
    seen, deadline = [], time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        wait_readable([worker.agent.fileno() for worker in workers], 0.01)
        seen += [event for worker in workers for event in worker.agent.poll()]
        for event in seen:
            if isinstance(event, kind):
                return event
    raise AssertionError(f"only {seen} came; {[worker.agent.counts() for worker in workers]}")


def test_a_sequence_arrives_whole_in_arenas_that_ucx_does_not_reach(workers):
    sender, receiver = workers
    sender.agent.expect(1, 1, receiver.peer, ROOT)
    receiver.agent.grant(1, 1, sender.peer, range(BLOCKS), 0, ROOT)
    wait(workers, Granted)
    sender.agent.push(1, 0, range(BLOCKS - 1), block_hash.chain(TOKENS, BLOCK, ROOT))
    sender.agent.finish(1, TOKENS, BLOCKS * BLOCK - 3, (), BLOCKS - 1)
    arrived = wait(workers, Arrived)
    assert (arrived.blocks, arrived.source) == (BLOCKS, "sender")
    wait(workers, Committed)
    assert bool((receiver.arena == 7).all())
    assert sender.agent.pending() == receiver.agent.pending() == 0
