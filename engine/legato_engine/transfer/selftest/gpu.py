"""Blocks in GPU memory for a self-test, allocated like a worker's arena."""

import torch

from legato_engine.transfer.device import gpudirect
from legato_engine.transfer.device.cuda import allocator, segments
from legato_engine.transfer.link import LinkError
from legato_engine.transfer.selftest.blocks import DeviceBlocks


def blocks() -> DeviceBlocks:
    """Allocates blocks on torch's current device. Raises LinkError."""
    if not torch.cuda.is_available():
        raise LinkError("torch can use no GPU here")
    device = torch.device("cuda", torch.cuda.current_device())
    made = DeviceBlocks(device, gpudirect.open_flush(device.index))
    gpudirect.check_plain(made.address, segments(device), allocator())
    return made
