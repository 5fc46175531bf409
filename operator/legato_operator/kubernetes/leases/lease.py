"""One holder's claim to a Lease, written with optimistic concurrency.

Clocks of two machines are never compared: a Lease has expired once it was seen unrenewed for its whole duration.
kopf's peering compares them, needs its own CRD, and does not refuse the writes of a replica that was paused meanwhile.
The client's `leaderelection` blocks a thread, knows neither owners nor releases, and refuses no writes either.
"""

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator.api import kinds
from legato_operator.cluster import Ref, uid_of
from legato_operator.errors import ClusterError, Conflict, Forbidden, ObjectNotFound
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_operator.manifests import common

_ENDING = "because it is being terminated"  # in the API server's error for a terminating namespace
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Terms:
    """Times in seconds. A holder that cannot renew stops before others may start."""

    duration: int = 15
    renew_within: float = 10.0
    retry: float = 2.0


class Claim:
    """One holder's claim to one Lease."""

    def __init__(
        self,
        leases: KubernetesCluster,
        ref: Ref,
        holder: str,
        terms: Terms,
        ends_with_namespace: bool = True,
        account: Ref | None = None,
    ) -> None:
        """Unless it `ends_with_namespace`, the claim stays held in a terminating namespace, which accepts no Leases.

        `account`, the holder's ServiceAccount, owns the Lease, because nobody could release it without the account.
        """
        self._account = account
        self._owners: tuple[dict[str, str], ...] = ()
        self._ends_with_namespace = ends_with_namespace
        self._leases = leases
        self._ref = ref
        self._holder = holder
        self._terms = terms
        self._held_until = 0.0
        self._seen: tuple[Any, ...] = ()  # another holder and its renewal, unchanged since `_seen_since`
        self._seen_since = 0.0

    @property
    def other(self) -> str:
        """The other holder at the last check; empty if there was none."""
        return str(self._seen[0]) if self._seen else ""

    def left(self) -> float:
        """Returns the seconds for which the Lease is still held without a renewal."""
        return max(0.0, self._held_until - time.monotonic())

    async def take(self) -> bool:
        """Takes or renews the Lease. Returns True if it is held."""
        asked = time.monotonic()
        try:
            async with asyncio.timeout(self.left() or self._terms.renew_within):
                return await self._take(asked)
        except (ClusterError, TimeoutError) as error:
            log.warning("Lease %s of %s: %s", self._ref.name, self._ref.namespace, error or "no answer in time")
            return False

    async def _take(self, asked: float) -> bool:
        await self._find_owner()
        with contextlib.suppress(Conflict):  # another was faster
            try:
                stored = await self._leases.get(self._ref)
            except ObjectNotFound:
                await self._create()
            else:
                if not self._may_take(stored.get("spec", {})):
                    self._held_until = 0.0
                    return False
                await self._leases.replace(self._lease(stored["metadata"], stored.get("spec", {})))
            self._seen = ()
            self._held_until = asked + self._terms.renew_within
            return True
        return False

    async def _find_owner(self) -> None:
        """Reads the account once. If it does not exist or cannot be read, the Lease has no owner."""
        if self._account is not None:
            with contextlib.suppress(Forbidden, ObjectNotFound):
                uid = uid_of(await self._leases.get(self._account))
                api_version = kinds.KINDS[self._account.kind].api_version
                owner = {"apiVersion": api_version, "kind": self._account.kind, "name": self._account.name, "uid": uid}
                self._owners = (owner,)
            self._account = None

    async def _create(self) -> None:
        try:
            await self._leases.create(self._lease({}, {}), common.MANAGER)
        except Forbidden as refusal:
            if self._ends_with_namespace or _ENDING not in str(refusal):
                raise

    def _may_take(self, spec: Mapping[str, Any]) -> bool:
        holder = spec.get("holderIdentity")
        if not holder or holder == self._holder:
            return True
        seen = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_since = seen, time.monotonic()
        return time.monotonic() - self._seen_since > float(spec.get("leaseDurationSeconds") or self._terms.duration)

    def _lease(self, metadata: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
        now = micro_time()
        mine = before.get("holderIdentity") == self._holder
        spec = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": self._terms.duration,
            "acquireTime": before["acquireTime"] if mine and before.get("acquireTime") else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if mine or not before else 1),
        }
        return self._object(metadata, spec)

    def _object(self, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
        mine = {"name": self._ref.name, "namespace": self._ref.namespace, "ownerReferences": list(self._owners)}
        return kinds.item("Lease", {**metadata, **mine}, spec=dict(spec))

    async def give_back(self) -> None:
        """Releases the Lease, so that the next holder need not wait. Without an answer, the Lease expires."""
        self._held_until = 0.0
        with contextlib.suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(self._terms.renew_within):
                stored = await self._leases.get(self._ref)
                if stored.get("spec", {}).get("holderIdentity") == self._holder:
                    kept = {key: value for key, value in stored["spec"].items() if key != "holderIdentity"}
                    await self._leases.replace(self._object(stored["metadata"], kept))

    async def remove(self) -> None:
        """Releases the Lease and deletes it. Raises ClusterError."""
        self._held_until = 0.0
        with contextlib.suppress(ObjectNotFound, Conflict):  # somebody else was faster
            stored = await self._leases.get(self._ref)
            if stored.get("spec", {}).get("holderIdentity") == self._holder:
                await self._leases.delete(self._ref, uid_of(stored))


def micro_time() -> str:
    """Returns the current time in the API's MicroTime format."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
