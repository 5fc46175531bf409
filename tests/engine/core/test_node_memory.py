"""Workers read each other's memory, or report why they do not although they should."""

import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from host_cuda import HostCuda

from legato_engine.core.handoff import node_memory
from legato_engine.kernels.reference import block_sums
from legato_engine.kvcache.layout import KVLayout
from legato_engine.runner.arena import Arena
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.device import driver, gpudirect
from legato_engine.transfer.device.cuda import CudaSums
from legato_engine.transfer.node import device_selftest, selftest

LAYOUT = KVLayout(layers=2, kv_heads=2, block_size=16, head_dim=16, dtype="float32")


def opened(shared=True, on_device=False, libcuda=None, **settings):
    worker = WorkerSettings("decode", f"d-{os.getpid()}", "m", **settings)
    arena = Arena(LAYOUT, 2, torch.device("cpu"), shared=shared and worker.shares_memory)
    memory = ArenaMemory(arena.blocks, 2)
    if libcuda is not None:
        libcuda.adopt(arena.blocks)
    if on_device:
        memory._words = None
    runner, sums = SimpleNamespace(arena=arena), CudaSums(arena.blocks, 2, block_sums.sum_blocks)
    choice = node_memory.NodeOpener(worker, runner, memory, "e", lambda: sums).open(lambda: 0.0)
    choice.memory.neighbours.close()
    choice.memory.pulls.close()
    return choice


@pytest.mark.parametrize(
    ("settings", "node"),
    [
        ({}, True),
        ({"transport": "TCP"}, False),
        ({"transport": "TCP", "node_memory": "On"}, True),
        ({"node_memory": "Off"}, False),
        ({"checksum": False}, False),
        ({"on_device": True}, False),
    ],
)
def test_memory_is_shared_by_default_and_with_any_transport_if_it_is_asked_for(settings, node):
    choice = opened(**settings)
    assert (bool(choice.memory.neighbours.node), choice.reason, choice.fallback) == (node, "", False)


@pytest.mark.parametrize("asked", ["Auto", "On"])
@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ({"shared": False}, "the kernel has no sealed files"),
        ({"fault": ValueError("a visitor does not get the arena")}, "a visitor does not get the arena"),
        ({"fault": OSError(13, "Permission denied")}, "Permission denied"),
    ],
)
def test_a_reason_is_given_and_it_is_a_fallback_only_if_memory_was_asked_for(monkeypatch, asked, lacking, reason):
    if fault := lacking.get("fault"):
        monkeypatch.setattr(selftest, "check", Mock(side_effect=fault))
    choice = opened(node_memory=asked, **{key: value for key, value in lacking.items() if key != "fault"})
    assert (choice.reason, choice.fallback) == (f"memory of the node: {reason}", asked == "On")
    assert not choice.memory.neighbours.node


@pytest.mark.parametrize("failing", [(), ("cuIpcGetMemHandle",)])
def test_an_arena_in_a_gpus_memory_is_opened_only_if_it_was_asked_for(monkeypatch, tmp_path, failing):
    """With a driver over files, since nothing of this was tried on a GPU yet."""
    libcuda = HostCuda(tmp_path, failing)
    monkeypatch.setattr(driver, "load", lambda: libcuda)
    monkeypatch.setattr(gpudirect, "check_plain", Mock())
    monkeypatch.setattr(device_selftest, "check", checked := Mock())
    choice = opened(on_device=True, node_memory="On", libcuda=libcuda)
    if failing:
        assert "cuIpcGetMemHandle" in choice.reason
        assert choice.fallback
    else:
        assert (choice.reason, checked.call_count, choice.memory.sums is not None) == ("", 1, True)
        assert choice.memory.neighbours.node
