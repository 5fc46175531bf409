"""Rollout and scaling steps: bounds hold in every intermediate state, whatever becomes ready when, and it ends."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato_operator.api.resources import Rollout
from legato_operator.planning.rollout.rolling_update import (
    Count,
    Pace,
    PoolRollout,
    RollingUpdate,
    Step,
    choose_paces,
    configured,
    next_step,
)


@dataclass
class Pool:
    """A pool whose starting workers become ready, and whose leaving workers go, when the test says so."""

    old: Count
    new: Count = field(default_factory=lambda: Count(0, 0))
    leaving: int = 0

    def take(self, step: Step) -> None:
        self.old = Count(
            self.old.ready - step.remove_old_ready, self.old.starting - step.remove_old_starting + step.create_old
        )
        self.new = Count(
            self.new.ready - step.remove_new_ready, self.new.starting - step.remove_new_starting + step.create
        )
        self.leaving += step.remove_old_ready + step.remove_new_ready

    @property
    def ready(self) -> int:
        return self.old.ready + self.new.ready

    @property
    def existing(self) -> int:
        return self.old.total + self.new.total + self.leaving


@pytest.mark.parametrize(
    ("given", "target", "bounds"),
    [
        ((1, 0), 10, (1, 0)),
        ((0, 3), 2, (0, 3)),
        (("25%", "25%"), 10, (3, 2)),
        (("10%", 0), 1, (1, 0)),
        (("100%", "100%"), 7, (7, 7)),
        (("29%", 0), 100, (29, 0)),
        (("0%", "34%"), 3, (0, 1)),
        (("0%", "33%"), 3, (0, 1)),
        ((0, "10%"), 9, (0, 1)),
        ((0, "10%"), 20, (0, 2)),
        (("25%", "25%"), 0, (0, 1)),
    ],
)
def test_percentages_are_of_the_desired_number_as_deployments_count(given, target, bounds):
    """A surge is rounded up, unavailable workers down; where neither is left, one is replaced at a time."""
    rollout = Rollout(maxSurge=given[0], maxUnavailable=given[1])
    assert configured(rollout, target) == RollingUpdate(*bounds)


counts = st.builds(Count, st.integers(0, 5), st.integers(0, 5))
limits = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any)


@given(
    old=counts, new=counts, leaving=st.integers(0, 4), target=st.integers(0, 6), limits=limits,
    most_new=st.none() | st.integers(0, 6), pace=st.sampled_from(Pace),
)  # fmt: skip
def test_one_step_stays_within_bounds(old, new, leaving, target, limits, most_new, pace):
    surge, unavailable = limits
    pool = Pool(old, new, leaving)
    existing, ready = pool.existing, pool.ready
    step = next_step(old, new, leaving, target, RollingUpdate(surge, unavailable, most_new), pace)
    pool.take(step)
    assert min(vars(step).values()) >= 0
    assert min(pool.old.ready, pool.old.starting, pool.new.ready, pool.new.starting) >= 0
    assert pool.existing <= max(existing, target + surge)
    assert pool.ready >= min(ready, target - unavailable)


@given(old=counts, target=st.integers(0, 6), limits=limits, data=st.data())
def test_every_rollout_ends_with_new_workers_only(old, target, limits, data):
    """Workers become ready and leave in any order; nothing else is needed for the end to come."""
    surge, unavailable = limits
    pool = Pool(old)
    for _ in range(200):
        step = next_step(pool.old, pool.new, pool.leaving, target, RollingUpdate(surge, unavailable))
        pool.take(step)
        if pool == Pool(Count(0, 0), Count(target, 0)):
            return
        can_start, can_leave = pool.new.starting > 0, pool.leaving > 0
        assert can_start or can_leave or step != Step(), "nothing moves any more"
        if can_start and (not can_leave or data.draw(st.booleans())):
            pool.new = Count(pool.new.ready + 1, pool.new.starting - 1)
        elif can_leave:
            pool.leaving -= 1
    raise AssertionError(f"no end: {pool}")


FREE, PROVE, WAIT, HOLD, PAUSE = Pace.FREE, Pace.PROVE, Pace.WAIT, Pace.HOLD, Pace.PAUSE


@pytest.mark.parametrize(
    ("old", "new", "leaving", "target", "bounds", "pace", "step"),
    [
        # As many start as the surge allows, leaving workers counted, and no more than are missing.
        ((3, 0), (0, 0), 0, 3, (1, 0), FREE, Step(create=1)),
        ((2, 0), (0, 0), 1, 3, (1, 0), FREE, Step(create=1)),
        ((2, 0), (0, 0), 1, 3, (0, 0), FREE, Step()),
        ((1, 0), (2, 0), 0, 3, (3, 0), FREE, Step(create=1)),
        # As many ready old workers go as may be unavailable, or as new ones make up for; unready ones first.
        ((3, 0), (0, 0), 0, 3, (0, 1), FREE, Step(remove_old_ready=1)),
        ((2, 1), (0, 0), 0, 3, (0, 1), FREE, Step(remove_old_starting=1)),
        ((1, 2), (2, 0), 0, 3, (0, 0), FREE, Step(remove_old_starting=2)),
        ((2, 0), (2, 1), 0, 3, (1, 0), FREE, Step(remove_old_ready=1)),
        ((0, 2), (1, 0), 0, 2, (0, 1), FREE, Step(remove_old_starting=2)),
        ((0, 1), (0, 0), 0, 1, (1, 0), FREE, Step(create=1)),
        # One replica without surge is replaced after it left: the leaving one still holds its memory.
        ((1, 0), (0, 0), 0, 1, (0, 1), FREE, Step(remove_old_ready=1)),
        ((0, 0), (0, 0), 1, 1, (0, 1), FREE, Step()),
        ((0, 0), (0, 0), 0, 1, (0, 1), FREE, Step(create=1)),
        # Plain scaling: unready workers go first, and ready ones only as far as enough stay.
        ((0, 0), (3, 2), 0, 2, (1, 0), FREE, Step(remove_new_starting=2, remove_new_ready=1)),
        ((0, 0), (1, 2), 0, 2, (1, 0), FREE, Step(remove_new_starting=1)),
        ((0, 0), (1, 1), 0, 1, (0, 1), FREE, Step(remove_new_starting=1)),
        ((0, 0), (2, 0), 0, 0, (1, 0), FREE, Step(remove_new_ready=2)),
        ((2, 0), (4, 0), 0, 3, (1, 0), FREE, Step(remove_old_ready=2, remove_new_ready=1)),
        # Before the revision is proven, the bounds say how many old ones go, and with a surge the last one stays.
        ((3, 0), (0, 0), 0, 3, (0, 1), PROVE, Step(remove_old_ready=1)),
        ((3, 0), (2, 0), 0, 3, (1, 1), PROVE, Step(remove_old_ready=1)),
        ((2, 0), (0, 0), 0, 2, (1, 1), PROVE, Step(create=1, remove_old_ready=1)),
        ((1, 0), (0, 0), 0, 1, (1, 1), PROVE, Step(create=1)),
        ((1, 0), (0, 0), 0, 1, (0, 1), PROVE, Step(remove_old_ready=1)),
        ((3, 0), (0, 0), 0, 3, (0, 1), WAIT, Step()),
        ((4, 0), (0, 0), 0, 3, (0, 1), WAIT, Step(remove_old_ready=1)),
        # A failed revision gets nothing: the old one is restored, and one worker stays to show the failure.
        ((2, 0), (0, 1), 0, 3, (1, 0), PAUSE, Step(create_old=1)),
        ((2, 0), (0, 1), 1, 3, (1, 0), PAUSE, Step()),
        ((1, 0), (0, 3), 0, 3, (0, 1), PAUSE, Step(remove_new_starting=1)),
        ((3, 1), (0, 1), 0, 2, (1, 0), PAUSE, Step(remove_old_starting=1, remove_old_ready=1)),
        ((2, 0), (0, 1), 0, 2, (1, 0), PAUSE, Step()),
        ((2, 0), (0, 2), 0, 2, (1, 0), PAUSE, Step(remove_new_starting=1)),
        ((2, 0), (2, 0), 0, 2, (1, 0), PAUSE, Step(remove_new_ready=1)),
        ((0, 2), (1, 2), 0, 1, (2, 1), PAUSE, Step(remove_old_starting=1, remove_new_ready=1)),
        # Where no old one is left, new ones that do not start make room for old ones, as far as room is missing.
        ((0, 0), (0, 2), 0, 1, (2, 0), PAUSE, Step(create_old=1)),
        ((0, 0), (0, 2), 0, 1, (1, 0), PAUSE, Step(remove_new_starting=1)),
        ((0, 0), (1, 3), 1, 2, (1, 0), PAUSE, Step(remove_new_starting=1)),
        # While a canary is compared: a few new workers, and as many old ones as the surge leaves room for.
        ((3, 0), (0, 0), 0, 3, (1, 0, 1), HOLD, Step(create=1)),
        ((3, 0), (1, 0), 0, 3, (1, 0, 1), HOLD, Step()),
        ((9, 0), (1, 0), 0, 10, (1, 0, 2), HOLD, Step(create=1)),
        ((10, 0), (1, 0), 0, 10, (1, 0, 2), HOLD, Step(remove_old_ready=1)),
        ((10, 0), (0, 1), 0, 10, (1, 0, 2), HOLD, Step()),
        ((2, 0), (1, 0), 0, 3, (1, 0, 1), HOLD, Step(create_old=1)),
        ((2, 0), (2, 0), 0, 2, (1, 0, 1), HOLD, Step(remove_new_ready=1)),
        ((1, 0), (0, 0), 0, 1, (0, 1, 1), HOLD, Step()),
        # While it is promoted, no pool gets ahead of the other.
        ((3, 0), (1, 0), 0, 4, (2, 0, 2), FREE, Step(create=1)),
    ],
)
def test_next_step(old, new, leaving, target, bounds, pace, step):
    assert next_step(Count(*old), Count(*new), leaving, target, RollingUpdate(*bounds), pace) == step


@given(old=counts, new=counts, leaving=st.integers(0, 4), target=st.integers(1, 6), limits=limits)
def test_failed_revision_gets_nothing_and_takes_nothing(old, new, leaving, target, limits):
    """Old workers go only where fewer are wanted; one new one stays, which shows the failure."""
    step = next_step(old, new, leaving, target, RollingUpdate(*limits), Pace.PAUSE)
    assert step.create == 0
    assert step.remove_old_ready + step.remove_old_starting == max(0, old.total - target)
    assert new.starting - step.remove_new_starting >= min(new.starting, 1)


@given(old=counts, new=counts, leaving=st.integers(0, 4), target=st.integers(1, 6), limits=limits)
def test_before_the_revision_is_proven_the_last_old_worker_stays_where_there_is_surge(
    old, new, leaving, target, limits
):
    surge, unavailable = limits
    for pace in (Pace.PROVE, Pace.WAIT):
        step = next_step(old, new, leaving, target, RollingUpdate(surge, unavailable), pace)
        kept = old.total - step.remove_old_ready - step.remove_old_starting
        allowed = unavailable if pace is Pace.PROVE else 0
        assert kept >= min(old.total, max(target - allowed, 1 if surge else 0))


def _standing(old=1, new=0, target=1, **more):
    given = {"changing": True, "failing": False, "returnable": True} | more
    return PoolRollout(Count(old, 0), Count(new, 0), target, **given)


def _paces(prefill, decode, **more):
    chosen = choose_paces({"decode": decode, "prefill": prefill}, first="prefill", **more)
    return chosen["prefill"], chosen["decode"]


def test_pools_change_together():
    """Prefill first; freely when each has a new ready worker and gateways speak to them."""
    old, new = _standing(), _standing(new=1)
    assert _paces(old, old) == (Pace.PROVE, Pace.WAIT)
    assert _paces(new, old) == (Pace.PROVE, Pace.PROVE)
    assert _paces(old, new) == (Pace.PROVE, Pace.WAIT)
    assert _paces(new, new) == (Pace.FREE, Pace.FREE)
    assert _paces(new, new, gateway_ready=False) == (Pace.PROVE, Pace.PROVE)


def test_failure_stops_every_pool_that_changes_and_no_other():
    failing, unchanged = _standing(failing=True), _standing(old=0, new=1, changing=False)
    assert _paces(failing, _standing(new=1)) == (Pace.PAUSE, Pace.PAUSE)
    assert _paces(failing, unchanged) == (Pace.PAUSE, Pace.FREE)
    first = _standing(old=0, failing=True, returnable=False)
    assert _paces(first, first) == (Pace.FREE, Pace.FREE), "there is nothing to stay with"


def test_pool_that_changes_alone_or_has_no_workers_waits_for_nobody():
    unchanged, empty = _standing(old=0, new=1, changing=False), _standing(target=0)
    assert _paces(unchanged, _standing()) == (Pace.FREE, Pace.FREE)
    assert _paces(empty, _standing()) == (Pace.FREE, Pace.FREE)
    assert _paces(unchanged, _standing(), gateway_ready=False) == (Pace.FREE, Pace.PROVE)
