"""Which adapters a worker offers: those that a list names and that fit its model, opened beside the core's loop.

One that cannot be opened keeps nothing else from being offered: it is told why, tried again now and then, and where
its name had another one before, that one stays. No torch in here.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from legato_engine.adapters.offer import AdapterOffer
from legato_engine.adapters.resident import OfferedAdapter, ResidentAdapters
from legato_engine.errors import EngineError
from legato_engine.mailbox import Mailbox
from legato_protocol.adapter_list import AdapterEntry, AdapterList

RETRY = 10.0  # seconds until one that could not be opened is tried again: its files may be on their way

_log = logging.getLogger(__name__)

Open = Callable[[AdapterEntry], OfferedAdapter]


class _Opened(NamedTuple):
    """What came of a list."""

    wanted: AdapterList
    found: Mapping[AdapterEntry, OfferedAdapter]
    problems: Mapping[str, str]


class AdapterCatalog:
    """Used by the core's loop alone. `open` is called in a thread, and raises EngineError or OSError."""

    def __init__(self, resident: ResidentAdapters, open: Open, clock: Callable[[], float]) -> None:
        self._resident = resident
        self._open = open
        self._clock = clock
        self._now = _Opened(AdapterList(), {}, {})
        self._wanted: AdapterList | None = None  # that is being opened, or waits for that
        self._tried_at = 0.0
        self._thread = ThreadPoolExecutor(1, "adapter-catalog")
        self._done: Mailbox[_Opened] = Mailbox()

    def begin(self, wanted: AdapterList) -> None:
        """Opens what it names, and offers it: for the start."""
        self._take(self._opened(wanted, {}))

    def follow(self, wanted: AdapterList) -> None:
        """Offers what it names from soon on."""
        if wanted.id != (self._wanted or self._now.wanted).id:
            self._start(wanted)

    def retry(self) -> None:
        """Tries again what could not be opened, if it is time."""
        if self._now.problems and self._wanted is None and self._clock() - self._tried_at >= RETRY:
            self._start(self._now.wanted)

    def take_done(self) -> AdapterOffer | None:
        """What is offered, if that has changed since the last time."""
        offer = None
        for opened in self._done.take():
            if opened.wanted is not self._wanted:
                continue  # of an earlier list
            self._wanted, before = None, self.offer
            self._take(opened)
            offer = self.offer if self.offer != before else offer
        return offer

    @property
    def offer(self) -> AdapterOffer:
        """As gateways and `/state` are told."""
        resident, now = self._resident, self._now
        return AdapterOffer(now.wanted.id, dict(resident.offered), resident.former, dict(now.problems))

    def fileno(self) -> int:
        """Readable when a list has been opened."""
        return self._done.fileno()

    def _start(self, wanted: AdapterList) -> None:
        self._wanted, self._tried_at = wanted, self._clock()
        known = self._now.found
        self._thread.submit(lambda: self._done.put(self._opened(wanted, known)))

    def _opened(self, wanted: AdapterList, known: Mapping[AdapterEntry, OfferedAdapter]) -> _Opened:
        """An entry that was opened before is not opened again."""
        found, problems = {}, {}
        for entry in wanted.entries:
            try:
                found[entry] = known[entry] if entry in known else self._open(entry)
            except (EngineError, OSError) as error:
                problems[entry.name] = str(error)
            except Exception as error:  # the worker goes on with the others, whatever is in these files
                _log.exception("an adapter cannot be opened")
                problems[entry.name] = f"{entry.path} cannot be opened: {error!r}"
        return _Opened(wanted, found, problems)

    def _take(self, opened: _Opened) -> None:
        """One that replaces another, and cannot be opened, leaves that in place."""
        stay = {e.name: (e, each) for e, each in self._now.found.items() if e.name in opened.problems}
        self._resident.offer([*opened.found.values(), *(each for _, each in stay.values())])
        found = {**dict(stay.values()), **opened.found}
        self._now, self._tried_at = opened._replace(found=found), self._clock()
