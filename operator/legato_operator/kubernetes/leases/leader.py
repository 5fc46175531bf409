"""Leader election: the replica that holds the release's Lease works, and the others stand by."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from legato_operator.cluster import Ref
from legato_operator.errors import NotLeading, Unavailable
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_operator.kubernetes.leases.lease import Claim, Terms
from legato_operator.kubernetes.settings import LEASE

log = logging.getLogger(__name__)


class Leader:
    """One replica's claim to the Lease."""

    def __init__(
        self,
        leases: KubernetesCluster,
        namespace: str,
        identity: str,
        terms: Terms | None = None,
        name: str = LEASE,
        account: str = "",
    ) -> None:
        """`account` names the ServiceAccount that owns the Lease."""
        self._identity = identity
        self._terms = terms or Terms()
        owner = Ref("ServiceAccount", namespace, account) if account else None
        self._claim = Claim(leases, Ref("Lease", namespace, name), identity, self._terms, account=owner)

    def holds(self) -> bool:
        """True if this replica may write now."""
        return self._claim.left() > 0

    def check(self, namespace: str, claimed: Callable[[str], bool] = lambda namespace: True) -> None:
        """Raises NotLeading unless this replica holds the Lease, and Unavailable, which is retried, if another release
        may have claimed the namespace."""
        if not self.holds():
            raise NotLeading("another replica may be the leader by now")
        if not claimed(namespace):
            raise Unavailable(f"another release may manage namespace {namespace} by now")

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs `work` while the Lease is held, and cancels it when the Lease is lost. Releases it when cancelled.

        Raises the errors of `work`, except NotLeading.
        """
        try:
            while True:
                while not await self._claim.take():  # noqa: ASYNC110 - only the API server knows
                    await asyncio.sleep(self._terms.retry)
                log.info("%s leads", self._identity)
                await self._work_while_held(work)
                log.warning("%s no longer leads", self._identity)
        finally:
            await asyncio.shield(self._claim.give_back())

    async def _work_while_held(self, work: Callable[[], Awaitable[None]]) -> None:
        working = asyncio.ensure_future(_without_leadership_errors(work))
        try:
            while self.holds() and not working.done():
                await asyncio.wait((working,), timeout=min(self._terms.retry, self._claim.left()))
                await self._claim.take()
        finally:
            working.cancel()
            await asyncio.wait((working,))
        if not working.cancelled():
            working.result()


async def _without_leadership_errors(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except* NotLeading:
        log.warning("a write was not sent: the Lease was not held")
