"""How workers of an old pod revision are exchanged for new ones, one safe step at a time. Pure."""

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
    """How far a pool may be from its desired size while it changes."""

    surge: int
    unavailable: int


def configured(rollout: Rollout, target: int) -> RollingUpdate:
    """What the manifest allows a rollout of `target` workers, as Deployments count: a share of few workers may be none,
    and where both are, one worker is replaced at a time.
    """
    surge = quantities.share(rollout.max_surge, target, up=True)
    unavailable = quantities.share(rollout.max_unavailable, target, up=False)
    return RollingUpdate(surge, unavailable if surge or unavailable else 1)


@dataclass(frozen=True)
class Step:
    """What may be done now: so many workers of each revision started, so many of each kind sent away."""

    create: int = 0
    create_old: int = 0
    remove_old_starting: int = 0
    remove_old_ready: int = 0
    remove_new_starting: int = 0
    remove_new_ready: int = 0


class Pace(Enum):
    FREE = "the bounds alone hold it back"
    PROVE = "ready old workers go only where new ones could not start otherwise"
    WAIT = "new workers start beside the old ones, of which none goes"
    PAUSE = "the new revision fails: nothing new starts, and the old one is kept whole"


@dataclass(frozen=True)
class Standing:
    """Where a pool is in its rollout."""

    old: Count
    new: Count
    target: int
    changing: bool  # its newest revision was never whole
    failing: bool  # and cannot be
    returnable: bool  # there is an older revision to stay with
    blinking: int = 0  # new workers that were ready a moment ago

    @property
    def shown(self) -> bool:
        """Whether the newest revision can run here. A moment without readiness takes nothing back."""
        return bool(self.new.ready or self.blinking)


def is_proven(pools: Mapping[str, Standing]) -> bool:
    """Whether the newest revision has a ready worker in every pool that changes, and fails in none.

    A pool without old workers proves nothing any more, whatever becomes of its new ones: there is no way back.
    """
    return all((pool.shown or not pool.old.total) and not pool.failing for pool in _changing(pools).values())


def stopped(pools: Mapping[str, Standing]) -> dict[str, Standing]:
    """The same where the gateway of their newest revision fails: nobody could reach its workers."""
    return {name: replace(pool, failing=pool.failing or pool.changing) for name, pool in pools.items()}


def paces(pools: Mapping[str, Standing], first: str, gateway_ready: bool = True) -> dict[str, Pace]:
    """How each pool of a service may go on. `gateway_ready`: gateways speak to workers of the newest revision.

    Workers of different KV revisions exchange nothing, so pools change together: one that fails stops all, and as long
    as one lacks a new ready worker, all keep old ones. Where there is room for no worker more, the pool `first` gives
    old ones up before the others do: they can serve without it.
    """
    changing = _changing(pools)
    proven = gateway_ready and (len(changing) == 1 or is_proven(pools))
    return {name: _pace(name, pool, changing, first, proven) for name, pool in pools.items()}


def _changing(pools: Mapping[str, Standing]) -> dict[str, Standing]:
    return {name: pool for name, pool in pools.items() if pool.changing and pool.target}


def _pace(name: str, pool: Standing, changing: Mapping[str, Standing], first: str, proven: bool) -> Pace:
    if name not in changing or not pool.returnable:
        return Pace.FREE
    if any(other.failing for other in changing.values()):
        return Pace.PAUSE
    if proven:
        return Pace.FREE
    leads = first == name or first not in changing or changing[first].shown
    return Pace.PROVE if leads else Pace.WAIT


def next_step(old: Count, new: Count, leaving: int, target: int, bounds: RollingUpdate, pace: Pace = Pace.FREE) -> Step:
    """The next step towards `target` workers, all of them new.

    Never more than `target + surge` workers exist because of it, those that are `leaving` counted (they hold memory
    and GPUs until they are gone), and it never takes the ready ones below `target - unavailable`. Without old workers
    this is plain scaling.
    """
    if pace is Pace.PAUSE:
        return _pause(old, new, leaving, target, bounds)
    create = max(0, min(target - new.total, target + bounds.surge - old.total - new.total - leaving))
    needed = max(0, target - bounds.unavailable)
    spare = max(0, old.ready + new.ready - needed)
    # An old worker that is not ready may come back: it goes only when new ready ones make up for it.
    old_surplus = max(0, old.total + new.ready - needed)
    if pace is not Pace.FREE:
        old_surplus = min(old_surplus, _given_up(old, target, bounds, pace))
    remove_old_starting = min(old.starting, old_surplus)
    remove_old_ready = min(old.ready, spare, old_surplus - remove_old_starting)
    new_surplus = max(0, new.total - target)
    remove_new_starting = min(new.starting, new_surplus)
    remove_new_ready = new_surplus - remove_new_starting  # down to `target` ready ones: they are enough
    return Step(create, 0, remove_old_starting, remove_old_ready, remove_new_starting, remove_new_ready)


def _given_up(old: Count, target: int, bounds: RollingUpdate, pace: Pace) -> int:
    """Old workers that go before every pool has a new ready one; where another can start, the last one does not."""
    kept = target if pace is Pace.WAIT else target - bounds.unavailable
    return max(0, old.total - max(kept, 1 if bounds.surge else 0))


def _pause(old: Count, new: Count, leaving: int, target: int, bounds: RollingUpdate) -> Step:
    """Plain scaling of the old revision around the new workers there are, one of which stays: it shows the failure.

    Where these leave room, old workers that were given up come back; down to what is needed they are made room for.
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
