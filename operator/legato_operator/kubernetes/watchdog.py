"""Monitors the operator itself: its watches must report changes, and its passes must end."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from legato_operator.cluster import Object, ObjectList
from legato_operator.errors import ClusterError
from legato_operator.kubernetes.cache.known_objects import WatchedStore
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_protocol import names

AUDIT_SECONDS = 30.0
PASS_SECONDS = 300.0  # after which a pass counts as stuck
DEAF_AUDITS = 3  # failed audits in a row, despite restarted watches, after which the process should be replaced
SOUND_AUDITS = 2  # passed audits in a row after which the store is trusted
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reactions:
    """Calls after an audit that found missed changes."""

    count: Callable[[int], None]
    wake: Callable[[Object], None]  # with every object of a missed change
    restart: Callable[[], None]  # restarts the watches


class Watchdog:
    """Audits watches against lists.

    The store is trusted while audits find that watches report every change of its kinds.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        namespaces: tuple[str, ...],
        store: WatchedStore,
        reactions: Reactions,
        longest_pass: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._store = store
        self._reactions = reactions
        self._longest_pass = longest_pass
        self._deaf = 0  # failed audits in a row
        self._clean = 0  # passed audits in a row

    async def run(self, seconds: float = AUDIT_SECONDS) -> None:
        """Audits until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self._audit()
            except ClusterError as error:
                self.distrust()
                log.warning("watches cannot be audited: %s", error)

    def distrust(self) -> None:
        """Distrusts the store until enough audits have passed."""
        self._clean = 0
        self._store.trust(False)

    def complaint(self) -> str:
        """Returns why the process should be replaced, or an empty text."""
        if self._deaf >= DEAF_AUDITS:
            return "watches no longer report changes"
        if self._longest_pass() > PASS_SECONDS:
            return f"a pass has taken more than {PASS_SECONDS:.0f} s"
        return ""

    async def _audit(self) -> None:
        results = [self._store.audit(kind, await self._list(kind)) for kind in self._store.known]
        missed = sum(map(len, results))
        self._deaf = self._deaf + 1 if missed else 0
        self._clean = 0 if missed else self._clean + 1
        self._store.trust(self._clean >= SOUND_AUDITS)
        if not missed:
            return
        self._reactions.count(missed)
        log.error("no watch reported %d changes; watches restart", missed)
        for item in (item for each in results for item in each.changed):
            self._reactions.wake(item)
        self._reactions.restart()

    async def _list(self, kind: str) -> ObjectList:
        labels = None if kind == names.INFERENCE_SERVICE else {names.LABEL_SERVICE: ""}  # any value
        lists = [await self._cluster.list_metadata(kind, namespace, labels) for namespace in self._namespaces]
        items = tuple(item for listing in lists for item in listing.items)
        return ObjectList(items, min(listing.version for listing in lists))
