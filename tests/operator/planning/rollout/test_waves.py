"""Turns of services: never more than there are places for, the healthy first, and none after one that fails."""

import dataclasses
import random

import pytest

from legato_operator.api import conditions
from legato_operator.cluster import Ref
from legato_operator.planning.rollout.waves import Candidate, Waves, candidate, plan_wave

NOW = 1000.0


def _service(name, **changes):
    ref, upgraded = Ref("InferenceService", "default", name), conditions.AWAITING_UPGRADE
    false = dict.fromkeys(("current", "asleep", "rolling", "upgrading", "unserved"), False)
    made = Candidate(ref=ref, uid=name, upgraded=upgraded, ready=True, settled=True, since=0.0, **false)
    return dataclasses.replace(made, **changes)


def _upgrading(name, **changes):
    return _service(name, **{"upgraded": conditions.UPGRADING, "upgrading": True, **changes})


def _done(name, since, **changes):
    return _upgrading(name, upgraded=conditions.UP_TO_DATE, current=True, since=since, **changes)


THREE = [_service(name) for name in "cab"]
READY_FOR_THE_PAUSE = _done("a", NOW - 60.0)
UNSERVED = {"ready": False, "unserved": True, "upgraded": conditions.UPGRADE_FAILED}


@pytest.mark.parametrize(
    ("services", "places", "begin", "end", "stopped", "unserved"),
    [
        # As many turns begin as there are places for.
        (THREE, 1, "a", "", "", ""),
        (THREE, 2, "ab", "", "", ""),
        ([*THREE, _upgrading("d")], 2, "a", "", "", ""),
        ([*THREE, _upgrading("d")], 1, "", "", "", ""),
        ([_service("a"), _service("b", ready=False)], 0, "", "", "", ""),
        # A turn is over when the service was ready for the pause, and nothing of the version before is left.
        ([READY_FOR_THE_PAUSE, _service("b")], 1, "b", "a", "", ""),
        ([_done("a", NOW - 59.0), _service("b")], 1, "", "", "", ""),
        ([dataclasses.replace(READY_FOR_THE_PAUSE, rolling=True), _service("b")], 1, "", "", "", ""),
        ([dataclasses.replace(READY_FOR_THE_PAUSE, current=False), _service("b")], 1, "", "", "", ""),
        # One that is not ready with it stops all others.
        ([_upgrading("a", upgraded=conditions.UPGRADE_FAILED), _service("b"), _service("c")], 3, "", "", "a", ""),
        ([_upgrading("a", ready=False), _service("b"), _service("c")], 3, "", "", "a", ""),
        ([_done("a", 0.0, ready=False), _service("b"), _service("c")], 3, "", "", "a", ""),
        # A change of the manifest in a turn ends it: what a user's own edit breaks stops nobody else.
        ([_upgrading("a", upgraded=conditions.ROLLING_OUT, ready=False), _service("b")], 1, "b", "a", "", ""),
        # A service that serves nobody has a separate turn: it has nothing to lose, and may be mended by it. It keeps no
        # place, and stops nobody. A blip is not an outage.
        ([_service("a", ready=False), _service("b", ready=False, since=NOW - 59.0)], 1, "a", "", "", "a"),
        ([_upgrading("a", **UNSERVED), _service("b")], 1, "b", "", "", ""),
        # One that is busy with something else waits, and one at zero goes last.
        ([_service("a", settled=False), _service("b", asleep=True), _service("c")], 3, "cb", "", "", ""),
    ],
)
def test_turns_begin_and_end_and_stop(services, places, begin, end, stopped, unserved):
    wave = plan_wave(services, Waves(places, 60.0), NOW)
    turns = [wave.begin, wave.end, wave.failed, wave.unserved]
    assert ["".join(each.ref.name for each in some) for some in turns] == [begin, end, stopped, unserved]


def test_candidate_is_read_from_the_status_of_a_service():
    entry = {"message": "", "lastTransitionTime": "1970-01-01T00:00:10Z"}
    reasons = {"Ready": "ScaledToZero", "Upgraded": "WaitingForTurn", "Progressing": "UpToDate"}
    told = [{"type": kind, "status": str(kind == "Ready"), "reason": why, **entry} for kind, why in reasons.items()]
    stored = {
        "kind": "InferenceService",
        "metadata": {"name": "a", "namespace": "default", "uid": "a"},
        "status": {"conditions": told, "upgradeTurn": {"since": "x", "unserved": True}},
    }
    assert candidate(stored) == _service("a", asleep=True, upgrading=True, unserved=True, since=10.0)
    assert candidate({**stored, "metadata": {**stored["metadata"], "deletionTimestamp": "x"}}) is None
    torn = candidate({**stored, "status": {"conditions": [{"type": "Ready"}], "upgradeTurn": None}})
    assert (torn.ready, torn.upgraded, torn.upgrading, torn.since) == (False, "", False, 0.0)


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
            services[each.ref.name] = dataclasses.replace(each, upgrading=False)
        for each in wave.begin:
            assert not wave.failed
            services[each.ref.name] = dataclasses.replace(
                each, upgrading=True, upgraded=conditions.UPGRADING, since=now
            )
        assert sum(each.upgrading for each in services.values()) <= places
        for name, each in services.items():
            if each.upgrading and not each.current and chance.random() < 0.3:
                services[name] = dataclasses.replace(each, upgraded="UpToDate", current=True, since=now)
            elif each.upgrading and chance.random() < 0.1:
                services[name] = dataclasses.replace(each, ready=not each.ready, since=now)
            elif each.upgrading and not each.ready:
                services[name] = dataclasses.replace(each, ready=True, since=now)
        if all(each.current and not each.upgrading for each in services.values()):
            return
        now += chance.uniform(0.0, pause)
    raise AssertionError("some were forgotten")
