"""Which replica of the operator works: the one that holds the Lease. The others stand by.

Clocks of two machines are never compared: a Lease has ended when it was seen unrenewed for its whole duration.
"""

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from legato_operator.cluster import Cluster, Object, ObjectList, Ref, WatchEvent
from legato_operator.errors import ClusterError, Conflict, NotLeading, ObjectNotFound
from legato_operator.kubernetes import kinds
from legato_operator.manifests import common

LEASE = "legato-operator"
log = logging.getLogger(__name__)


class Leases(Protocol):
    """What is done with Leases: writes that only happen to the version that was read."""

    async def get(self, ref: Ref) -> Object: ...

    async def create(self, item: Mapping[str, Any], manager: str) -> Object: ...

    async def replace(self, item: Mapping[str, Any]) -> Object: ...


@dataclass(frozen=True)
class Terms:
    """Seconds. A leader that could not renew stops before others may start."""

    duration: int = 15
    renew_within: float = 10.0
    retry: float = 2.0


class Leader:
    """One replica's claim to the Lease."""

    def __init__(self, leases: Leases, namespace: str, identity: str, terms: Terms | None = None) -> None:
        self._leases = leases
        self._ref = Ref("Lease", namespace, LEASE)
        self._identity = identity
        self._terms = terms or Terms()
        self._held_until = 0.0
        self._seen: tuple[Any, ...] = ()  # holder and renewal, and since when they have been so
        self._seen_since = 0.0

    def holds(self) -> bool:
        """Whether this replica may write now."""
        return time.monotonic() < self._held_until

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Whenever the Lease is held, `work` runs; it is cancelled when the Lease is lost. Cancelled, gives it back.

        Raises what `work` raises, except for NotLeading.
        """
        try:
            while True:
                while not await self._try():  # noqa: ASYNC110 - only the API server can tell
                    await asyncio.sleep(self._terms.retry)
                log.info("%s leads", self._identity)
                await self._work_while_held(work)
                log.warning("%s no longer leads", self._identity)
        finally:
            await asyncio.shield(self._give_back())

    async def _work_while_held(self, work: Callable[[], Awaitable[None]]) -> None:
        working = asyncio.ensure_future(_without_leadership_errors(work))
        try:
            while self.holds() and not working.done():
                await asyncio.wait((working,), timeout=min(self._terms.retry, self._left()))
                await self._try()
        finally:
            working.cancel()
            await asyncio.wait((working,))
        if not working.cancelled():
            working.result()

    def _left(self) -> float:
        return max(0.0, self._held_until - time.monotonic())

    async def _try(self) -> bool:
        """Take or renew the Lease, where that is allowed."""
        asked = time.monotonic()
        try:
            async with asyncio.timeout(self._left() if self.holds() else self._terms.renew_within):
                return await self._claim(asked)
        except (ClusterError, TimeoutError) as error:
            log.warning("the Lease cannot be had: %s", error or "no answer in time")
            return False

    async def _claim(self, asked: float) -> bool:
        with contextlib.suppress(Conflict):  # another was faster
            try:
                stored = await self._leases.get(self._ref)
            except ObjectNotFound:
                await self._leases.create(self._lease({}, {}), common.MANAGER)
            else:
                if not self._may_take(stored.get("spec", {})):
                    self._held_until = 0.0
                    return False
                await self._leases.replace(self._lease(stored["metadata"], stored.get("spec", {})))
            self._held_until = asked + self._terms.renew_within
            return True
        return False

    def _may_take(self, spec: Mapping[str, Any]) -> bool:
        holder = spec.get("holderIdentity")
        if not holder or holder == self._identity:
            return True
        seen = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_since = seen, time.monotonic()
        return time.monotonic() - self._seen_since > float(spec.get("leaseDurationSeconds") or self._terms.duration)

    def _lease(self, metadata: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
        now = micro_time()
        mine = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._terms.duration,
            "acquireTime": before["acquireTime"] if mine and before.get("acquireTime") else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if mine or not before else 1),
        }
        return self._object(metadata, spec)

    def _object(self, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
        names = {"name": self._ref.name, "namespace": self._ref.namespace}
        api_version = kinds.KINDS["Lease"].api_version
        return {"apiVersion": api_version, "kind": "Lease", "metadata": {**metadata, **names}, "spec": dict(spec)}

    async def _give_back(self) -> None:
        """So that the next leader need not wait for its end. Without an answer, it ends by itself."""
        self._held_until = 0.0
        with contextlib.suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(self._terms.renew_within):
                stored = await self._leases.get(self._ref)
                if stored.get("spec", {}).get("holderIdentity") == self._identity:
                    kept = {key: value for key, value in stored["spec"].items() if key != "holderIdentity"}
                    await self._leases.replace(self._object(stored["metadata"], kept))


class LedCluster:
    """A `Cluster` that is written to only while the Lease is held. Raises NotLeading."""

    def __init__(self, cluster: Cluster, leader: Leader) -> None:
        self._cluster = cluster
        self._leader = leader

    async def get(self, ref: Ref) -> Object:
        return await self._cluster.get(ref)

    async def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> ObjectList:
        return await self._cluster.list(kind, namespace, labels)

    async def create(self, item: Mapping[str, Any], manager: str) -> Object:
        self._check()
        return await self._cluster.create(item, manager)

    async def apply(self, item: Mapping[str, Any], manager: str, force: bool = False) -> Object:
        self._check()
        return await self._cluster.apply(item, manager, force)

    async def check(self, item: Mapping[str, Any]) -> None:
        await self._cluster.check(item)

    async def patch_status(self, ref: Ref, status: Mapping[str, Any], uid: str | None = None) -> Object:
        self._check()
        return await self._cluster.patch_status(ref, status, uid)

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        self._check()
        await self._cluster.delete(ref, uid)

    def watch(self, kind: str, since: int) -> AsyncIterator[WatchEvent]:
        return self._cluster.watch(kind, since)

    def _check(self) -> None:
        if not self._leader.holds():
            raise NotLeading("another replica may be the leader by now")


def micro_time() -> str:
    """Now, as the API spells a MicroTime."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def _without_leadership_errors(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except* NotLeading:
        log.warning("a write was kept back: the Lease was not held")
