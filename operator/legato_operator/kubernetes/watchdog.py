"""Looks after the operator itself: that its watches tell of changes, and that its passes end."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from legato_operator.cluster import Object, ObjectList
from legato_operator.errors import ClusterError
from legato_operator.kubernetes.store import Store
from legato_protocol import names

AUDIT_SECONDS = 30.0
PASS_SECONDS = 300.0  # a pass that takes longer has stopped
DEAF_AUDITS = 3  # in a row, fresh watches between them: then the process should be replaced
SOUND_AUDITS = 2  # in a row: what the first one listed was told of, so watches have begun
log = logging.getLogger(__name__)


class Lists(Protocol):
    async def list_metadata(
        self, kind: str, namespace: str | None = None, labels: dict[str, str] | None = None
    ) -> ObjectList: ...


class Watchdog:
    """`wake` is given every object that no watch told of; `restart` begins the watches anew.

    What the store knows is trusted while audits find that watches tell of every change of the kinds `audited`.
    """

    def __init__(
        self,
        lists: Lists,
        audited: tuple[str, ...],
        namespaces: tuple[str, ...],
        store: Store,
        wake: Callable[[Object], None],
        restart: Callable[[], None],
        longest_pass: Callable[[], float],
        missed: Callable[[int], None],
    ) -> None:
        self._lists = lists
        self._audited = audited
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._store = store
        self._wake = wake
        self._restart = restart
        self._longest_pass = longest_pass
        self._missed = missed
        self._deaf = 0  # audits in a row
        self._clean = 0  # the same

    async def run(self, seconds: float = AUDIT_SECONDS) -> None:
        """Audit for ever."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self._audit()
            except ClusterError as error:
                self.distrust()
                log.warning("watches cannot be audited: %s", error)

    def distrust(self) -> None:
        """What watches told is believed only after audits that begin from now on."""
        self._clean = 0
        self._store.trust(False)

    def complaint(self) -> str:
        """Why the process should be replaced by a fresh one; empty when it should not."""
        if self._deaf >= DEAF_AUDITS:
            return "watches no longer tell of changes"
        if self._longest_pass() > PASS_SECONDS:
            return f"a pass has taken more than {PASS_SECONDS:.0f} s"
        return ""

    async def _audit(self) -> None:
        found = [self._store.audited(kind, await self._list(kind)) for kind in self._audited]
        missed = sum(map(len, found))
        self._deaf = self._deaf + 1 if missed else 0
        self._clean = 0 if missed else self._clean + 1
        self._store.trust(self._clean >= SOUND_AUDITS)
        if not missed:
            return
        self._missed(missed)
        log.error("no watch told of %d changes; watches begin anew", missed)
        for item in (item for each in found for item in each.changed):
            self._wake(item)
        self._restart()

    async def _list(self, kind: str) -> ObjectList:
        labels = None if kind == names.INFERENCE_SERVICE else {names.LABEL_SERVICE: ""}  # that have it
        found = [await self._lists.list_metadata(kind, namespace, labels) for namespace in self._namespaces]
        items = tuple(item for listing in found for item in listing.items)
        return ObjectList(items, min(listing.version for listing in found))
