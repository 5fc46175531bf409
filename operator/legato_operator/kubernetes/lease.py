"""One holder's claim to a Lease, written only over the version that was read.

Clocks of two machines are never compared: a Lease has ended when it was seen unrenewed for its whole duration.
"""

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from legato_operator.cluster import Object, Ref, uid_of
from legato_operator.errors import ClusterError, Conflict, Forbidden, ObjectNotFound
from legato_operator.kubernetes import kinds
from legato_operator.manifests import common

_ENDING = "because it is being terminated"  # the API server, of a namespace that takes nothing new
log = logging.getLogger(__name__)


class Leases(Protocol):
    """What is done with Leases: writes that only happen to the version that was read."""

    async def get(self, ref: Ref) -> Object: ...

    async def create(self, item: Mapping[str, Any], manager: str) -> Object: ...

    async def replace(self, item: Mapping[str, Any]) -> Object: ...

    async def delete(self, ref: Ref, uid: str | None = None) -> None: ...


@dataclass(frozen=True)
class Terms:
    """Seconds. A holder that could not renew stops before others may start."""

    duration: int = 15
    renew_within: float = 10.0
    retry: float = 2.0


class Claim:
    """What one holder knows and does about one Lease."""

    def __init__(
        self,
        leases: Leases,
        ref: Ref,
        holder: str,
        terms: Terms,
        ends_with_namespace: bool = True,
        account: Ref | None = None,
    ) -> None:
        """Unless it `ends_with_namespace`, it is held where the namespace is ending, and with that all its Leases.

        The Lease is deleted together with `account`, the holder's ServiceAccount: nobody could give it back then.
        """
        self._account = account
        self._owners: tuple[dict[str, str], ...] = ()
        self._ends_with_namespace = ends_with_namespace
        self._leases = leases
        self._ref = ref
        self._holder = holder
        self._terms = terms
        self._held_until = 0.0
        self._seen: tuple[Any, ...] = ()  # holder and renewal, and since when they have been so
        self._seen_since = 0.0

    @property
    def other(self) -> str:
        """Who else held it when it was looked at last; empty if nobody did."""
        return str(self._seen[0]) if self._seen else ""

    def left(self) -> float:
        """For how many seconds it is held, if it is not renewed."""
        return max(0.0, self._held_until - time.monotonic())

    async def take(self) -> bool:
        """Take or renew the Lease, where that is allowed."""
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
        """Reads the account once. If it does not exist or cannot be read, the Lease ends only by its time."""
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
        api_version = kinds.KINDS["Lease"].api_version
        return {"apiVersion": api_version, "kind": "Lease", "metadata": {**metadata, **mine}, "spec": dict(spec)}

    async def give_back(self) -> None:
        """So that the next holder need not wait for its end. Without an answer, it ends by itself."""
        self._held_until = 0.0
        with contextlib.suppress(ClusterError, TimeoutError):
            async with asyncio.timeout(self._terms.renew_within):
                stored = await self._leases.get(self._ref)
                if stored.get("spec", {}).get("holderIdentity") == self._holder:
                    kept = {key: value for key, value in stored["spec"].items() if key != "holderIdentity"}
                    await self._leases.replace(self._object(stored["metadata"], kept))

    async def remove(self) -> None:
        """Give it back for good: the Lease itself goes. Raises ClusterError."""
        self._held_until = 0.0
        with contextlib.suppress(ObjectNotFound, Conflict):  # somebody else was faster
            stored = await self._leases.get(self._ref)
            if stored.get("spec", {}).get("holderIdentity") == self._holder:
                await self._leases.delete(self._ref, uid_of(stored))


def micro_time() -> str:
    """Now, as the API spells a MicroTime."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
