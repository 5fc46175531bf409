"""Opens the way to other workers' arenas in the memory of this node's GPUs. See `transfer.device.ipc`."""

from collections.abc import Callable

import torch

from legato_engine.runner.interface import StepRunner
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.device import driver, gpudirect
from legato_engine.transfer.device.cuda import CudaDirect, CudaSums, allocator, segments
from legato_engine.transfer.device.driver import Driver
from legato_engine.transfer.device.ipc import DeviceIpc
from legato_engine.transfer.link import LinkError
from legato_engine.transfer.node import device_selftest
from legato_engine.transfer.node.device_pulls import DevicePulls
from legato_engine.transfer.node.handshake import ArenaOffer, ArenaOwner
from legato_engine.transfer.node.interface import NodeMemory
from legato_engine.transfer.node.neighbours import DoorNeighbours, OwnArena


def open_device(
    runner: StepRunner, memory: ArenaMemory, owner: ArenaOwner, token: str, sums: CudaSums, clock: Callable[[], float]
) -> NodeMemory:
    """Raises LinkError, OSError and ValueError if the GPU, its memory or this container prevents it."""
    if runner.arena.parts:
        raise LinkError("blocks have parts on the GPUs of several ranks")
    blocks = runner.arena.blocks
    device: torch.device = blocks.device
    gpu = device.index or 0
    gpudirect.check_plain(memory.address, segments(device), allocator())
    ipc = DeviceIpc(Driver(driver.load(), gpu))
    offer = ArenaOffer(memory.num_blocks, memory.block_bytes, ipc.export(memory.address))
    neighbours = DoorNeighbours(OwnArena(owner, offer, None, ipc.open), clock)

    def write(mark: bytes) -> None:
        start = blocks.view(-1).view(torch.uint8)[: len(mark)]
        start.copy_(torch.frombuffer(bytearray(mark), dtype=torch.uint8))
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    try:
        device_selftest.check(neighbours, write, token, gpu)
    except (OSError, ValueError):
        neighbours.close()
        raise
    pulls = DevicePulls(blocks, memory.num_blocks, sums, ipc)
    return NodeMemory(neighbours, pulls, CudaDirect(device, sums, lambda: None))
