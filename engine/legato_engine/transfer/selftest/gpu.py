"""A GPU's memory for a self-test, as a worker's arena is there."""

import torch

from legato_engine.transfer import gpudirect
from legato_engine.transfer.cuda import allocator, segments
from legato_engine.transfer.link import LinkError
from legato_engine.transfer.selftest.blocks import DeviceBlocks


def blocks() -> DeviceBlocks:
    """On the device that torch computes on. Raises LinkError."""
    if not torch.cuda.is_available():
        raise LinkError("torch can use no GPU here")
    device = torch.device("cuda", torch.cuda.current_device())
    made = DeviceBlocks(device, gpudirect.flush_of(device.index))
    gpudirect.check_plain(made.address, segments(device), allocator())
    return made
