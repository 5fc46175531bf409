"""The first rank and the others agree on weights and adapters, whatever happens to one of them."""

import importlib.metadata
import pickle
import threading
from multiprocessing import Pipe
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_llama
import torch

from legato_engine.backends.sharded.rank import Rank
from legato_engine.errors import AdapterFailed, StartFailed
from legato_engine.runner.ranks import first, follower, parts
from legato_engine.runner.ranks.first import FirstRank, OtherRanks
from legato_engine.runner.ranks.follower import Follower
from legato_engine.runner.ranks.messages import AddAdapter, DropAdapter, Loaded, LoadProgress
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
