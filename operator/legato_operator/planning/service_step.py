"""The next step of all parts of a service, from which actions and status follow. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from legato_operator.manifests import common
from legato_operator.planning.actions import Apply
from legato_operator.planning.pools.limits import Targets
from legato_operator.planning.pools.pool_plan import PoolPlan
from legato_operator.planning.rollout.canary import CanaryStep
from legato_operator.planning.rollout.revisions import Revisions
from legato_operator.planning.rollout.rolling_update import PoolRollout
from legato_operator.planning.rollout.upgrades import UpgradeState


@dataclass(frozen=True)
class ServiceRevisions:
    """Revisions of a service's pods, and the rollouts of its pools."""

    by_role: Mapping[str, Revisions]  # of every pool and of the gateway
    rollouts: Mapping[str, PoolRollout]  # by pool
    gateway_may_serve: bool  # nothing is rolled back, and the pools have proven the gateway's newest revision
    canary: CanaryStep

    @property
    def pools(self) -> dict[str, Revisions]:
        """Revisions by pool."""
        return {role: each for role, each in self.by_role.items() if role != common.GATEWAY}

    @property
    def gateway(self) -> Revisions:
        """Revisions of the gateway."""
        return self.by_role[common.GATEWAY]


@dataclass(frozen=True)
class ServiceStep:
    """Decisions of one pass about a service."""

    targets: Targets
    upgrade: UpgradeState
    revisions: Mapping[str, Revisions]  # of every pool and of the gateway
    pools: Mapping[str, PoolPlan]
    starts: tuple[Apply, ...]  # of the pools' workers, in order
    gateway: PoolPlan
    good: bool  # all pods run and prove their revisions, which become the last good ones
    canary: CanaryStep

    @property
    def parts(self) -> dict[str, PoolPlan]:
        """Plans of every pool and of the gateway."""
        return {**self.pools, common.GATEWAY: self.gateway}
