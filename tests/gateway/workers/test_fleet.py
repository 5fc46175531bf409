"""The fleet keeps each worker: the views that policy decides over, what was sent since, and openings."""

import msgspec
import pytest
from scripted_gateway import Clock

from legato_gateway.workers.fleet import BREAKER_WINDOW, Fleet
from legato_protocol.wire.load import Load
from legato_protocol.wire.stream import Hello

HELLO = Hello("u0", "e1", "unified", "r", "w", "l", 16, 100, 1000, b"u0", "memory", model="m")
LOAD = Load(0, 0, 0, 100, 0, 0, 0, credits=8)


def hello(**changes):
    return msgspec.structs.replace(HELLO, **changes)


def load(**changes):
    return msgspec.structs.replace(LOAD, **changes)


def listing(*names):
    """A fleet of workers that were not spoken to yet."""
    fleet = Fleet(Clock(), "m")
    for name in names:
        fleet.add(name, "address")
    return fleet


@pytest.fixture
def fleet():
    made = listing("u0")
    made.greeted("u0", HELLO)
    made.loaded("u0", LOAD)
    return made


def view(fleet):
    fleet.check_integrity()
    (only,) = fleet.snapshot().workers
    return only


def pending(fleet):
    return view(fleet).pending_tokens, view(fleet).pending_blocks, view(fleet).pending_sequences


def test_a_view_has_the_figures_of_the_last_load(fleet):
    told = {"queue_tokens": 1, "waiting": 2, "running": 3, "step_time": 0.4, "put_rate": 5.0, "shares_cores": True}
    fleet.loaded("u0", load(**told))
    assert {name: getattr(view(fleet), name) for name in told} == told


def test_only_the_second_load_after_it_surely_counts_what_was_sent(fleet):
    """The first one may have been on its way when the frame was sent."""
    fleet.sent("u0", queued=30, held=40)
    for expected in ((30, 3, 1), (30, 3, 1), (0, 0, 0)):
        assert pending(fleet) == expected
        fleet.loaded("u0", LOAD)


def test_a_new_epoch_has_been_sent_nothing_and_has_not_failed(fleet):
    fleet.sent("u0", queued=30, held=40)
    for request in "abc":
        fleet.failed("u0", request)
    for greeting, broken, sequences in ((HELLO, True, 1), (hello(epoch="e2"), False, 0)):
        assert view(fleet).broken
        fleet.greeted("u0", greeting)
        assert (view(fleet).broken, view(fleet).pending_sequences) == (broken, sequences)


def test_a_breaker_closes_in_time_and_that_is_an_opening(fleet):
    for request in "abc":
        fleet.failed("u0", request)
    before = fleet.openings
    for now in (0, BREAKER_WINDOW - 0.01):
        fleet._clock.now = now
        assert view(fleet).broken
    fleet._clock.now = BREAKER_WINDOW
    assert fleet.openings > before  # what waits compares this before a snapshot is taken
    assert not view(fleet).broken


def test_a_snapshot_is_kept_while_nothing_changes_and_other_views_always(fleet):
    fleet.add("u1", "address")
    fleet.greeted("u1", hello(worker="u1"))
    before = fleet.snapshot()
    assert fleet.snapshot() is before
    fleet.loaded("u0", load(running=3, growth_blocks=7, next_growth_blocks=5))
    u0, u1 = fleet.snapshot().workers
    assert (u0.running, u0.growth_blocks, u0.next_growth_blocks) == (3, 7, 5)
    assert u1 is before.workers[1]


@pytest.mark.parametrize(
    ("change", "opens"),
    [
        ({}, False),
        ({"free_blocks": 50, "running": 4, "queue_tokens": 90, "credits": 5}, False),
        ({"running": 6, "paused": 3}, False),
        (lambda fleet: fleet.sent("u0", queued=1, held=1), False),
        ({"free_blocks": 101}, True),
        ({"cached_blocks": 1}, True),
        ({"paused_blocks": 1}, True),
        ({"paused": 1}, True),  # it leaves its slot to another
        ({"running": 2}, True),
        ({"credits": 9}, True),
        ({"queue_tokens": 49}, True),  # a shorter queue
        ({"prefill_rate": 1.0}, True),
        ({"draining": True}, True),  # others may be forgiven now
        (lambda fleet: fleet.disconnected("u0", "silent", "why"), True),
        (lambda fleet: fleet.list("u0", False), True),
        (lambda fleet: fleet.greeted("u0", hello(epoch="e2")), True),
        (lambda fleet: fleet.remove("u0"), True),
    ],
)
def test_an_opening_is_what_may_let_something_start(fleet, change, opens):
    crowded = {"queue_tokens": 50, "slots": 2, "running": 3}
    fleet.loaded("u0", load(**crowded))
    before = fleet.openings
    if callable(change):
        change(fleet)
    else:
        fleet.loaded("u0", load(**crowded | change))
    fleet.check_integrity()
    assert (fleet.openings > before) is opens


def test_a_worker_of_another_model_is_not_part_of_the_snapshot(fleet):
    fleet.greeted("u0", hello(model="other"))
    assert fleet.snapshot().workers == ()
    fleet.check_integrity()


def test_that_very_process_lives_only_while_its_epoch_is_connected(fleet):
    assert fleet.lives("u0", "e1")
    for connection, lives in (("silent", True), ("connecting", False)):  # one that hangs has not died
        fleet.disconnected("u0", connection, "why")
        assert fleet.lives("u0", "e1") is lives
    fleet.greeted("u0", hello(epoch="e2"))
    assert not fleet.lives("u0", "e1")


def test_it_is_known_who_serves_when_every_listed_worker_was_tried():
    """Workers that appear later change nothing, and one that is no longer listed need not be tried."""
    fleet, late, gone = listing("u0", "u1"), listing("u0", "u1"), listing("u0")
    fleet.listed()
    fleet.greeted("u0", HELLO)
    assert not fleet.has_tried_all
    fleet.disconnected("u1", "connecting", "refused")
    assert fleet.has_tried_all
    fleet.add("u2", "address")
    fleet.greeted("u0", hello(epoch="e2"))
    assert fleet.has_tried_all
    late.greeted("u0", HELLO)
    late.disconnected("u1", "connecting", "refused")
    assert not late.has_tried_all
    late.listed()
    assert late.has_tried_all
    gone.listed()
    assert not gone.has_tried_all
    gone.remove("u0")
    assert gone.has_tried_all
