"""GPU memory of another worker on the node, with a driver over files: not verified on GPUs."""

import gc
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from host_cuda import HostCuda

from legato_engine.kernels.reference import block_sums
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.connections.seals import Token
from legato_engine.transfer.device.cuda import CudaSums
from legato_engine.transfer.device.driver import Driver
from legato_engine.transfer.device.ipc import DeviceIpc
from legato_engine.transfer.link import LinkError
from legato_engine.transfer.node import device_selftest
from legato_engine.transfer.node.device_pulls import DevicePulls
from legato_engine.transfer.node.handshake import ArenaOffer, ArenaOwner
from legato_engine.transfer.node.neighbours import DoorNeighbours, OwnArena
from legato_protocol.wire.handoff import PeerHello

BLOCKS, SIZE, OFFSET = 4, 4096, 512  # bytes of the allocation before the arena


class Worker:
    """A worker with an arena in the "GPU memory" of `libcuda`, behind other memory of the same allocation."""

    def __init__(self, folder, name, failing=()):
        self.libcuda = HostCuda(folder, failing)
        self.arena = self.libcuda.allocate(OFFSET + BLOCKS * SIZE)[OFFSET:]
        self.blocks = self.arena.view(BLOCKS, SIZE)
        self.ipc = DeviceIpc(Driver(self.libcuda, 0))
        self.offer = ArenaOffer(BLOCKS, SIZE, self.ipc.export(self.arena.data_ptr()))
        owner = ArenaOwner(name, f"epoch-{name}")
        own = OwnArena(owner, self.offer, None, self.ipc.open)
        self.neighbours = DoorNeighbours(own, lambda: 0.0, folder)
        self.neighbours.trust(("secret",))
        node = self.neighbours.node
        self.hello = PeerHello(owner.worker, owner.epoch, "kv", "tiny", b"", 0, b"", b"", node=node)

    def meet(self, other, connection):
        self.neighbours.meet(connection, other.hello, Token.from_text("secret"))
        other.neighbours.poll()
        self.neighbours.poll()
        return self.neighbours.arena(connection)


def test_blocks_are_copied_and_memory_is_closed_after_the_last_copy(pair):
    a, b = pair
    b.blocks.copy_(torch.arange(1, BLOCKS + 1, dtype=torch.uint8)[:, None].expand(-1, SIZE))
    arena = a.meet(b, 1)
    assert a.meet(b, 2).address == arena.address, "connections share what was opened"
    pulls = DevicePulls(a.arena, BLOCKS, CudaSums(a.arena, BLOCKS, block_sums.sum_blocks), a.ipc)
    copy = pulls.begin(arena, [3, 0, 1], [0, 2, 3])
    a.neighbours.leave(1)
    a.neighbours.leave(2)
    opened = arena.address - OFFSET
    del arena
    gc.collect()
    assert a.libcuda.closed == []
    assert copy.done()
    assert copy.sums() == ArenaMemory(b.arena, BLOCKS).sums([3, 0, 1])
    assert a.blocks[:, 0].tolist() == [4, 0, 1, 2]
    gc.collect()
    assert a.libcuda.closed == [opened]


@pytest.mark.parametrize(
    ("failing", "offer", "reason"),
    [
        ((), {"handle": b""}, "not in GPU memory"),
        ((), {"num_blocks": BLOCKS + 1}, "ends at byte 20992 of an allocation of 16896"),
        (("cuIpcOpenMemHandle_v2",), {}, "cuIpcOpenMemHandle_v2 of the GPU driver failed with 201"),
    ],
)
def test_memory_that_is_no_arena_or_of_a_gpu_that_is_not_seen_is_not_read(pair, failing, offer, reason):
    a, b = pair
    a.libcuda.failing = failing
    changed = ArenaOffer(**{"num_blocks": BLOCKS, "block_bytes": SIZE, "handle": b.offer.handle} | offer)
    with pytest.raises(ValueError, match=reason):
        a.ipc.open(changed, ())


def test_a_driver_that_exports_nothing_is_named(folder):
    with pytest.raises(LinkError, match="cuIpcGetMemHandle"):
        Worker(folder, "c", ("cuIpcGetMemHandle",))


VISITOR = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from host_cuda import HostCuda
from legato_engine.transfer.node import visitor
sys.exit(visitor.main(sys.argv[1:], HostCuda(sys.argv[1], {failing})))
"""


@pytest.mark.parametrize(
    ("visitor", "reason"),
    [
        (VISITOR.format(failing=()), None),
        (VISITOR.format(failing=("cuIpcOpenMemHandle_v2",)), "cuIpcOpenMemHandle_v2 of the GPU driver failed"),
        ("print('00' * 16)", "does not see the arena's bytes"),
        ("raise SystemExit(3)", "a visitor ended with 3"),
        (None, "the GPU driver cannot be loaded"),
    ],
)
def test_the_self_test_passes_only_if_another_process_sees_the_bytes(pair, visitor, reason):
    a, _ = pair

    def write(mark):
        a.arena[: len(mark)] = torch.tensor(list(mark), dtype=torch.uint8)

    support = str(Path(__file__).parents[3] / "support")
    command = (sys.executable, "-c", visitor, support) if visitor else device_selftest.VISITOR
    with pytest.raises(ValueError, match=reason) if reason else nullcontext():
        device_selftest.check(a.neighbours, write, "secret", 0, command)
    assert not a.arena.any()
