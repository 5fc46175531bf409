"""Which workers are hot, and who relieves them: over snapshots, and over random loads in virtual time."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.rebalancing import HotWorker, hot_workers
from legato_protocol.load import DecodeCoefficients

TPOT = 0.1
COST = DecodeCoefficients(0.02, 0.004, 0.000_001)  # 20 sequences without context take TPOT


def worker(name: str, running: int, **overrides: Any) -> WorkerView:
    """With 500 tokens of context for each sequence, and room for 100 blocks for each that could run."""
    fields = {"epoch": "e", "kv_revision": "r", "block_size": 16, "num_blocks": 4000, "max_length": 8000}
    load = {"running": running, "context_tokens": 500 * running, "free_blocks": 4000 - 32 * running}
    return WorkerView(name=name, role="decode", **{**fields, **load, "decode_cost": COST, **overrides})


def hot(*workers: WorkerView) -> dict[str, str]:
    return {each.worker.name: each.reason for each in hot_workers(FleetSnapshot(workers), TPOT)}


def relief(source: WorkerView, *others: WorkerView, tokens: int = 500) -> list[str]:
    (found,) = hot_workers(FleetSnapshot((source,)), TPOT)
    return [other.name for other in others if found.relieved_by(other, tokens)]


def test_a_worker_is_hot_when_its_steps_with_what_it_runs_exceed_the_objective():
    assert hot(worker("a", 17), worker("b", 18)) == {"b": "step_time"}
    assert hot(worker("a", 0, decode_cost=DecodeCoefficients(0.0, 0.0, 0.0))) == {}


def test_not_if_its_steps_were_seen_to_take_clearly_less():
    """Half of its sequences have clients that do not read."""
    assert hot(worker("a", 40, step_time=0.09), worker("b", 40, step_time=0.091)) == {"b": "step_time"}


def test_what_waits_there_makes_no_step_longer():
    assert hot(worker("a", 17, waiting=20)) == {}


def test_or_when_its_sequences_soon_have_no_block_to_grow_into():
    assert hot(worker("a", 10, free_blocks=19), worker("b", 10, free_blocks=20)) == {"a": "kv_cache"}
    assert hot(worker("a", 10, free_blocks=40, asked_blocks=21)) == {"a": "kv_cache"}, "preempted ones want theirs"
    assert hot(worker("a", 0, free_blocks=0)) == {}


@pytest.mark.parametrize("state", [{"draining": True}, {"ready": False}, {"decode_cost": None}, {"role": "prefill"}])
def test_workers_that_leave_or_are_unknown_are_not_hot(state):
    assert hot(replace(worker("a", 40), **state)) == {}


def test_a_hot_worker_is_relieved_by_cool_ones():
    assert relief(worker("a", 30), worker("b", 2), worker("c", 0, decode_cost=None)) == ["b", "c"]


def test_not_by_one_that_is_hot_too_or_would_be():
    """With one more, 16 rows take 0.0925 s and 15 take 0.088: 0.9 of the objective is 0.09."""
    assert relief(worker("a", 40), worker("b", 30), worker("c", 15), worker("d", 14)) == ["d"]


def test_what_was_just_sent_to_a_target_counts():
    crowded = {"pending_sequences": 3}, {"waiting": 3}, {"pending_blocks": 1000}
    assert relief(worker("a", 40), *(worker(f"b{i}", 14, **each) for i, each in enumerate(crowded))) == []


def test_nor_by_one_that_then_takes_about_as_long():
    """Slow workers: the source without it takes 0.12 s, of which 0.9 are more than the objective allows."""
    slow = DecodeCoefficients(0.02, 0.05, 0.0)
    assert relief(worker("a", 2, decode_cost=slow), worker("b", 1, decode_cost=slow)) == []
    assert relief(worker("a", 2, decode_cost=slow), worker("b", 0, decode_cost=slow)) == []


def test_nor_by_one_of_little_room():
    """32 blocks and one to grow into for the sequence, and 4 for each of three."""
    assert relief(worker("a", 40), worker("b", 2, free_blocks=44), worker("c", 2, free_blocks=45)) == ["c"]
    assert relief(worker("a", 40), worker("c", 2, free_blocks=60, asked_blocks=16)) == []


def test_a_full_arena_is_relieved_by_one_that_stays_clearly_roomier():
    """Without the sequence 35 blocks of 4,000 are free: 0.9 %. With it, and one block more, 11 % must be."""
    full = worker("a", 10, free_blocks=3)
    assert relief(full, worker("b", 2, free_blocks=466), worker("c", 2, free_blocks=469)) == ["c"]


def test_a_full_arena_is_not_relieved_by_a_hot_worker():
    assert relief(worker("a", 10, free_blocks=3), worker("b", 20)) == []


# ── in virtual time ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class Sequence:
    tokens: int
    left: int
    moves: list[tuple[str, str]] = field(default_factory=list)


class Pool:
    """Workers of sequences that grow by a token a step and end; views are exact."""

    def __init__(self, seed: int, workers: int) -> None:
        self.random = random.Random(seed)
        self.on: dict[str, list[Sequence]] = {f"d{i}": [] for i in range(workers)}

    def view(self, name: str) -> WorkerView:
        there = self.on[name]
        context, used = sum(s.tokens for s in there), sum(-(-s.tokens // 16) for s in there)
        return worker(name, len(there), context_tokens=context, free_blocks=max(0, 4000 - used))

    def arrive(self, count: int, least: float) -> None:
        """Some to one worker, the others spread: routing knows no lengths."""
        for _ in range(count):
            name = "d0" if self.random.random() < least else self.random.choice(list(self.on))
            self.on[name].append(Sequence(self.random.choice((50, 500, 4000)), self.random.choice((100, 2000))))

    def step(self) -> None:
        for name, there in self.on.items():
            for each in there:
                each.tokens, each.left = each.tokens + 1, each.left - 1
            self.on[name] = [each for each in there if each.left]

    def hot(self) -> tuple[HotWorker, ...]:
        return hot_workers(FleetSnapshot(tuple(map(self.view, self.on))), TPOT)

    def rebalance(self) -> int:
        """As fast as can be, so that what bounds moves is the decision alone."""
        moves = 0
        while True:
            found = self._move()
            if not found:
                return moves
            moves += 1
            assert moves <= 1000, "it goes round and round"

    def _move(self) -> bool:
        for each in self.hot():
            source = each.worker.name
            for sequence in sorted(self.on[source], key=lambda s: s.tokens):
                targets = [n for n in self.on if n != source and each.relieved_by(self.view(n), sequence.tokens)]
                if targets:
                    target = self.random.choice(targets)
                    self.on[source].remove(sequence)
                    self.on[target].append(sequence)
                    sequence.moves.append((source, target))
                    return True
        return False


@pytest.mark.parametrize("seed", range(20))
def test_of_a_fixed_load_no_sequence_moves_back(seed):
    """However moves are drawn, they end, no sequence moves twice and no worker becomes hot by them."""
    pool = Pool(seed, 4)
    pool.arrive(pool.random.choice((5, 30, 60, 200)), pool.random.random())
    before = {each.worker.name for each in pool.hot()}
    pool.rebalance()
    assert {each.worker.name for each in pool.hot()} <= before
    assert all(len(each.moves) <= 1 for there in pool.on.values() for each in there)


@pytest.mark.parametrize("seed", range(10))
def test_of_loads_that_come_and_go_few_sequences_move_and_none_goes_to_and_fro(seed):
    pool, every, moves = Pool(seed, 4), [], 0
    for _ in range(300):
        pool.arrive(pool.random.choice((0, 0, 1)), 0.4)
        for _ in range(10):
            pool.step()
        moves += pool.rebalance()
        every += [each for there in pool.on.values() for each in there if each not in every]
    assert moves == sum(len(each.moves) for each in every)
    assert moves <= len(every), "on average less than once each"
    assert max(Counter(each.moves)[pair] for each in every for pair in [*each.moves, ("", "")]) <= 1


def test_the_hot_worker_of_a_roomy_pool_cools_down():
    pool = Pool(1, 4)
    pool.on["d0"] = [Sequence(500, 1000) for _ in range(30)]
    assert [each.worker.name for each in pool.hot()] == ["d0"]
    moves = pool.rebalance()
    assert pool.hot() == ()
    assert moves == 13, "not one more than needed"


@pytest.mark.parametrize("running", [30, 5], ids=["all are hot", "none is"])
def test_nothing_moves_when(running):
    pool = Pool(1, 4)
    pool.on = {name: [Sequence(500, 1000) for _ in range(running)] for name in pool.on}
    assert pool.rebalance() == 0
