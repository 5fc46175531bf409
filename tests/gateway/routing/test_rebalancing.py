"""Hot workers and those that relieve them: over snapshots, and over random loads in virtual time."""

from dataclasses import replace
from typing import Any

import pytest

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.rebalancing import hot_workers
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
