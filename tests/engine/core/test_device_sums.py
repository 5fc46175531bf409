"""Sums of blocks that only a GPU reaches, also where their kernel cannot be compiled."""

from types import SimpleNamespace

import pytest
import torch

from legato_engine.core.handoff import device_staging, device_sums
from legato_engine.errors import KernelFailed
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kvcache.layout import KVLayout
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.blocks.checksum import MASK, ArenaMemory

BLOCKS = 12
TORCH = {"on_kernel_failure": "Torch"}


def made(fallback="", **settings):
    """The sums, and True if those of two blocks are the host's."""
    blocks = torch.randn(BLOCKS, 2, 16, 16).half()
    runner = SimpleNamespace(num_blocks=BLOCKS, arena=SimpleNamespace(blocks=blocks, parts=()), fallback=fallback)
    found = device_sums.open_sums(WorkerSettings("decode", "d", "m", **settings), runner)
    expected = ArenaMemory(blocks, BLOCKS).sums([7, 2])
    return found, found.sums and ([total & MASK for total in found.sums.parts([7, 2]).sum(1).tolist()] == expected)


def test_sums_of_copies_into_slots_are_those_of_the_host():
    layout = KVLayout(layers=2, kv_heads=2, block_size=16, head_dim=16, dtype="float16")
    blocks = torch.randn(BLOCKS, *layout.block_shape).half()
    runner = SimpleNamespace(
        layout=layout, num_blocks=BLOCKS, arena=SimpleNamespace(blocks=blocks, parts=()), fallback=""
    )
    settings = WorkerSettings("decode", "d", "m")
    staging = device_staging.open_staging(settings, runner, 100, device_sums.open_sums(settings, runner).sums)
    assert staging.copies.to_slots([7, 2], [0, 1]).sums() == ArenaMemory(blocks, BLOCKS).sums([7, 2])


@pytest.fixture
def broken(monkeypatch):
    """A tile that no kernel can be compiled for."""
    monkeypatch.setattr(device_sums, "choose", lambda kernel, shape, chip: Configuration({"TILE": 1000}))


@pytest.mark.parametrize("settings", [{}, TORCH])
def test_sums_are_those_of_the_host(settings):
    found, equal = made(**settings)
    assert equal
    assert found.fallback == ""


def test_a_worker_stops_whose_kernel_cannot_be_compiled(broken):
    with pytest.raises(KernelFailed, match=r"cannot compile or start a kernel on interpreter: .*power of 2"):
        made()


def test_torch_takes_over_where_that_is_asked_and_says_why(broken):
    found, equal = made(**TORCH)
    assert equal
    assert found.fallback.startswith("checksums of hand-offs: Triton ")
    assert "power of 2" in found.fallback
