"""The first rank and the others agree on weights and adapters, whatever happens to one of them."""

import importlib.metadata
import pickle
import re
import threading
from contextlib import nullcontext
from multiprocessing import Pipe
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_llama
import torch

from legato_engine.backends.sharded import device_handles, shared_memory
from legato_engine.backends.sharded.rank import Rank
from legato_engine.errors import AdapterFailed, NoDevice, StartFailed
from legato_engine.runner.ranks import degrees, first, follower, loading, parts
from legato_engine.runner.ranks.first import FirstRank, OtherRanks
from legato_engine.runner.ranks.follower import Follower
from legato_engine.runner.ranks.messages import AddAdapter, DropAdapter, Join, Loaded, LoadProgress, TryGroup, UseGroup
from legato_engine.runner.ranks.parts import RankPart
from legato_engine.weights.opening import open_weights


class Others:
    """Replaces `OtherRanks`: notes messages, and counts the adapters whose answers were awaited."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.refusals: list[Exception] = []
        self.answered = 0

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def wait_answers(self) -> None:
        self.answered += 1
        if self.refusals:
            raise self.refusals.pop()

    def wait_joined(self) -> list[str]:
        return [str(each) for each in self.refusals]


def first_rank(others: Any, faults: list[Exception]) -> FirstRank:
    def adapter(_pairs: Any) -> Any:
        if faults:
            raise faults.pop()
        return SimpleNamespace(nbytes=1)

    backend: Any = SimpleNamespace(adapter=adapter)
    nothing: Any = None
    return FirstRank(RankPart(backend, nothing, Rank(0, 2), nothing, 1), others)


def test_other_ranks_drop_an_adapter_before_the_next_message() -> None:
    """Not when it is freed: that may be while the same thread sends."""
    others = Others()
    first = first_rank(others, [])
    first.adapter({})
    assert others.sent == [AddAdapter(0, {})]
    kept = first.adapter({})
    assert (kept.number, others.sent[1:]) == (1, [DropAdapter(0), AddAdapter(1, {})])


def test_an_adapter_that_a_rank_cannot_hold_is_dropped_and_its_answers_are_not_those_for_the_next() -> None:
    others = Others()
    first = first_rank(others, [MemoryError()])
    with pytest.raises(MemoryError):
        first.adapter({})
    assert others.answered == 1
    others.refusals.append(AdapterFailed("rank 1: no room"))
    with pytest.raises(AdapterFailed):
        first.adapter({})
    first.adapter({})
    assert others.sent[1:] == [DropAdapter(0), AddAdapter(1, {}), DropAdapter(1), AddAdapter(2, {})]


def connected() -> tuple[OtherRanks, Any]:
    """Other ranks of which there is one, and its end of the connection."""
    others, (mine, other) = OtherRanks.__new__(OtherRanks), Pipe()
    process: Any = SimpleNamespace(kill=other.close, wait=lambda: -9)
    others._connections, others._processes = [mine], [process]
    return others, other


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Ranks, with their exit statuses, whose end would have ended this process."""
    ended: list[Any] = []

    def end_too(*status: int) -> None:
        ended.append(status)
        raise SystemExit

    monkeypatch.setattr(first, "_end_too", end_too)
    return ended


def test_an_adapter_that_another_rank_cannot_hold_is_refused() -> None:
    """Nobody waits for ever, and that rank computes on."""
    answered, follower = Event(), Follower.__new__(Follower)
    others, connection = connected()

    def answer(message: Any) -> None:
        connection.send_bytes(pickle.dumps(message))
        answered.set()

    follower._answer, follower._adapters = answer, {}
    follower._backend = SimpleNamespace(adapter=lambda _pairs: torch.ones(2) @ torch.ones(3))  # type: ignore[assignment]
    follower.handle(AddAdapter(0, {}))
    assert answered.wait(60)
    with pytest.raises(AdapterFailed, match=r"rank 1: RuntimeError: .*size"):
        others.wait_answers()


def test_a_rank_that_stands_still_while_it_takes_an_adapter_ends_with_the_core(
    ended: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    others, _ = connected()
    monkeypatch.setattr(first, "_ANSWER", 0.01)
    with pytest.raises(SystemExit):
        others.wait_answers()
    assert ended == [(1, -9)]


def test_the_core_ends_when_it_sends_to_a_rank_that_ended(ended: list[Any]) -> None:
    """Otherwise a request would fail because its adapter could not be sent."""
    others, connection = connected()
    others._sending = threading.Lock()
    connection.close()
    with pytest.raises(SystemExit):
        others.send(DropAdapter(0))
    assert ended == [(1, -9)]


def test_a_rank_ends_quietly_when_the_first_one_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while it loads, and while a thread of it takes an adapter."""
    (mine, other), gone, raised = Pipe(), Event(), list[Any]()

    class Loading(Follower):
        def __init__(self, _load: Any, _checkpoint: Any, answer: Any, _gpu: Any) -> None:
            self._answer, self._adapters = answer, {}
            self._backend: Any = SimpleNamespace(adapter=lambda _pairs: gone.wait(60))
            self._exchange: Any = SimpleNamespace(peers=None)
            self._backend.nbytes = 0
            answer(LoadProgress(0.5))

    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr(follower, "Follower", Loading)
    monkeypatch.setattr(follower, "open_weights", lambda *_: None)
    monkeypatch.setattr(follower.cores, "bind", lambda _rank: None)
    load: Any = SimpleNamespace(threads=None, device="cpu", path=None, quantization="None", rank=Rank(1, 2))
    mine.send_bytes(pickle.dumps(AddAdapter(0, {})))
    mine.close()
    assert follower.run(other, load) == 0
    (adapter,) = [thread for thread in threading.enumerate() if "_add" in thread.name]
    gone.set()
    adapter.join(60)
    assert not raised


@pytest.mark.parametrize(
    ("joined", "tried", "refusals", "steps", "sums"),
    [
        ("", "", [], 3, r"sums above 512 KiB by NCCL [\d.]+|sums above 512 KiB by NCCL none"),
        ("no NCCL", "", [], 1, "sums of any size by one-shot kernels, as NCCL cannot be used: no NCCL"),
        ("a", "", ["rank 2: b"], 1, "sums of any size by one-shot kernels, as NCCL cannot be used: a; rank 2: b"),
        ("", "", ["rank 2: b"], 1, "sums of any size by one-shot kernels, as NCCL cannot be used: rank 2: b"),
        ("", "no sum", [], 2, "sums of any size by one-shot kernels, as NCCL cannot be used: no sum"),
        (None, "", [], 0, ""),
    ],
)
def test_a_group_adds_large_tensors_once_all_ranks_have_joined_it_and_added(
    joined: str | None, tried: str, refusals: list[Any], steps: int, sums: str
) -> None:
    """Without one, or with the reason in the log and in `/state`, the one-shot kernel adds all."""
    others, files = Others(), list[bytes]()
    others.refusals = refusals

    def join(store: str) -> str | None:
        files.append(Path(store).read_bytes())
        return joined

    group: Any = None if joined is None else SimpleNamespace(join=join, try_sum=lambda: tried)
    exchange: Any = SimpleNamespace(peers=SimpleNamespace(group=None), group=group)
    assert re.fullmatch(sums, loading.join_group(exchange, others))  # type: ignore[arg-type]
    assert exchange.peers.group is (group if steps == 3 else None)
    assert [type(each) for each in others.sent] == [Join, TryGroup, UseGroup][:steps]
    assert files == [b""][:steps]


def test_another_rank_joins_a_group_and_uses_it_when_all_have_joined() -> None:
    others, connection = connected()
    rank = Follower.__new__(Follower)
    rank._answer = lambda message: connection.send_bytes(pickle.dumps(message))
    rank._exchange = exchange = SimpleNamespace(peers=SimpleNamespace(group=None), group=None)  # type: ignore[assignment]
    for reason, reported in (("", []), ("no NCCL", ["rank 1: no NCCL"])):
        exchange.group = SimpleNamespace(join={"store": reason}.__getitem__, try_sum=lambda: "no sum")
        rank.handle(Join("store"))
        assert others.wait_joined() == reported
        rank.handle(TryGroup())
        assert others.wait_joined() == ["rank 1: no sum"]
    assert exchange.peers.group is None
    rank.handle(UseGroup())
    assert exchange.peers.group is exchange.group


@pytest.mark.parametrize(
    ("device", "ranks", "memory", "group"),
    [("cpu", 4, False, False), ("cuda", 2, True, False), ("cuda", 3, True, True), ("cuda", 4, True, True)],
)
def test_more_than_two_gpus_add_by_a_group(
    monkeypatch: pytest.MonkeyPatch, device: str, ranks: int, memory: bool, group: bool
) -> None:
    for name in ("PeerMemory", "SumGroup"):
        monkeypatch.setattr(parts, name, lambda *given: given)
    gpu: Any = SimpleNamespace(place=SimpleNamespace(type=device))
    room: Any = SimpleNamespace(tokens=10)
    given = (Rank(1, ranks), gpu.place, 80)
    exchange = parts.open_exchange(given[0], shared_memory.make(ranks), gpu, room, 8)
    assert exchange[2:] == (given if memory else None, given if group else None)


def rebuilt(size: int, storage_device: int) -> tuple[int, int]:
    return size, storage_device


def test_memory_of_another_gpu_is_mapped_for_the_gpu_whose_kernels_read_it() -> None:
    handle = pickle.dumps((rebuilt, (8, 3)))
    assert device_handles.opened(handle) == (8, 3)  # type: ignore[comparison-overlap]
    assert device_handles.opened(handle, torch.device("cuda", 1)) == (8, 1)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("gpus", "unreachable", "refusal"),
    [
        (4, (), ""),
        (5, ((4, 0),), ""),
        (3, (), "4 ranks need a GPU each; torch sees 3; degrees that fit: 1, 2"),
        (4, ((2, 0),), "GPU 2 cannot access the memory of GPU 0"),
    ],
)
def test_ranks_have_gpus_that_reach_each_other(gpus: int, unreachable: Any, refusal: str) -> None:
    with pytest.raises(NoDevice, match=refusal) if refusal else nullcontext():
        degrees.check_gpus(4, gpus, lambda *pair: pair not in unreachable)
    degrees.check_gpus(1, 0)


def test_only_progress_of_other_ranks_is_a_sign_of_life_of_a_start() -> None:
    (others, connection), beats = connected(), []
    for message in (LoadProgress(0.5), LoadProgress(1.0), Loaded(7)):
        connection.send_bytes(pickle.dumps(message))
    assert others.wait_loaded(lambda: beats.append(1)) == [Loaded(7)]
    assert len(beats) == 2


def test_a_rank_that_finds_another_torch_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPUs, triton is not installed."""
    installed = importlib.metadata.distribution

    def distribution(name: str) -> importlib.metadata.Distribution:
        return installed("not-installed" if name == "triton" else name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    load: Any = SimpleNamespace(versions="Python 3.11.9, torch 2.8.0")
    nothing: Any = None
    with pytest.raises(StartFailed, match=r"it has Python .*, triton none, .*; the first rank has .* 2\.8\.0$"):
        Follower(load, nothing, lambda _answer: None)


def test_a_rank_that_finds_another_model_is_refused(tmp_path: Path) -> None:
    tiny_llama.write(tmp_path)
    load: Any = SimpleNamespace(versions=parts.versions(), files=parts.files(open_weights(tmp_path)))
    tiny_llama.write(tmp_path, intermediate_size=128)
    with pytest.raises(StartFailed, match="changed while the worker started"):
        Follower(load, open_weights(tmp_path), lambda _answer: None)
