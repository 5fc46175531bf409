"""Claims of namespaces: this release of the operator only works in namespaces whose Lease it holds.

Replicas of a release share its claims. If two releases watch a namespace, the first works there until it has not
renewed its Lease for the whole duration. The other one leaves the namespace alone, and reports it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from legato_operator.cluster import Cluster, Object, Ref, uid_of
from legato_operator.controller import Reconciles
from legato_operator.errors import Unavailable
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_operator.kubernetes.leases.lease import Claim, Terms
from legato_operator.observing.observe import find, list_known
from legato_operator.recorder import Recorder
from legato_protocol import names

CLAIM = "legato-services"  # the Lease, in a namespace with services
TAKEN = "NamespaceTaken"  # the Event's reason
TERMS = Terms(duration=60, renew_within=40.0, retry=15.0)
log = logging.getLogger(__name__)


class NamespaceClaims:
    """The claims of `release`. Belongs to one event loop."""

    def __init__(self, leases: KubernetesCluster, release: str, terms: Terms = TERMS) -> None:
        self._leases = leases
        self._release = release
        self._terms = terms
        self.forget()

    @property
    def pause(self) -> float:
        """Seconds between checks of a namespace that another release has claimed."""
        return self._terms.retry

    @property
    def taken(self) -> Mapping[str, str]:
        """The other release of each watched namespace with services that another release has claimed."""
        return self._taken

    def holds(self, namespace: str) -> bool:
        """True if this release may write in the namespace now."""
        return namespace in self._claims and self._claims[namespace].left() > 0

    def complaint(self) -> str:
        """Returns why this release does nothing although there are services, or an empty text."""
        if not self._taken or any(self.holds(namespace) for namespace in self._claims):
            return ""
        listed = ", ".join(f"{namespace} ({release})" for namespace, release in sorted(self._taken.items()))
        return f"every namespace with services is managed by another release: {listed}"

    async def take(self, namespace: str) -> bool:
        """Claims a namespace. Returns True if this release holds it; raises Unavailable if that is unknown."""
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
            owner = f"release {claim.other}" if claim.other else "this release from now on"
            log.warning("namespace %s is managed by %s", namespace, owner)
        return held

    async def remove(self, namespace: str) -> None:
        """Ends the claim of a namespace without services. Raises ClusterError."""
        async with self._locks.setdefault(namespace, asyncio.Lock()):
            self._taken.pop(namespace, None)
            claim = self._claims.pop(namespace, None)
            if claim is not None:
                await claim.remove()

    async def keep(self) -> None:
        """Renews the held claims until cancelled."""
        while True:
            await asyncio.sleep(self._terms.retry)
            for namespace, claim in list(self._claims.items()):
                if self.holds(namespace):
                    await claim.take()

    def forget(self) -> None:
        """Forgets all claims, because another replica may have led meanwhile."""
        self._claims: dict[str, Claim] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._taken: dict[str, str] = {}
        self._looked: dict[str, float] = {}


class ClaimedPasses:
    """Wraps a reconciler to only work in namespaces that this release has claimed."""

    def __init__(
        self,
        reconciler: Reconciles,
        cluster: Cluster,
        claims: NamespaceClaims,
        recorder: Recorder,
        gone: Callable[[Ref], None],
    ) -> None:
        """`gone` is called with services that another release manages."""
        self._reconciler = reconciler
        self._cluster = cluster
        self._claims = claims
        self._recorder = recorder
        self._gone = gone
        self._reported: dict[str, str] = {}  # the other release, by the service's uid

    async def reconcile(self, ref: Ref, woken: bool = True) -> float | None:
        if not self._claims.holds(ref.namespace):
            stored = await find(self._cluster, ref)
            if stored is not None and not await self._claims.take(ref.namespace):
                await self._refuse(ref, stored)
                return self._claims.pause
            woken = True  # another release may have changed it
        due = await self._reconciler.reconcile(ref, woken)
        if due is None and not (await list_known(self._cluster, names.INFERENCE_SERVICE, ref.namespace)).items:
            await self._claims.remove(ref.namespace)
        return due

    async def record_failure(self, ref: Ref, error: Exception) -> None:
        await self._reconciler.record_failure(ref, error)

    async def _refuse(self, ref: Ref, stored: Object) -> None:
        self._gone(ref)
        other = self._claims.taken[ref.namespace]
        if self._reported.get(uid_of(stored)) != other:
            self._reported[uid_of(stored)] = other
            note = f"release {other} manages this namespace; another release that also watches it leaves it alone"
            await self._recorder.record(stored, True, TAKEN, note)
