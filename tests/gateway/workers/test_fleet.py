"""What is kept of each worker: the views that policy decides over, what was sent since, and what opens."""

import pytest
from scripted_gateway import Clock

from legato_gateway.workers.fleet import BREAKER_WINDOW, Fleet
from legato_protocol.load import Load
from legato_protocol.stream import Hello


def hello(**overrides):
    fields = {"worker": "u0", "epoch": "e1", "role": "unified", "kv_revision": "r", "weights": "w", "layout": "l"}
    sizes = {"block_size": 16, "num_blocks": 100, "max_length": 1000, "address": b"u0", "transport": "memory"}
    return Hello(**{**fields, **sizes, "model": "m", **overrides})


def load(**overrides):
    fields = {"queue_tokens": 0, "waiting": 0, "running": 0, "free_blocks": 100, "cached_blocks": 0, "used_blocks": 0}
    return Load(**{**fields, "quarantined_blocks": 0, "credits": 8, **overrides})


@pytest.fixture
def fleet():
    made = Fleet(Clock(), "m")
    made.add("u0", "address")
    made.greeted("u0", hello())
    made.loaded("u0", load())
    return made


def view(fleet):
    fleet.check_integrity()
    (only,) = fleet.snapshot().workers
    return only


def test_only_the_second_load_after_it_surely_counts_what_was_sent(fleet):
    """The first one may have been on its way when the frame was sent."""
    fleet.sent("u0", queued=30, held=40)
    for _ in range(2):
        assert (view(fleet).pending_tokens, view(fleet).pending_blocks, view(fleet).pending_sequences) == (30, 3, 1)
        fleet.loaded("u0", load())
    assert (view(fleet).pending_tokens, view(fleet).pending_blocks, view(fleet).pending_sequences) == (0, 0, 0)


def test_a_new_epoch_has_been_sent_nothing_and_has_not_failed(fleet):
    fleet.sent("u0", queued=30, held=40)
    for request in "abc":
        fleet.failed("u0", request)
    assert view(fleet).broken
    fleet.greeted("u0", hello())
    assert view(fleet).broken
    assert view(fleet).pending_sequences == 1
    fleet.greeted("u0", hello(epoch="e2"))
    assert not view(fleet).broken
    assert view(fleet).pending_sequences == 0


def test_a_breaker_closes_in_time_and_that_is_an_opening(fleet):
    for request in "abc":
        fleet.failed("u0", request)
    assert view(fleet).broken
    before = fleet.openings
    fleet._clock.now = BREAKER_WINDOW - 0.01
    assert view(fleet).broken
    fleet._clock.now = BREAKER_WINDOW
    assert fleet.openings > before  # whoever waits compares this before a snapshot is taken
    assert not view(fleet).broken


def test_one_request_that_fails_often_opens_no_breaker(fleet):
    for _ in range(10):
        fleet.failed("u0", "a")
    assert not view(fleet).broken


def test_a_snapshot_is_kept_while_nothing_changes_and_other_views_always(fleet):
    fleet.add("u1", "address")
    fleet.greeted("u1", hello(worker="u1"))
    before = fleet.snapshot()
    assert fleet.snapshot() is before
    fleet.loaded("u0", load(running=3))
    after = {worker.name: worker for worker in fleet.snapshot().workers}
    assert after["u0"].running == 3
    assert after["u1"] is next(worker for worker in before.workers if worker.name == "u1")


@pytest.mark.parametrize(
    ("change", "opens"),
    [
        (lambda fleet: fleet.loaded("u0", load()), False),
        (lambda fleet: fleet.loaded("u0", load(free_blocks=50, running=4, queue_tokens=90, credits=5)), False),
        (lambda fleet: fleet.sent("u0", queued=1, held=1), False),
        (lambda fleet: fleet.loaded("u0", load(free_blocks=101)), True),
        (lambda fleet: fleet.loaded("u0", load(cached_blocks=1)), True),
        (lambda fleet: fleet.loaded("u0", load(paused_blocks=1)), True),
        (lambda fleet: fleet.loaded("u0", load(credits=9)), True),
        (lambda fleet: fleet.loaded("u0", load(prefill_rate=1.0)), True),
        (lambda fleet: fleet.loaded("u0", load(draining=True)), True),  # others may be forgiven now
        (lambda fleet: fleet.gone("u0", "silent", "why"), True),
        (lambda fleet: fleet.list("u0", False), True),
        (lambda fleet: fleet.greeted("u0", hello(epoch="e2")), True),
        (lambda fleet: fleet.remove("u0"), True),
    ],
)
def test_an_opening_is_what_may_let_something_start(fleet, change, opens):
    before = fleet.openings
    change(fleet)
    fleet.check_integrity()
    assert (fleet.openings > before) is opens


def test_a_shorter_queue_is_an_opening(fleet):
    fleet.loaded("u0", load(queue_tokens=50))
    before = fleet.openings
    fleet.loaded("u0", load(queue_tokens=49))
    assert fleet.openings > before


def test_a_worker_of_another_model_is_no_part_of_the_snapshot(fleet):
    fleet.greeted("u0", hello(model="other"))
    assert fleet.snapshot().workers == ()
    fleet.check_integrity()


def test_that_very_process_lives_only_while_its_epoch_is_connected(fleet):
    assert fleet.lives("u0", "e1")
    fleet.gone("u0", "silent", "why")
    assert fleet.lives("u0", "e1"), "it may hang, but it has not died"
    fleet.gone("u0", "connecting", "why")
    assert not fleet.lives("u0", "e1")
    fleet.greeted("u0", hello(epoch="e2"))
    assert not fleet.lives("u0", "e1")


def test_it_is_known_who_serves_when_every_listed_worker_was_tried():
    """What appears later changes nothing about that."""
    fleet = Fleet(Clock(), "m")
    fleet.add("u0", "address")
    fleet.add("u1", "address")
    fleet.greeted("u0", hello())
    fleet.gone("u1", "connecting", "refused")
    assert not fleet.has_tried_all
    other = Fleet(Clock(), "m")
    other.add("u0", "address")
    other.add("u1", "address")
    other.listed()
    other.greeted("u0", hello())
    assert not other.has_tried_all
    other.gone("u1", "connecting", "refused")
    assert other.has_tried_all
    other.add("u2", "address")
    other.greeted("u0", hello(epoch="e2"))
    assert other.has_tried_all
    fleet.listed()
    assert fleet.has_tried_all


def test_a_worker_that_is_listed_no_more_need_not_be_tried():
    fleet = Fleet(Clock(), "m")
    fleet.add("u0", "address")
    fleet.listed()
    assert not fleet.has_tried_all
    fleet.remove("u0")
    assert fleet.has_tried_all
