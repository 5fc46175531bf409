"""Whose turn it is to take what another version of the operator makes of its manifest. Pure.

A turn ends when the service has been ready with it for the pause, and until then it takes one of the places that there
are. One that fails keeps its place, and no other turn begins: what breaks one service would break the next.
"""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator.api import conditions
from legato_operator.cluster import Object, Ref, is_leaving, ref_of, uid_of
from legato_operator.planning.upgrades import TURN

SETTLED = (conditions.UP_TO_DATE, conditions.CAPPED)  # what `Progressing` says of a service that may take its turn


@dataclass(frozen=True)
class Waves:
    """How fast services are upgraded."""

    services: int  # that have their turn at a time; 0: no turn begins
    pause: float  # seconds that one has to be ready before another's turn begins


@dataclass(frozen=True)
class Candidate:
    """A service, as its status tells."""

    ref: Ref
    uid: str
    upgraded: str  # reason of the condition; empty when there is none
    current: bool  # it runs what this operator makes of its manifest
    ready: bool
    asleep: bool  # scaled to zero
    settled: bool
    rolling: bool  # workers of an older revision are still there
    in_turn: bool
    unserved: bool  # it was not ready when its turn began, so nobody waits for it
    since: float  # epoch seconds of the last change of `Ready` or `Upgraded`


@dataclass(frozen=True)
class Wave:
    """What to note in the status of services, and why no more of them begin."""

    begin: tuple[Candidate, ...]
    end: tuple[Candidate, ...]
    stopped: tuple[Candidate, ...]  # the services that have failed in their turns

    @property
    def unserved(self) -> tuple[Candidate, ...]:
        """Those of `begin` that nobody waits for."""
        return tuple(service for service in self.begin if not service.ready)


def concerns(told: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a service with this status waits for its turn, or has it."""
    return bool(before.get(TURN)) or _reason(told, conditions.UPGRADED) == conditions.AWAITING_UPGRADE


def plan_wave(services: Iterable[Candidate], waves: Waves, now: float) -> Wave:
    """Those that end and begin now.

    A service that has not been ready for the pause has nothing to lose, and may be mended: its turn is apart. Of the
    others, those whose workers show what becomes of them go before those that are scaled to zero.
    """
    found = sorted(services, key=lambda each: (each.asleep, each.ref))
    ended = tuple(each for each in found if each.in_turn and _is_over(each, waves, now))
    under_way = [each for each in found if each.in_turn and not each.unserved and each not in ended]
    stopped = tuple(each for each in under_way if each.upgraded == conditions.UPGRADE_FAILED or not each.ready)
    waiting = [each for each in found if each.upgraded == conditions.AWAITING_UPGRADE and not each.in_turn]
    if not waves.services:
        return Wave((), ended, stopped)
    unserved = [each for each in waiting if not each.ready and now - each.since >= waves.pause]
    free = 0 if stopped else max(0, waves.services - len(under_way))
    able = [each for each in waiting if each.ready and each.settled]
    return Wave((*unserved, *able[:free]), ended, stopped)


def _is_over(service: Candidate, waves: Waves, now: float) -> bool:
    """A change of the manifest in the middle of it makes the rest the user's own rollout."""
    if service.upgraded == conditions.ROLLING_OUT:
        return True
    if not service.current or service.rolling:
        return False
    return service.unserved or (service.ready and now - service.since >= waves.pause)


def candidate(stored: Object) -> Candidate | None:
    """Of the service that is stored so; None where it is leaving."""
    if is_leaving(stored):
        return None
    status = stored.get("status", {})
    turn = status.get(TURN) or {}
    found = {kind: conditions.find(status, kind) for kind in (conditions.READY, conditions.UPGRADED)}
    return Candidate(
        ref=ref_of(stored),
        uid=uid_of(stored),
        upgraded=_reason(status, conditions.UPGRADED),
        current=found[conditions.UPGRADED].get("status") == "True",
        ready=found[conditions.READY].get("status") == "True",
        asleep=_reason(status, conditions.READY) == conditions.SCALED_TO_ZERO,
        settled=_reason(status, conditions.PROGRESSING) in SETTLED,
        rolling=_reason(status, conditions.PROGRESSING) in (conditions.ROLLING_OUT, conditions.DISRUPTED),
        in_turn=bool(turn),
        unserved=bool(turn.get("unserved")),
        since=max((_seconds(each["lastTransitionTime"]) for each in found.values() if each), default=0.0),
    )


def _reason(status: Mapping[str, Any], kind: str) -> str:
    return str(conditions.find(status, kind).get("reason", ""))


def _seconds(timestamp: str) -> float:
    return datetime.datetime.fromisoformat(timestamp).timestamp()
