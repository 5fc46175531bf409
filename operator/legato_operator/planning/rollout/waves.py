"""Staggers service upgrades after the operator itself was upgraded. Pure.

A service occupies one of the upgrade slots until it has been ready for the pause. A service that fails keeps its slot,
and no other upgrade starts, because the same failure might break the next service.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator.api import conditions
from legato_operator.cluster import Object, Ref, is_leaving, ref_of, seconds_of, uid_of
from legato_operator.planning.rollout.upgrades import UPGRADE_SLOT

SETTLED = (conditions.UP_TO_DATE, conditions.CAPPED)  # reasons of `Progressing` that allow an upgrade


@dataclass(frozen=True)
class Waves:
    """The pace of upgrades."""

    services: int  # upgraded at the same time; 0: no upgrade starts
    pause: float  # seconds that a service must be ready before it frees its slot


@dataclass(frozen=True)
class Candidate:
    """The upgrade state of a service, from its status."""

    ref: Ref
    uid: str
    upgraded: str  # reason of the condition `Upgraded`; empty if missing
    current: bool  # it runs this operator's templates
    ready: bool
    asleep: bool  # scaled to zero
    settled: bool
    rolling: bool  # it still has workers of an older revision
    upgrading: bool
    unserved: bool  # it was not ready when its upgrade started, so it delays no other
    since: float  # epoch seconds of the last change of `Ready` or `Upgraded`


@dataclass(frozen=True)
class Wave:
    """Services whose upgrades start and end now, and services whose failed upgrades stop all others."""

    begin: tuple[Candidate, ...]
    end: tuple[Candidate, ...]
    failed: tuple[Candidate, ...]

    @property
    def unserved(self) -> tuple[Candidate, ...]:
        """Services of `begin` that are not ready, so that they delay no other."""
        return tuple(service for service in self.begin if not service.ready)


def concerns(status: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """True if a service's status `before` has an upgrade slot, or its new `status` waits for one."""
    return bool(before.get(UPGRADE_SLOT)) or _reason(status, conditions.UPGRADED) == conditions.AWAITING_UPGRADE


def plan_wave(services: Iterable[Candidate], waves: Waves, now: float) -> Wave:
    """Returns the upgrades that end and start now.

    A service that has been unready for the pause needs no slot: the upgrade may repair it. Services with workers come
    before services at zero, because they prove the new version.
    """
    ordered = sorted(services, key=lambda each: (each.asleep, each.ref))
    ended = tuple(each for each in ordered if each.upgrading and _is_over(each, waves, now))
    under_way = [each for each in ordered if each.upgrading and not each.unserved and each not in ended]
    failed = tuple(each for each in under_way if each.upgraded == conditions.UPGRADE_FAILED or not each.ready)
    waiting = [each for each in ordered if each.upgraded == conditions.AWAITING_UPGRADE and not each.upgrading]
    if not waves.services:
        return Wave((), ended, failed)
    unserved = [each for each in waiting if not each.ready and now - each.since >= waves.pause]
    free = 0 if failed else max(0, waves.services - len(under_way))
    able = [each for each in waiting if each.ready and each.settled]
    return Wave((*unserved, *able[:free]), ended, failed)


def _is_over(service: Candidate, waves: Waves, now: float) -> bool:
    """True if a service's upgrade has ended. A changed manifest ends it: the rest is the user's rollout."""
    if service.upgraded == conditions.ROLLING_OUT:
        return True
    if not service.current or service.rolling:
        return False
    return service.unserved or (service.ready and now - service.since >= waves.pause)


def candidate(stored: Object) -> Candidate | None:
    """Returns the candidate for a stored service; None if it is being deleted."""
    if is_leaving(stored):
        return None
    status = stored.get("status", {})
    slot = status.get(UPGRADE_SLOT) or {}
    by_type = {kind: conditions.find(status, kind) for kind in (conditions.READY, conditions.UPGRADED)}
    return Candidate(
        ref=ref_of(stored),
        uid=uid_of(stored),
        upgraded=_reason(status, conditions.UPGRADED),
        current=by_type[conditions.UPGRADED].get("status") == "True",
        ready=by_type[conditions.READY].get("status") == "True",
        asleep=_reason(status, conditions.READY) == conditions.SCALED_TO_ZERO,
        settled=_reason(status, conditions.PROGRESSING) in SETTLED,
        rolling=_reason(status, conditions.PROGRESSING) in (conditions.ROLLING_OUT, conditions.DISRUPTED),
        upgrading=bool(slot),
        unserved=bool(slot.get("unserved")),
        since=max((seconds_of(each["lastTransitionTime"]) for each in by_type.values() if each), default=0.0),
    )


def _reason(status: Mapping[str, Any], kind: str) -> str:
    return str(conditions.find(status, kind).get("reason", ""))
