"""Gives services their turns, after another version of the operator has taken over. Knows no more than is stored.

A turn is noted in the service's status before anything of it happens, so that a restart loses and repeats none.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from legato_operator.clock import Clock
from legato_operator.cluster import Cluster
from legato_operator.errors import ClusterError, Conflict, NotLeading, ObjectNotFound
from legato_operator.planning import waves
from legato_operator.planning.upgrades import UPGRADE_SLOT
from legato_operator.planning.waves import Candidate, Waves
from legato_protocol import names

LEAST, LOOK_EVERY = 0.2, 5.0  # seconds between two looks, as long as a service has its turn
log = logging.getLogger(__name__)


class UpgradeTurns:
    """Of all services of an operator. Looks when a pass has found one that waits, or whose turn it is."""

    def __init__(
        self,
        stored: Cluster,
        cluster: Cluster,
        clock: Clock,
        bounds: Waves,
        namespaces: Sequence[str] = (),
        works_in: Callable[[str], bool] = lambda namespace: True,
    ) -> None:
        """`stored` is asked for services as they are now: one that was kept for later may lack a turn just given.

        Services of namespaces that this operator does not work in have their turns elsewhere.
        """
        self._stored = stored
        self._cluster = cluster
        self._clock = clock
        self._waves = bounds
        self._namespaces: Sequence[str | None] = tuple(namespaces) or (None,)
        self._works_in = works_in
        self.every = max(LEAST, min(LOOK_EVERY, bounds.pause / 2))  # seconds until one who has a turn looks again
        self._busy = asyncio.Lock()
        self._first: float | None = None
        self._last = float("-inf")
        self._stopped: tuple[Candidate, ...] = ()

    async def look(self) -> float:
        """End and begin turns, if it is time to. Seconds until a service that waits has to ask again.

        The first ones begin a pause after the first look: by then, all have told how they stand.
        """
        now = self._clock.now()
        self._first = now if self._first is None else self._first
        if 0 <= now - self._first < self._waves.pause:
            return self._first + self._waves.pause - now
        if not self._busy.locked() and not 0 <= now - self._last < self.every / 2:
            self._last = now
            async with self._busy:
                await self._look(now)
        return math.inf

    @property
    def held(self) -> str:
        """Why no turn begins, as the last look found it; empty where one may."""
        if not self._waves.services:
            return "no turn begins while upgrade.services is 0"
        listed = ", ".join(f"{each.ref.namespace}/{each.ref.name}" for each in self._stopped)
        return f"no turn begins until these are ready: {listed}" if listed else ""

    async def _look(self, now: float) -> None:
        wave = waves.plan_wave(await self._services(), self._waves, now)
        for service in wave.end:
            await self._note(service, None)
        for service in wave.begin:
            await self._note(service, {"since": self._clock.timestamp(), "unserved": service in wave.unserved})
        before, self._stopped = self._stopped, wave.failed
        if wave.failed and {each.ref for each in wave.failed} != {each.ref for each in before}:
            log.warning("services that wait for their turn to be upgraded: %s", self.held)

    async def _services(self) -> list[Candidate]:
        lists = [await self._stored.list(names.INFERENCE_SERVICE, namespace) for namespace in self._namespaces]
        found = [waves.candidate(item) for listing in lists for item in listing.items]
        return [each for each in found if each is not None and self._works_in(each.ref.namespace)]

    async def _note(self, service: Candidate, turn: dict[str, Any] | None) -> None:
        """One that cannot be written keeps no other from its turn: the next look finds it as it is."""
        try:
            await self._cluster.patch_status(service.ref, {UPGRADE_SLOT: turn}, service.uid)
        except NotLeading:
            raise
        except (Conflict, ObjectNotFound):
            return
        except ClusterError as error:
            log.warning("%s/%s: its turn cannot be noted: %s", service.ref.namespace, service.ref.name, error)
            return
        what = "its turn to be upgraded begins" if turn else "its turn is over"
        log.info("%s/%s: %s", service.ref.namespace, service.ref.name, what)
