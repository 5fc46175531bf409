"""Starts and ends the upgrades of services after the operator was upgraded. Keeps no state but the services' statuses.

An upgrade is recorded in the service's status before it starts, so that a restart neither loses nor repeats one.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from legato_operator.clock import Clock
from legato_operator.cluster import Cluster
from legato_operator.errors import ClusterError, Conflict, NotLeading, ObjectNotFound
from legato_operator.planning.rollout import waves
from legato_operator.planning.rollout.upgrades import UPGRADE_SLOT
from legato_operator.planning.rollout.waves import Candidate, Waves
from legato_protocol import names

LEAST, POLL_EVERY = 0.2, 5.0  # limits of the seconds between polls while a service is upgraded
log = logging.getLogger(__name__)


class UpgradeScheduler:
    """Schedules the upgrades of all services. Passes over services that wait or are upgraded call `poll`."""

    def __init__(
        self,
        stored: Cluster,
        cluster: Cluster,
        clock: Clock,
        bounds: Waves,
        namespaces: Sequence[str] = (),
        works_in: Callable[[str], bool] = lambda namespace: True,
    ) -> None:
        """`stored` reads services without a cache, which could lack an upgrade that was just recorded.

        Services in namespaces outside `works_in` are upgraded by another operator.
        """
        self._stored = stored
        self._cluster = cluster
        self._clock = clock
        self._waves = bounds
        self._namespaces: Sequence[str | None] = tuple(namespaces) or (None,)
        self._works_in = works_in
        self.every = max(
            LEAST, min(POLL_EVERY, bounds.pause / 2)
        )  # seconds between polls of a service that is upgraded
        self._busy = asyncio.Lock()
        self._first: float | None = None
        self._last = float("-inf")
        self._failed: tuple[Candidate, ...] = ()

    async def poll(self) -> float:
        """Ends and starts upgrades if due. Returns the seconds until a waiting service must poll again.

        The first upgrades start one pause after the first poll, when all services have reported their state.
        """
        now = self._clock.now()
        self._first = now if self._first is None else self._first
        if 0 <= now - self._first < self._waves.pause:
            return self._first + self._waves.pause - now
        if not self._busy.locked() and not 0 <= now - self._last < self.every / 2:
            self._last = now
            async with self._busy:
                await self._poll(now)
        return math.inf

    @property
    def stopped_by(self) -> str:
        """Reason why no upgrade starts, as of the last poll; empty if one may."""
        if not self._waves.services:
            return "no upgrade starts while upgrade.services is 0"
        listed = ", ".join(f"{each.ref.namespace}/{each.ref.name}" for each in self._failed)
        return f"no upgrade starts until these are ready: {listed}" if listed else ""

    async def _poll(self, now: float) -> None:
        wave = waves.plan_wave(await self._services(), self._waves, now)
        for service in wave.end:
            await self._note(service, None)
        for service in wave.begin:
            await self._note(service, {"since": self._clock.timestamp(), "unserved": service in wave.unserved})
        before, self._failed = self._failed, wave.failed
        if wave.failed and {each.ref for each in wave.failed} != {each.ref for each in before}:
            log.warning("services wait for their upgrade: %s", self.stopped_by)

    async def _services(self) -> list[Candidate]:
        lists = [await self._stored.list(names.INFERENCE_SERVICE, namespace) for namespace in self._namespaces]
        candidates = [waves.candidate(item) for listing in lists for item in listing.items]
        return [each for each in candidates if each is not None and self._works_in(each.ref.namespace)]

    async def _note(self, service: Candidate, slot: dict[str, Any] | None) -> None:
        """Records the start or end of an upgrade. A failed write delays no other service: the next poll retries it."""
        try:
            await self._cluster.patch_status(service.ref, {UPGRADE_SLOT: slot}, service.uid)
        except NotLeading:
            raise
        except (Conflict, ObjectNotFound):
            return
        except ClusterError as error:
            log.warning("%s/%s: its upgrade cannot be recorded: %s", service.ref.namespace, service.ref.name, error)
            return
        what = "its upgrade starts" if slot else "its upgrade has ended"
        log.info("%s/%s: %s", service.ref.namespace, service.ref.name, what)


class NullUpgradeScheduler:
    """Starts no upgrade."""

    every = math.inf
    stopped_by = ""

    async def poll(self) -> float:
        return math.inf
