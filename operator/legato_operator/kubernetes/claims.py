"""Which namespaces this release of the operator works in: those whose claim it holds, a Lease in each with services.

Replicas of a release share its claims and lead in turn. Of two releases that watch one namespace, the first works there
until it has not been heard of for the claim's whole duration; the other leaves it alone, and says so.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from legato_operator.cluster import Cluster, Object, Ref, uid_of
from legato_operator.controller import Reconciles
from legato_operator.errors import ObjectNotFound, Unavailable
from legato_operator.kubernetes.lease import Claim, Leases, Terms
from legato_operator.observing.observe import list_known
from legato_operator.recorder import Recorder
from legato_protocol import names

CLAIM = "legato-services"  # the Lease, in a namespace with services
TAKEN = "NamespaceTaken"  # the Event's reason
TERMS = Terms(duration=60, renew_within=40.0, retry=15.0)
log = logging.getLogger(__name__)


class NamespaceClaims:
    """The claims of `release`. Belongs to one event loop."""

    def __init__(self, leases: Leases, release: str, terms: Terms = TERMS) -> None:
        self._leases = leases
        self._release = release
        self._terms = terms
        self.forget()

    @property
    def pause(self) -> float:
        """Seconds between two looks at a namespace that another release has."""
        return self._terms.retry

    @property
    def taken(self) -> Mapping[str, str]:
        """The release that has a namespace with services, of those that this one was to look after."""
        return self._taken

    def holds(self, namespace: str) -> bool:
        """Whether this release may write there now."""
        return namespace in self._claims and self._claims[namespace].left() > 0

    def complaint(self) -> str:
        """Why this release does nothing at all; empty when it has something to do, or there is nothing."""
        if not self._taken or any(self.holds(namespace) for namespace in self._claims):
            return ""
        told = ", ".join(f"{namespace} ({release})" for namespace, release in sorted(self._taken.items()))
        return f"every namespace with services is looked after by another release: {told}"

    async def take(self, namespace: str) -> bool:
        """Whether the namespace is this release's. Raises Unavailable when that cannot be found out."""
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            if self.holds(namespace):
                return True
            if namespace in self._taken and time.monotonic() - self._looked[namespace] < self._terms.retry:
                return False
            return await self._ask(namespace)

    async def _ask(self, namespace: str) -> bool:
        ref = Ref("Lease", namespace, CLAIM)
        fresh = Claim(self._leases, ref, self._release, self._terms, ends_with_namespace=False)
        claim = self._claims.setdefault(namespace, fresh)
        held = await claim.take()
        self._looked[namespace] = time.monotonic()
        if not held and not claim.other:
            raise Unavailable(f"Lease {CLAIM} cannot be taken: without it, another release may work in the namespace")
        before = self._taken.pop(namespace, "")
        if not held:
            self._taken[namespace] = claim.other
        if before != self._taken.get(namespace, ""):
            told = f"left to release {claim.other}, which looks after it" if claim.other else "looked after from now on"
            log.warning("namespace %s is %s", namespace, told)
        return held

    async def remove(self, namespace: str) -> None:
        """End the claim to a namespace without services. Raises ClusterError."""
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            self._taken.pop(namespace, None)
            claim = self._claims.pop(namespace, None)
            if claim is not None:
                await claim.remove()

    async def keep(self) -> None:
        """Renew what is held, for ever."""
        while True:
            await asyncio.sleep(self._terms.retry)
            for namespace, claim in list(self._claims.items()):
                if self.holds(namespace):
                    await claim.take()

    def forget(self) -> None:
        """Know nothing: another replica may have led meanwhile."""
        self._claims: dict[str, Claim] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._taken: dict[str, str] = {}
        self._looked: dict[str, float] = {}


class ClaimedPasses:
    """Reconciles as another does, in namespaces that are this release's. To services of others it does nothing."""

    def __init__(
        self,
        reconciler: Reconciles,
        cluster: Cluster,
        claims: NamespaceClaims,
        recorder: Recorder,
        gone: Callable[[Ref], None],
    ) -> None:
        """`gone` is told of services that are another release's."""
        self._reconciler = reconciler
        self._cluster = cluster
        self._claims = claims
        self._recorder = recorder
        self._gone = gone
        self._told: dict[str, str] = {}  # which release, by the service's uid

    async def reconcile(self, ref: Ref) -> float | None:
        if not self._claims.holds(ref.namespace):
            stored = await self._find(ref)
            if stored is not None and not await self._claims.take(ref.namespace):
                await self._refuse(ref, stored)
                return self._claims.pause
        due = await self._reconciler.reconcile(ref)
        if due is None and not (await list_known(self._cluster, names.INFERENCE_SERVICE, ref.namespace)).items:
            await self._claims.remove(ref.namespace)
        return due

    async def record_failure(self, ref: Ref, error: Exception) -> None:
        await self._reconciler.record_failure(ref, error)

    async def _find(self, ref: Ref) -> Object | None:
        try:
            return await self._cluster.get(ref)
        except ObjectNotFound:
            return None

    async def _refuse(self, ref: Ref, stored: Object) -> None:
        self._gone(ref)
        other = self._claims.taken[ref.namespace]
        if self._told.get(uid_of(stored)) != other:
            self._told[uid_of(stored)] = other
            note = f"release {other} looks after this namespace; another that watches it too leaves it alone"
            await self._recorder.record(stored, True, TAKEN, note)
