"""Plans a canary: a new revision serves a share of requests until it is promoted or rolled back. Pure.

Prefill and decode workers of a revision start as one unit, because workers of two revisions may not exchange KV.
Gateways share requests out and count both revisions; the status remembers the phase until the rollout ends. The failed
revision is remembered like one that cannot start.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import msgspec

from legato_operator.api import conditions
from legato_operator.api.resources import CanarySpec
from legato_operator.cluster import seconds_of
from legato_operator.manifests import common
from legato_operator.observing.observed import Observed, Pod
from legato_operator.planning.actions import SetCanary
from legato_operator.planning.failure import Failure
from legato_operator.planning.rollout.revision_comparison import Finding, RevisionComparison, compare, total
from legato_operator.planning.rollout.revisions import Revisions
from legato_operator.planning.rollout.rolling_update import PoolRollout, configured
from legato_operator.planning.rollout.upgrades import UpgradeState
from legato_protocol.settings import durations
from legato_protocol.wire.canary import Canary, CanaryReport

CHECK_EVERY = 5.0  # seconds between comparisons
EQUAL_LOAD = 50  # percent, at most: new workers never outnumber old ones, and no gateway gives them a higher load

Rollouts = Mapping[str, PoolRollout]  # by pool


class CanaryPhase(Enum):
    STARTING = conditions.CANARY_STARTING
    COMPARING = conditions.CANARY_COMPARING
    INCONCLUSIVE = conditions.CANARY_INCONCLUSIVE
    PROMOTING = conditions.CANARY_PROMOTING


@dataclass(frozen=True)
class CanaryStep:
    """The next step of a canary; without a phase, none is in progress."""

    phase: CanaryPhase | None = None
    message: str = ""
    share: Canary | None = None  # for gateways
    most_new: Mapping[str, int] = field(default_factory=dict)  # new workers by pool
    record: Mapping[str, Any] | None = None  # `status.canary`
    failure: Failure | None = None  # the new revision is worse

    @property
    def holds(self) -> bool:
        """True while the old revision stays complete."""
        return self.phase not in (None, CanaryPhase.PROMOTING)


def assess(
    observed: Observed, revisions: Mapping[str, Revisions], rollouts: Rollouts, upgrade: UpgradeState
) -> CanaryStep:
    """Returns the step of the service's canary. Upgrades of the operator have none: they are staggered by service."""
    spec = observed.service.spec.rollout.canary
    if spec is None or upgrade is UpgradeState.UPGRADING:
        return CanaryStep()
    names = {pool: each.desired_name for pool, each in revisions.items() if each.differ and pool in rollouts}
    if not names or any(each.rolled_back or each.failure for each in revisions.values()):
        left = any(pod.revision == names.get(pod.pool) for pod in observed.pods)
        return CanaryStep(share=Canary(dict(names), 0) if left else None)
    concerned = {pool: rollouts[pool] for pool in names if rollouts[pool].target}
    if not concerned:  # at zero; it goes on later
        return CanaryStep(record=observed.status.get("canary"))
    revision = ",".join(f"{pool}={name}" for pool, name in sorted(names.items()))
    record = observed.status.get("canary") or {}
    known = record if record.get("revision") == revision else None
    share = Canary({pool: names[pool] for pool in concerned}, (known or {}).get("weight", spec.weight))
    return _Assessment(observed, spec, revision, share, concerned).step(known)


def share_out(observed: Observed, step: CanaryStep) -> list[SetCanary]:
    """Returns the requests to gateways that do not share requests out as they should."""
    return [
        SetCanary(pod.name, pod.address, step.share, pod.tls)
        for pod in observed.of_pool(common.GATEWAY)
        if pod.report is not None and _share_of(pod) != step.share
    ]


def apply_to(rollouts: Rollouts, step: CanaryStep) -> dict[str, PoolRollout]:
    """Returns the rollouts, limited as the canary requires."""
    return {
        pool: replace(rollout, most_new=step.most_new[pool], held=step.holds) if pool in step.most_new else rollout
        for pool, rollout in rollouts.items()
    }


def fail(revisions: Mapping[str, Revisions], step: CanaryStep) -> dict[str, Revisions]:
    """Returns the revisions with the canary's failure, on every pool that changes: they were compared together."""
    if step.failure is None:
        return dict(revisions)
    return {pool: replace(each, failure=step.failure) if each.differ else each for pool, each in revisions.items()}


def _share_of(gateway: Pod) -> Canary | None:
    report = gateway.report and gateway.report.canary
    return report.canary if report else None


@dataclass(frozen=True)
class _Assessment:
    """A canary in progress: its share, and the rollouts of the pools that it changes, without those at zero."""

    observed: Observed
    spec: CanarySpec
    revision: str
    share: Canary
    rollouts: Rollouts

    def step(self, known: Mapping[str, Any] | None) -> CanaryStep:
        record = known or self._record(CanaryPhase.STARTING)
        if record["phase"] == CanaryPhase.PROMOTING.value:
            return self._promoting(record)
        if record["phase"] == CanaryPhase.STARTING.value:
            return self._starting(record)
        return self._comparing(record)

    def _starting(self, record: Mapping[str, Any]) -> CanaryStep:
        """Starts new workers once every gateway limits their share."""
        unlimited = [pod.name for pod in self._gateways if _share_of(pod) != self.share]
        if all(each.new.ready >= self._size(each) for each in self.rollouts.values()) and not unlimited:
            return self._comparing(self._record(CanaryPhase.COMPARING))
        sizes = self._sizes
        counts = ", ".join(f"{pool} {each.new.ready} of {sizes[pool]}" for pool, each in self.rollouts.items())
        if unlimited or not self._gateways:
            sizes = {pool: min(size, self.rollouts[pool].new.total) for pool, size in sizes.items()}
            counts += f"; gateways that do not share requests out yet: {', '.join(unlimited) or 'none is ready'}"
        late = self._seconds(record) > self.observed.service.spec.rollout.progress_deadline
        phase = CanaryPhase.INCONCLUSIVE if late else CanaryPhase.STARTING
        return CanaryStep(phase, f"new workers: {counts}", self.share, sizes, record)

    def _comparing(self, record: Mapping[str, Any]) -> CanaryStep:
        comparison, spec = self._compare(), self.spec
        if comparison.finding is Finding.WORSE:
            return CanaryStep(share=self.share, failure=Failure(conditions.CANARY_FAILED, comparison.text))
        seconds, rollout = self._seconds(record), self.observed.service.spec.rollout
        if comparison.finding is Finding.GOOD and seconds >= spec.interval:
            if self._has_less_load and "weight" not in record:
                return self._comparing_equally()
            return self._promoting({**self._record(CanaryPhase.PROMOTING), "result": comparison.text})
        share = f"new workers have served up to {self.share.weight} % of requests since {record['since']}"
        if seconds <= spec.interval + rollout.progress_deadline:
            text = f"{share} and are compared with the old ones for at least {durations.text(spec.interval)}"
            return CanaryStep(CanaryPhase.COMPARING, text, self.share, self._sizes, record)
        obstacles = {report.obstacle for report in self._reports if report.obstacle}
        text = "; ".join([f"{share}, without a decision: {comparison.text}", *sorted(obstacles)])
        return CanaryStep(CanaryPhase.INCONCLUSIVE, text, self.share, self._sizes, record)

    def _comparing_equally(self) -> CanaryStep:
        """Starts the comparison again, with the same load for each worker, also by gateways of an earlier release."""
        weight = math.ceil(self._equal_load)
        share = msgspec.structs.replace(self.share, weight=weight)
        return replace(self, share=share)._comparing({**self._record(CanaryPhase.COMPARING), "weight": weight})

    def _promoting(self, record: Mapping[str, Any]) -> CanaryStep:
        """Replaces the old workers. No pool gets ahead of the other by more than its surge."""
        rollout = self.observed.service.spec.rollout
        least = min(each.new.ready / each.target for each in self.rollouts.values())
        most = {
            pool: max(self._size(each), math.ceil(least * each.target) + max(1, configured(rollout, each.target).surge))
            for pool, each in self.rollouts.items()
        }
        counts = ", ".join(f"{pool} {each.new.ready} of {each.target}" for pool, each in self.rollouts.items())
        return CanaryStep(CanaryPhase.PROMOTING, f"{counts}; {record.get('result', '')}", None, most, record)

    def _compare(self) -> RevisionComparison:
        old, new = (total(getattr(report, side) for report in self._reports) for side in ("old", "new"))
        return compare(old, new, self.spec)

    def _record(self, phase: CanaryPhase) -> dict[str, Any]:
        return {"revision": self.revision, "phase": phase.value, "since": self.observed.timestamp}

    def _seconds(self, record: Mapping[str, Any]) -> float:
        return self.observed.now - seconds_of(record["since"])

    @property
    def _has_less_load(self) -> bool:
        """True if the weight keeps load from new workers: they would seem faster than they are."""
        return self.share.weight < self._equal_load

    @property
    def _equal_load(self) -> float:
        """The percentage of requests with which new workers, once all serve, have at most the load of old ones."""
        sizes = [(self._size(each), each.old.ready) for each in self.rollouts.values()]
        return min(EQUAL_LOAD, *(100 * new / (new + old) for new, old in sizes))

    @property
    def _gateways(self) -> list[Pod]:
        return [pod for pod in self.observed.of_pool(common.GATEWAY) if pod.ready and not pod.leaving]

    @property
    def _reports(self) -> list[CanaryReport]:
        reports = (pod.report.canary for pod in self.observed.of_pool(common.GATEWAY) if pod.report is not None)
        return [report for report in reports if report is not None and report.canary == self.share]

    @property
    def _sizes(self) -> dict[str, int]:
        return {pool: self._size(rollout) for pool, rollout in self.rollouts.items()}

    def _size(self, rollout: PoolRollout) -> int:
        """Returns the number of new workers for the canary's share. Rounding up keeps the ratio of the pools."""
        return max(1, math.ceil(rollout.target * self.spec.weight / 100))
