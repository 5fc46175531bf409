"""Replaces workers of an old pod revision by new ones, one safe step at a time. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from legato_operator.api import quantities
from legato_operator.api.resources import Rollout


@dataclass(frozen=True)
class Count:
    """Workers of one revision that are not leaving."""

    ready: int
    starting: int

    @property
    def total(self) -> int:
        return self.ready + self.starting


@dataclass(frozen=True)
class RollingUpdate:
    """Maximum deviation of a pool from its desired size during a rollout."""

    surge: int
    unavailable: int
    most_new: int | None = None  # new workers, as a canary allows; None: no limit

    def new_target(self, target: int) -> int:
        """Returns the number of new workers to have now, of `target` in the end."""
        return target if self.most_new is None else min(target, self.most_new)


def configured(rollout: Rollout, target: int) -> RollingUpdate:
    """Returns the manifest's bounds for a rollout of `target` workers, rounded as for Deployments.

    If both round to zero, one worker may be unavailable at a time.
    """
    surge = quantities.share(rollout.max_surge, target, up=True)
    unavailable = quantities.share(rollout.max_unavailable, target, up=False)
    return RollingUpdate(surge, unavailable if surge or unavailable else 1)


@dataclass(frozen=True)
class Step:
    """Numbers of workers to start and to remove now, by revision and readiness."""

    create: int = 0
    create_old: int = 0
    remove_old_starting: int = 0
    remove_old_ready: int = 0
    remove_new_starting: int = 0
    remove_new_ready: int = 0


class Pace(Enum):
    FREE = "only the bounds limit the rollout"
    PROVE = "ready old workers are removed only if new ones could not start otherwise"
    WAIT = "new workers start, and no old one is removed"
    HOLD = "few new workers start, and the old revision is kept complete: they are compared"
    PAUSE = "the new revision fails: no new worker starts, and the old revision is kept complete"


@dataclass(frozen=True)
class PoolRollout:
    """State of a pool's rollout."""

    old: Count
    new: Count
    target: int
    changing: bool  # its newest revision has never been complete
    failing: bool  # its newest revision cannot run
    returnable: bool  # there is an older revision to return to
    most_new: int | None = None  # new workers, as a canary allows; None: no limit
    held: bool = False  # a canary is being compared
    blinking: int = 0  # new workers that were ready a moment ago

    @property
    def proven(self) -> bool:
        """True if a worker of the newest revision has become ready; briefly losing readiness does not revoke it."""
        return bool(self.new.ready or self.blinking)


def is_proven(pools: Mapping[str, PoolRollout]) -> bool:
    """True if the newest revision has a ready worker in every changing pool, and fails or is compared in none.

    A pool without old workers counts as proven, unless it fails, because it cannot go back.
    """
    changing = _changing(pools).values()
    return all((pool.proven or not pool.old.total) and not (pool.failing or pool.held) for pool in changing)


def stop(pools: Mapping[str, PoolRollout]) -> dict[str, PoolRollout]:
    """Returns the rollouts as failing, for a failing new gateway: nobody could reach the new workers."""
    return {name: replace(pool, failing=pool.failing or pool.changing) for name, pool in pools.items()}


def choose_paces(pools: Mapping[str, PoolRollout], first: str, gateway_ready: bool = True) -> dict[str, Pace]:
    """Returns each pool's pace. `gateway_ready`: gateways can use workers of the newest revision.

    Workers of different revisions cannot exchange KV, so pools change together: a failing pool stops all, and all keep
    old workers until each has a ready new one. Without room for another worker, the pool `first` gives up old workers
    before the others, which can serve without it.
    """
    changing = _changing(pools)
    proven = gateway_ready and (len(changing) == 1 or is_proven(pools))
    return {name: _pace(name, pool, changing, first, proven) for name, pool in pools.items()}


def _changing(pools: Mapping[str, PoolRollout]) -> dict[str, PoolRollout]:
    return {name: pool for name, pool in pools.items() if pool.changing and pool.target}


def _pace(name: str, pool: PoolRollout, changing: Mapping[str, PoolRollout], first: str, proven: bool) -> Pace:
    if name not in changing or not pool.returnable:
        return Pace.FREE
    if any(other.failing for other in changing.values()):
        return Pace.PAUSE
    if pool.held:
        return Pace.HOLD
    if proven:
        return Pace.FREE
    leads = first == name or first not in changing or changing[first].proven
    return Pace.PROVE if leads else Pace.WAIT


def next_step(old: Count, new: Count, leaving: int, target: int, bounds: RollingUpdate, pace: Pace = Pace.FREE) -> Step:
    """Returns the next step towards `target` new workers.

    The step never raises the number of workers above `target + surge`, including `leaving` ones, which occupy memory
    and GPUs until they are gone, and never lowers the ready ones below `target - unavailable`. Without old workers this
    is plain scaling.
    """
    if pace is Pace.PAUSE:
        return _pause(old, new, leaving, target, bounds)
    if pace is Pace.HOLD:
        return _hold(old, new, leaving, target, bounds)
    create = max(0, min(bounds.new_target(target) - new.total, target + bounds.surge - old.total - new.total - leaving))
    needed = max(0, target - bounds.unavailable)
    spare = max(0, old.ready + new.ready - needed)
    # An unready old worker may recover: it is removed only if ready new ones replace it.
    old_surplus = max(0, old.total + new.ready - needed)
    if pace is not Pace.FREE:
        old_surplus = min(old_surplus, _given_up(old, target, bounds, pace))
    remove_old_starting = min(old.starting, old_surplus)
    remove_old_ready = min(old.ready, spare, old_surplus - remove_old_starting)
    new_surplus = max(0, new.total - target)
    remove_new_starting = min(new.starting, new_surplus)
    remove_new_ready = new_surplus - remove_new_starting  # leaves `target` ready ones
    return Step(create, 0, remove_old_starting, remove_old_ready, remove_new_starting, remove_new_ready)


def _given_up(old: Count, target: int, bounds: RollingUpdate, pace: Pace) -> int:
    """Returns the number of old workers to remove before every pool has a ready new one; with a surge, one stays."""
    kept = target if pace is Pace.WAIT else target - bounds.unavailable
    return max(0, old.total - max(kept, 1 if bounds.surge else 0))


def _pause(old: Count, new: Count, leaving: int, target: int, bounds: RollingUpdate) -> Step:
    """Scales the old revision while the new one fails; one new worker stays as evidence of the failure.

    Removed old workers come back if there is room, and new workers make room for as many as are needed.
    """
    surplus = max(0, old.total - target)
    remove_old_starting = min(old.starting, surplus)
    remove_old_ready = surplus - remove_old_starting
    kept = old.total - surplus
    new_surplus = max(0, new.total - max(1, target + bounds.surge - kept))
    needed = max(0, target - bounds.unavailable)
    remove_new_ready = min(new.ready, new_surplus, max(0, old.ready - remove_old_ready + new.ready - needed))
    room = max(0, target + bounds.surge - old.total - new.total - leaving)
    missing = target - kept - new.ready + remove_new_ready
    in_the_way = max(new_surplus - remove_new_ready, needed - target + missing - room - leaving)
    remove_new_starting = max(0, min(new.starting - 1, in_the_way))
    create_old = max(0, min(missing, room))
    return Step(0, create_old, remove_old_starting, remove_old_ready, remove_new_starting, remove_new_ready)


def _hold(old: Count, new: Count, leaving: int, target: int, bounds: RollingUpdate) -> Step:
    """Scales both revisions while they are compared: the new one to the canary's size, the old one to the rest.

    The surge adds to the old revision, which stays complete if the new one needs at most that.
    """
    most_new = bounds.new_target(target)
    kept = max(min(1, target), min(target, target + bounds.surge - most_new))
    room = max(0, target + bounds.surge - old.total - new.total - leaving)
    create_old = min(max(0, kept - old.total), room)
    create = min(max(0, most_new - new.total), room - create_old)
    spare = max(0, old.ready + new.ready - max(0, target - bounds.unavailable))
    surplus = max(0, old.total - kept)
    remove_old_starting = min(old.starting, surplus)
    remove_old_ready = min(old.ready, surplus - remove_old_starting, spare)
    new_surplus = max(0, new.total - most_new)
    remove_new_starting = min(new.starting, new_surplus)
    remove_new_ready = min(new.ready, new_surplus - remove_new_starting, spare - remove_old_ready)
    return Step(create, create_old, remove_old_starting, remove_old_ready, remove_new_starting, remove_new_ready)
