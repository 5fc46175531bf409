"""Slots of a worker whose blocks only a GPU reaches."""

from types import SimpleNamespace

import torch

from legato_engine.core import device_staging, device_sums
from legato_engine.kvcache.layout import KVLayout
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.checksum import ArenaMemory

LAYOUT = KVLayout(layers=2, kv_heads=2, block_size=16, head_dim=16, dtype="float16")
BLOCKS, LONGEST = 12, 100  # tokens of the longest sequence
SETTINGS = WorkerSettings("decode", "d", "m")


def test_sums_of_what_is_copied_are_those_of_the_host():
    blocks = torch.randn(BLOCKS, *LAYOUT.block_shape).half()
    runner = SimpleNamespace(layout=LAYOUT, num_blocks=BLOCKS, arena=SimpleNamespace(blocks=blocks), fallback="")
    sums = device_sums.of_worker(SETTINGS, runner).sums
    made = device_staging.of_worker(SETTINGS, runner, LONGEST, sums)
    assert made.copies.to_slots([7, 2], [0, 1]).sums() == ArenaMemory(blocks, BLOCKS).sums([7, 2])
