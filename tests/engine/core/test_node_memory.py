"""Which workers read each other's memory, and the reason if they do not although they should."""

import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from legato_engine.core.handoff import node_memory
from legato_engine.kvcache.layout import KVLayout
from legato_engine.runner.arena import Arena
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.node import selftest

LAYOUT = KVLayout(layers=2, kv_heads=2, block_size=16, head_dim=16, dtype="float32")


def opened(shared=True, on_device=False, **settings):
    worker = WorkerSettings("decode", f"d-{os.getpid()}", "m", **settings)
    arena = Arena(LAYOUT, 2, torch.device("cpu"), shared=shared and worker.shares_memory)
    memory = ArenaMemory(arena.blocks, 2)
    if on_device:
        memory._words = None
    choice = node_memory.open_node(worker, SimpleNamespace(arena=arena), memory, "e", lambda: 0.0)
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
        ({"shared": False, "on_device": True}, "not for KV in a GPU's memory"),
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
