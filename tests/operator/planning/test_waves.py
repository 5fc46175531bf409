"""Whose turn it is: never more than there are places for, the healthy first, and none after one that fails."""

import dataclasses
import random

import pytest

from legato_operator.api import conditions
from legato_operator.cluster import Ref
from legato_operator.planning.waves import Candidate, Waves, candidate, plan_wave

NOW = 1000.0
WAVES = Waves(services=1, pause=60.0)


def _service(name, **changes):
    made = Candidate(
        ref=Ref("InferenceService", "default", name),
        uid=name,
        upgraded=conditions.WAITING_FOR_TURN,
        current=False,
        ready=True,
        asleep=False,
        settled=True,
        rolling=False,
        in_turn=False,
        unserved=False,
        since=0.0,
    )
    return dataclasses.replace(made, **changes)


def _upgrading(name, **changes):
    return _service(name, **{"upgraded": conditions.UPGRADING, "in_turn": True, **changes})


def _done(name, since, **changes):
    return _upgrading(name, upgraded=conditions.UP_TO_DATE, current=True, since=since, **changes)


def _names(services):
    return [each.ref.name for each in services]


def test_as_many_turns_begin_as_there_are_places_for():
    services = [_service(name) for name in "cab"]
    assert _names(plan_wave(services, WAVES, NOW).begin) == ["a"]
    assert _names(plan_wave(services, Waves(2, 60.0), NOW).begin) == ["a", "b"]
    assert _names(plan_wave([*services, _upgrading("d")], Waves(2, 60.0), NOW).begin) == ["a"]
    assert not plan_wave([*services, _upgrading("d")], WAVES, NOW).begin


def test_no_turn_begins_without_places():
    assert not plan_wave([_service("a"), _service("b", ready=False)], Waves(0, 60.0), NOW).begin


def test_a_turn_is_over_when_the_service_was_ready_for_the_pause():
    """And nothing of the version before is left."""
    early, late = _done("a", NOW - 59.0), _done("a", NOW - 60.0)
    for unfinished in (early, dataclasses.replace(late, rolling=True), dataclasses.replace(late, current=False)):
        wave = plan_wave([unfinished, _service("b")], WAVES, NOW)
        assert (wave.end, wave.begin) == ((), ())
    wave = plan_wave([late, _service("b")], WAVES, NOW)
    assert (_names(wave.end), _names(wave.begin)) == (["a"], ["b"])


@pytest.mark.parametrize(
    "broken",
    [_upgrading("a", upgraded=conditions.UPGRADE_FAILED), _upgrading("a", ready=False), _done("a", 0.0, ready=False)],
)
def test_one_that_is_not_ready_with_it_stops_all_others(broken):
    wave = plan_wave([broken, _service("b"), _service("c")], Waves(3, 60.0), NOW)
    assert (wave.begin, wave.end, _names(wave.stopped)) == ((), (), ["a"])


def test_a_change_of_the_manifest_in_a_turn_ends_it():
    """What a user's own edit breaks stops nobody else."""
    wave = plan_wave([_upgrading("a", upgraded=conditions.ROLLING_OUT, ready=False), _service("b")], WAVES, NOW)
    assert (_names(wave.end), _names(wave.begin), wave.stopped) == (["a"], ["b"], ())


def test_a_service_that_serves_nobody_has_its_turn_apart():
    """It has nothing to lose, and may be mended by it; it keeps no place, and stops nobody. A blip is no outage."""
    wave = plan_wave([_service("a", ready=False), _service("b", ready=False, since=NOW - 59.0)], WAVES, NOW)
    assert _names(wave.begin) == _names(wave.unserved) == ["a"]
    apart = _upgrading("a", ready=False, unserved=True, upgraded=conditions.UPGRADE_FAILED)
    wave = plan_wave([apart, _service("b")], WAVES, NOW)
    assert (_names(wave.begin), wave.unserved, wave.stopped) == (["b"], (), ())


def test_one_that_is_busy_with_something_else_waits_and_one_at_zero_goes_last():
    services = [_service("a", settled=False), _service("b", asleep=True), _service("c")]
    assert _names(plan_wave(services, Waves(3, 60.0), NOW).begin) == ["c", "b"]


def test_a_service_is_read_as_its_status_tells():
    entry = {"message": "", "lastTransitionTime": "1970-01-01T00:00:10Z"}
    told = [
        {"type": "Ready", "status": "True", "reason": "ScaledToZero", **entry},
        {"type": "Upgraded", "status": "False", "reason": "WaitingForTurn", **entry},
        {"type": "Progressing", "status": "False", "reason": "UpToDate", **entry},
    ]
    stored = {
        "kind": "InferenceService",
        "metadata": {"name": "a", "namespace": "default", "uid": "a"},
        "status": {"conditions": told, "upgradeTurn": {"since": "x", "unserved": True}},
    }
    assert candidate(stored) == _service("a", asleep=True, in_turn=True, unserved=True, since=10.0)
    assert candidate({**stored, "metadata": {**stored["metadata"], "deletionTimestamp": "x"}}) is None
    torn = candidate({**stored, "status": {"conditions": [{"type": "Ready"}], "upgradeTurn": None}})
    assert (torn.ready, torn.upgraded, torn.in_turn, torn.since) == (False, "", False, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_of_services_is_upgraded_within_the_bound(seed):
    """Services take their time, and one may be unready for long in between; virtual time."""
    chance = random.Random(seed)
    places, pause = chance.randint(1, 4), chance.choice((1.0, 30.0))
    services = {str(n): _service(str(n), asleep=chance.random() < 0.2) for n in range(chance.randint(1, 12))}
    now = NOW
    for _ in range(5000):
        wave = plan_wave(services.values(), Waves(places, pause), now)
        for each in wave.end:
            services[each.ref.name] = dataclasses.replace(each, in_turn=False)
        for each in wave.begin:
            assert not wave.stopped
            services[each.ref.name] = dataclasses.replace(each, in_turn=True, upgraded=conditions.UPGRADING, since=now)
        assert sum(each.in_turn for each in services.values()) <= places
        for name, each in services.items():
            if each.in_turn and not each.current and chance.random() < 0.3:
                services[name] = dataclasses.replace(each, upgraded="UpToDate", current=True, since=now)
            elif each.in_turn and chance.random() < 0.1:
                services[name] = dataclasses.replace(each, ready=not each.ready, since=now)
            elif each.in_turn and not each.ready:
                services[name] = dataclasses.replace(each, ready=True, since=now)
        if all(each.current and not each.in_turn for each in services.values()):
            return
        now += chance.uniform(0.0, pause)
    raise AssertionError("some were forgotten")
