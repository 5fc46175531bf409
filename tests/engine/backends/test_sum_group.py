"""Sums over ranks by a group of processes, over Gloo as over NCCL on GPUs, and the reasons for doing without."""

import os
from threading import Event
from types import SimpleNamespace

import pytest
import summing_ranks
import torch
import torch.distributed as dist
import uninterpreted
from summing_ranks import RANKS, SUMS

from legato_engine.backends.sharded import peer_memory
from legato_engine.backends.sharded.peer_memory import PeerMemory
from legato_engine.backends.sharded.rank import Rank
from legato_engine.backends.sharded.sum_group import SumGroup
from legato_engine.kernels.gpu import all_reduce
from legato_engine.runner.ranks import first

CPU = torch.device("cpu")


def test_ranks_add_in_their_order_and_none_waits_for_a_dead_one():
    joined, sums, status, after = uninterpreted.call(summing_ranks.run)
    assert joined == [""] * RANKS
    assert sums == [[[True, operations]] * RANKS for _, _, operations in SUMS]
    assert status == first.LOST
    assert after == ["adds", "RuntimeError"]


@pytest.fixture
def group(monkeypatch):
    monkeypatch.setattr(os, "environ", {"NCCL_SOCKET_IFNAME": "eth0"})
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(SumGroup, "add", lambda _, x: x.fill_(RANKS * (RANKS + 1) / 2))
    return SumGroup(Rank(1, RANKS), CPU, 100)


def fails(*_, **__):
    raise RuntimeError("NCCL error, version 2.29.7\n\n  Duplicate GPU detected\n")


@pytest.mark.parametrize(
    ("owner", "name", "fault", "joined", "added"),
    [
        (dist, "init_process_group", fails, "RuntimeError: NCCL error, version 2.29.7; Duplicate GPU detected", ""),
        (SumGroup, "add", fails, "", "RuntimeError: NCCL error, version 2.29.7; Duplicate GPU detected"),
        (SumGroup, "add", lambda *_: None, "", "a first sum was wrong"),
        (dist, "is_backend_available", lambda _: False, f"torch {torch.__version__} was built without gloo", ""),
        (dist, "is_available", lambda: False, f"torch {torch.__version__} was built without gloo", ""),
        (dist, "init_process_group", lambda *_, **__: Event().wait(), "3 ranks did not join within 0.2 s", ""),
        (SumGroup, "add", lambda *_: Event().wait(), "", "3 ranks did not add within 0.2 s"),
    ],
)
def test_a_group_that_cannot_add_has_a_reason(group, monkeypatch, tmp_path, owner, name, fault, joined, added):
    """A rank adds only when all have joined: `join` adds nothing."""
    assert (group.join(str(tmp_path / "store")), group.try_sum()) == ("", "")
    assert os.environ.items() >= {"NCCL_SOCKET_IFNAME": "eth0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}.items()
    monkeypatch.setattr(owner, name, fault)
    seconds = 0.2 if "within" in joined + added else 60
    assert (group.join(str(tmp_path / "store"), seconds), group.try_sum(seconds)) == (joined, added)


@pytest.mark.parametrize(
    ("numbers", "dtype", "joined", "by"),
    [
        (1 << 17, torch.float32, True, "kernel"),
        ((1 << 17) + 4, torch.float32, True, "group"),
        ((1 << 17) + 2, torch.float32, True, "kernel"),  # four ranks do not divide it
        ((1 << 17) + 4, torch.bfloat16, True, "kernel"),
        ((1 << 18) + 4, torch.bfloat16, True, "group"),
        ((1 << 18) + 4, torch.bfloat16, False, "kernel"),
    ],
)
def test_the_group_adds_what_is_larger_than_512_KiB(monkeypatch, numbers, dtype, joined, by):
    added = set()
    monkeypatch.setattr(peer_memory, "chip_of", lambda _: "interpreter")
    monkeypatch.setattr(all_reduce, "add_ranks", lambda *_: added.add("kernel"))
    peers = PeerMemory(Rank(1, 4), CPU, 1 << 18)
    peers.group = SimpleNamespace(add=lambda _: added.add("group")) if joined else None
    peers.add(torch.zeros(numbers, dtype=dtype))
    assert added == {by}
