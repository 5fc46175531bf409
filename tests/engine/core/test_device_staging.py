"""What sums up blocks that only a GPU reaches, and what happens where its kernel cannot be compiled."""

from types import SimpleNamespace

import pytest
import torch

from legato_engine.core import device_staging
from legato_engine.errors import KernelFailed
from legato_engine.kernels.configurations import Configuration
from legato_engine.kvcache.layout import KVLayout
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.checksum import ArenaMemory

LAYOUT = KVLayout(layers=2, kv_heads=2, block_size=16, head_dim=16, dtype="float16")
BLOCKS, LONGEST = 12, 100  # tokens of the longest sequence


def staging(fallback="", checksum=True):
    blocks = torch.randn(BLOCKS, *LAYOUT.block_shape).half()
    runner = SimpleNamespace(layout=LAYOUT, num_blocks=BLOCKS, arena=SimpleNamespace(blocks=blocks), fallback=fallback)
    made = device_staging.of_worker(WorkerSettings("decode", "d", "m", checksum=checksum), runner, LONGEST)
    return made, ArenaMemory(blocks, BLOCKS)


@pytest.fixture
def broken(monkeypatch):
    """A tile that no kernel can be compiled for."""
    monkeypatch.setattr(device_staging, "choose", lambda kernel, shape, chip: Configuration({"TILE": 1000}))


def test_sums_are_those_of_the_host():
    made, memory = staging()
    assert made.copies.to_slots([7, 2], [0, 1]).sums() == memory.sums([7, 2])


def test_a_worker_stops_whose_kernel_cannot_be_compiled(broken):
    with pytest.raises(KernelFailed, match=r"cannot compile or start a kernel on interpreter: .*power of 2"):
        staging()


def test_torch_sums_up_where_it_computes_the_steps(broken):
    made, memory = staging(fallback="no kernels")
    assert made.copies.to_slots([7, 2], [0, 1]).sums() == memory.sums([7, 2])


def test_no_kernel_is_needed_without_checksums(broken):
    made, _ = staging(checksum=False)
    assert made.copies.to_slots([7, 2], [0, 1]).sums() == []
