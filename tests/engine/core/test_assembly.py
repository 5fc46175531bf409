"""The parts of a core follow from its settings."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from readiness import wait_readable

from legato_engine import memory
from legato_engine.core import assembly
from legato_engine.core.assembly import niceness, scheduler_limits
from legato_engine.core.frames import Start
from legato_engine.core.handoff.link import LinkOpener
from legato_engine.core.handoff.node_memory import NodeChoice
from legato_engine.errors import TooLittleMemory
from legato_engine.kvcache.layout import KVLayout
from legato_engine.runner import cores
from legato_engine.runner.arena import Arena
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.session.events import Arrived, Granted
from legato_protocol.settings.flags import SettingsError
from legato_protocol.wire import block_hash
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Peer

LAYOUT = KVLayout(layers=2, kv_heads=2, block_size=16, head_dim=16, dtype="float16")
BLOCKS, LONGEST = 12, 100  # tokens of the longest sequence


class DeviceArena(Arena):
    """Says of itself that only a device reaches it."""

    on_host = False


def opener(settings):
    arena = DeviceArena(LAYOUT, BLOCKS, torch.device("cpu"))
    runner = SimpleNamespace(layout=LAYOUT, num_blocks=BLOCKS, kv_revision="kv", arena=arena, fallback="")
    return runner, LinkOpener(settings, runner, LONGEST, lambda what, share: None)


@pytest.mark.parametrize(
    ("fields", "windows", "lone"),
    [
        ({"device": "cuda"}, (), 2048 + 64),
        ({"device": "cuda", "chunk_tokens": 512}, (), 0),
        ({"device": "cuda"}, (128,), 0),  # blocks of windows hold one chunk
        ({}, (), 0),
    ],
)
def test_a_prompt_alone_on_a_gpu_takes_the_room_of_decodes(fields, windows, lone):
    settings = WorkerSettings("unified", "u0", "m", **fields)
    assert scheduler_limits(settings, 9000, 127, windows).lone_chunk == lone


@pytest.mark.parametrize(
    ("fields", "shares"),
    [
        ({}, True),
        ({"threads": 1}, False),
        ({"device": "cuda"}, False),
        ({"runner": "paced", "profile": "x"}, False),  # it computes nothing
        ({"time_slices": None}, False),
    ],
)
def test_workers_with_more_threads_than_cores_take_time_slices(tmp_path, monkeypatch, fields, shares):
    monkeypatch.setattr(assembly.os, "sched_getaffinity", lambda _process: {0, 1})
    settings = WorkerSettings("prefill", "w0", "m", **{"time_slices": str(tmp_path), **fields})
    pair = [assembly.open_slices(settings, time.monotonic) for _ in range(2)]
    assert [slices.shared for slices in pair] == [shares] * 2
    for slices in pair:
        slices.close()


@pytest.mark.parametrize(
    ("role", "folder", "yields"), [("prefill", "f", True), ("prefill", None, False), ("decode", "f", False)]
)
def test_prompts_yield_to_tokens_on_the_same_cores(role, folder, yields):
    assert (niceness(WorkerSettings(role, "w0", "m", time_slices=folder)) > 0) == yields


def test_a_folder_of_time_slices_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").touch()
    settings = WorkerSettings("prefill", "w0", "m", time_slices=str(tmp_path / "file"))
    with pytest.raises(SettingsError, match=r"^--time-slices: .*/file"):
        assembly.open_slices(settings, time.monotonic)


@pytest.mark.parametrize(
    ("runner", "device", "bound"), [("model", "cpu", 1), ("model", "cuda", 0), ("paced", "cpu", 0)]
)
def test_threads_of_steps_have_cores_of_their_own_once_the_model_is_loaded(monkeypatch, runner, device, bound):
    done = []

    def note(what):
        done.append((what, threading.get_ident()))
        return SimpleNamespace(runner=None, max_length=LONGEST)

    monkeypatch.setattr(assembly, "_loader", lambda *_named: lambda *_given: note("loaded"))
    monkeypatch.setattr(cores, "bind", lambda _rank: note("bound"))
    settings = WorkerSettings("unified", "w0", "m", runner=runner, device=device)
    with pytest.raises(AttributeError):  # there is no runner
        assembly.load(Start(settings, "", "e"), lambda what, share: None, time.monotonic)
    thread = done[0][1]
    assert done == [("loaded", thread), *[("bound", thread)] * bound]
    assert thread != threading.get_ident()


def test_memory_that_only_the_device_reaches_is_handed_over_through_the_host_s():
    """By the agents that two workers would get, over UCX."""
    arenas, agents = [], []
    for name, role in (("a", "prefill"), ("b", "decode")):
        settings = WorkerSettings(role, name, "m", transport="TCP", block_size=16)
        runner, link = opener(settings)
        arenas.append(runner.arena)
        carrier, memory = link.open(), ArenaMemory(runner.arena.blocks, runner.num_blocks)
        arena = assembly._arena(settings, runner, memory, carrier, NodeChoice())
        agents.append(assembly._agent(settings, runner, arena, carrier, f"epoch-{name}", time.monotonic))
    sender, receiver = agents
    arenas[0].blocks.copy_(torch.randn(arenas[0].blocks.shape))
    root = block_hash.root("kv")
    tokens = pack_tokens(range(64))
    sender.expect(1, 1, Peer("b", "epoch-b", receiver.address), root)
    receiver.grant(1, 1, Peer("a", "epoch-a", sender.address), [9, 2, 4, 7], 0, root)
    seen, deadline = [], time.monotonic() + 90
    try:
        while not any(isinstance(event, Arrived) for event in seen):
            assert time.monotonic() < deadline, seen
            wait_readable([sender.fileno(), receiver.fileno()], 0.01)
            for event in sender.poll():
                if isinstance(event, Granted):
                    sender.push(1, 0, [1, 3, 5, 8], block_hash.chain(tokens, 16, root))
                    sender.finish(1, tokens, 64, ())
            seen += receiver.poll()
        assert torch.equal(arenas[1].blocks[[9, 2, 4, 7]], arenas[0].blocks[[1, 3, 5, 8]])
        assert not arenas[1].blocks[[0, 1, 3, 5, 6, 8, 10, 11]].any()
    finally:
        for agent in agents:
            agent.close()


def test_too_little_memory_of_the_host_for_hand_offs_is_refused(monkeypatch):
    _, link = opener(WorkerSettings("unified", "a", "m", transport="TCP", block_size=16))
    monkeypatch.setattr(memory, "available", lambda: 18 * LAYOUT.block_bytes)
    with pytest.raises(TooLittleMemory, match="7 blocks of 4,096 bytes that a sequence lands in and 12"):
        link.open()
