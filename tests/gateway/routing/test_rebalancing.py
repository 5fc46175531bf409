"""Hot workers and those that relieve them: over snapshots, and over random loads in virtual time."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from budget import times

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.rebalancing import HotWorker, hot_workers
from legato_protocol.wire.load import DecodeCoefficients

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


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        # its steps with what it runs exceed the objective
        ((worker("a", 17), worker("b", 18)), {"b": "step_time"}),
        ((worker("a", 0, decode_cost=DecodeCoefficients(0.0, 0.0, 0.0)),), {}),
        # not if they were seen to take clearly less: half of its sequences have clients that do not read
        ((worker("a", 40, step_time=0.09), worker("b", 40, step_time=0.091)), {"b": "step_time"}),
        ((worker("a", 17, waiting=20),), {}),  # what waits makes no step longer
        # its sequences soon have no block to grow into
        ((worker("a", 10, free_blocks=19), worker("b", 10, free_blocks=20)), {"a": "kv_cache"}),
        ((worker("a", 10, free_blocks=40, asked_blocks=21),), {"a": "kv_cache"}),  # preempted ones want theirs
        ((worker("a", 0, free_blocks=0),), {}),
        # workers that leave or are unknown
        ((worker("a", 40, draining=True),), {}),
        ((worker("a", 40, ready=False),), {}),
        ((worker("a", 40, decode_cost=None),), {}),
        ((replace(worker("a", 40), role="prefill"),), {}),
    ],
)
def test_a_worker_is_hot_by_its_steps_or_its_arena(workers, expected):
    assert hot(*workers) == expected


HOT, FULL = worker("a", 40), worker("a", 10, free_blocks=3)
SLOW = DecodeCoefficients(0.02, 0.05, 0.0)


@pytest.mark.parametrize(
    ("source", "others", "expected"),
    [
        (worker("a", 30), (worker("b", 2), worker("c", 0, decode_cost=None)), ["b", "c"]),
        # not by one that is hot too or would be: with one more, 16 rows take 0.0925 s and 15 take 0.088
        (HOT, (worker("b", 30), worker("c", 15), worker("d", 14)), ["d"]),
        # what was just sent to a target counts
        (HOT, (worker("b", 14, pending_sequences=3), worker("c", 14, waiting=3)), []),
        (HOT, (worker("b", 14, pending_blocks=1000),), []),
        # nor by one that then takes about as long: the source without it takes 0.12 s, of which 0.9 are too much
        (worker("a", 2, decode_cost=SLOW), (worker("b", 1, decode_cost=SLOW), worker("c", 0, decode_cost=SLOW)), []),
        # nor by one of little room: 32 blocks and one to grow into for the sequence, and 4 for each of three
        (HOT, (worker("b", 2, free_blocks=44), worker("c", 2, free_blocks=45)), ["c"]),
        (HOT, (worker("c", 2, free_blocks=60, asked_blocks=16),), []),
        # a full arena by one that stays clearly roomier: without the sequence 0.9 % are free; with it, 11 % must be
        (FULL, (worker("b", 2, free_blocks=466), worker("c", 2, free_blocks=469)), ["c"]),
        (FULL, (worker("b", 20),), []),  # which is hot
    ],
)
def test_a_hot_worker_is_relieved_by_cool_ones_with_room(source, others, expected):
    assert relief(source, *others) == expected


@dataclass(eq=False)
class Sequence:
    tokens: int
    left: int
    moves: list[tuple[str, str]] = field(default_factory=list)


class Pool:
    """Workers of sequences that grow by a token a step and end; views are exact."""

    def __init__(self, seed: int, *running: int) -> None:
        self.random = random.Random(seed)
        self.on = {f"d{i}": [Sequence(500, 1000) for _ in range(count)] for i, count in enumerate(running)}

    @property
    def sequences(self) -> list[Sequence]:
        return [each for there in self.on.values() for each in there]

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

    @property
    def hot(self) -> dict[str, HotWorker]:
        return {each.worker.name: each for each in hot_workers(FleetSnapshot(tuple(map(self.view, self.on))), TPOT)}

    def rebalance(self) -> int:
        """Moves as fast as can be, so that only the decision bounds the moves; returns their number."""
        for moves in range(1000):
            possible = self._moves()
            if not possible:
                return moves
            sequence, source, target = self.random.choice(possible)
            self.on[source].remove(sequence)
            self.on[target].append(sequence)
            sequence.moves.append((source, target))
        raise AssertionError("it goes round and round")

    def _moves(self) -> list[tuple[Sequence, str, str]]:
        """The shortest sequence of the first hot worker that can go, to each of its targets."""
        for source, hot in self.hot.items():
            for each in sorted(self.on[source], key=lambda s: s.tokens):
                targets = [name for name in self.on if name != source and hot.relieved_by(self.view(name), each.tokens)]
                if targets:
                    return [(each, source, target) for target in targets]
        return []


@pytest.mark.parametrize("seed", range(times(3)))
def test_of_loads_that_come_and_go_few_sequences_move_and_none_goes_to_and_fro(seed):
    pool, every, moves = Pool(seed, 0, 0, 0, 0), {}, 0
    for _ in range(300):
        pool.arrive(pool.random.choice((0, 0, 1)), 0.4)
        for _ in range(10):
            pool.step()
        moves += pool.rebalance()
        every |= dict.fromkeys(pool.sequences)
    assert moves == sum(len(each.moves) for each in every)
    assert moves <= len(every), "on average less than once each"
    assert all(len(set(each.moves)) == len(each.moves) for each in every)


@pytest.mark.parametrize(
    ("running", "hot", "moves", "left"),
    [((30, 0, 0, 0), 1, 13, 0), ((30, 30, 30, 30), 4, 0, 4), ((5, 5, 5, 5), 0, 0, 0)],
    ids=["one is hot", "all are", "none is"],
)
def test_a_hot_worker_cools_down_with_the_fewest_moves_if_others_have_room(running, hot, moves, left):
    pool = Pool(1, *running)
    assert len(pool.hot) == hot
    assert pool.rebalance() == moves
    assert len(pool.hot) == left
