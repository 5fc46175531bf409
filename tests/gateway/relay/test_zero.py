"""A gateway without any worker: it holds what comes, and lets it go at the pace of admission when one appears."""

import pytest
from relay_script import Scripted, error_of

from legato_gateway.admission.ticket import QUEUE_FULL
from legato_gateway.errors import DeadlineExceeded, Overloaded
from legato_gateway.http.demand_report import DemandReporter
from legato_gateway.relay.lifecycle import Stage


def _at_zero(lab, *roles):
    """The workers of the last time are gone; those of the script appear when `_appear` is called."""
    script = Scripted(lab, *roles)
    for name, worker in script.workers.items():
        worker.renew()
        worker.disconnect()
        script.relay.workers.disconnected(name, "scaled down")
        script.relay.workers.removed(name)
    assert not list(script.fleet)
    return script


def _appear(script, name):
    script.fleet.add(name, name)
    script._connect(script.workers[name])


def _demand(script):
    return DemandReporter("gateway-1", script.relay, script.fleet, script.time.time).report()


def _held(script):
    return [each for each in script.generations if not each.ended and script.sub(each).stage is Stage.HELD]


def test_requests_are_held_told_of_and_answered_by_the_first_worker(lab):
    script = _at_zero(lab, "u")
    waiting = [script.start(max_tokens=5, id=f"r{i}") for i in range(3)]
    script.run(100, seconds=1.0)
    told = _demand(script)
    assert (told.held_requests, told.held_tokens, told.arrivals[0].requests) == (3, 300, 3)
    assert told.head_wait["no_worker"] == pytest.approx(100, rel=0.1)
    _appear(script, "u0")
    script.until(lambda: all(each.ended for each in waiting))
    assert [error_of(each) for each in waiting] == [None] * 3
    assert _demand(script).held_requests == 0


def test_they_are_let_go_as_the_worker_has_credits_for_them_and_in_order(lab):
    """Six at a time."""
    script = _at_zero(lab, "u")
    waiting = [script.start(max_tokens=5, id=f"r{i}") for i in range(8)]
    _appear(script, "u0")
    script.load(script.workers["u0"])
    assert _held(script) == waiting[6:]
    script.until(lambda: all(each.ended for each in waiting))
    assert [error_of(each) for each in waiting] == [None] * 8


def test_what_does_not_fit_into_the_buffer_is_refused_with_a_time_to_come_back(lab):
    """The scripted gateway holds eight; none of these is lost."""
    script = _at_zero(lab, "u")
    waiting = [script.start(max_tokens=5, id=f"r{i}") for i in range(12)]
    held, refused = waiting[:8], [error_of(each) for each in waiting[8:]]
    assert all(isinstance(each, Overloaded) and each.reason == QUEUE_FULL for each in refused)
    assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
    _appear(script, "u0")
    script.until(lambda: all(each.ended for each in held))
    assert [error_of(each) for each in held] == [None] * 8


def test_a_deadline_holds_without_a_worker_too(lab):
    script = _at_zero(lab, "u")
    short, long = script.start(deadline=5.0, id="short"), script.start(deadline=50.0, max_tokens=5, id="long")
    script.run(6, seconds=1.0)
    error = error_of(short)
    assert isinstance(error, DeadlineExceeded)
    assert error.part == "gateway"
    assert _demand(script).held_requests == 1
    _appear(script, "u0")
    script.until(lambda: long.ended)
    assert error_of(long) is None


def test_a_client_that_leaves_makes_room_in_the_buffer(lab):
    script = _at_zero(lab, "u")
    waiting = [script.start(id=f"r{i}") for i in range(8)]
    script.relay.leave(waiting[0])
    assert (script.admission.held, _demand(script).held_requests) == (7, 7)
    assert _demand(script).arrivals[0].requests == 8
    assert not script.start(id="late").ended


def test_decode_workers_prefill_until_a_prefill_worker_is_there_and_after_the_last_has_left(lab):
    """No request fails in between."""
    script = _at_zero(lab, "p", "d")
    script.relay._dispatcher._policy = type(script.relay._dispatcher._policy)(0, "Local")
    first = script.start(max_tokens=200, id="first")
    _appear(script, "d1")
    script.until(lambda: script.sub(first).stage is Stage.DECODING)
    assert (first.route.prefill, first.route.decode) == ("local", "d1")
    _appear(script, "p0")
    script.load(script.workers["p0"])
    second = script.start(max_tokens=200, id="second")
    script.until(lambda: script.sub(second).stage is Stage.DECODING)
    assert (second.route.prefill, second.route.decode) == ("p0", "d1")
    script.relay.workers.disconnected("p0", "scaled down")
    script.relay.workers.removed("p0")
    third = script.start(max_tokens=5, id="third")
    script.until(lambda: first.ended and second.ended and third.ended)
    assert third.route.prefill == "local"
    assert [error_of(each) for each in script.generations] == [None] * 3
