"""The adapters that a worker offers: the ones in a list that fit its model, opened in a thread.

An adapter that cannot be opened does not affect others: the reason is reported, it is tried again every `RETRY`
seconds, and an earlier adapter of its name stays. No torch.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from legato_engine.adapters.offer import AdapterOffer
from legato_engine.adapters.resident import OfferedAdapter, ResidentAdapters
from legato_engine.errors import EngineError
from legato_engine.mailbox import Mailbox
from legato_protocol.model_files.adapter_list import AdapterEntry, AdapterList

RETRY = 10.0  # seconds until a failed adapter is tried again: its files may still be being copied

_log = logging.getLogger(__name__)

Open = Callable[[AdapterEntry], OfferedAdapter]


class _Opened(NamedTuple):
    """The result of opening a list."""

    wanted: AdapterList
    adapters: Mapping[AdapterEntry, OfferedAdapter]
    problems: Mapping[str, str]


class AdapterCatalog:
    """Used only by the core's loop. `open` is called in a thread, and raises EngineError or OSError."""

    def __init__(self, resident: ResidentAdapters, open: Open, clock: Callable[[], float]) -> None:
        self._resident = resident
        self._open = open
        self._clock = clock
        self._now = _Opened(AdapterList(), {}, {})
        self._wanted: AdapterList | None = None  # the list that is being opened
        self._tried_at = 0.0
        self._thread = ThreadPoolExecutor(1, "adapter-catalog")
        self._done: Mailbox[_Opened] = Mailbox()

    def begin(self, wanted: AdapterList) -> None:
        """Opens and offers a list's adapters; used for the start."""
        self._take(self._open_all(wanted, {}))

    def follow(self, wanted: AdapterList) -> None:
        """Starts to open a list's adapters, which are offered afterwards."""
        if wanted.id != (self._wanted or self._now.wanted).id:
            self._start(wanted)

    def retry(self) -> None:
        """Tries again to open failed adapters, every `RETRY` seconds."""
        if self._now.problems and self._wanted is None and self._clock() - self._tried_at >= RETRY:
            self._start(self._now.wanted)

    def take_done(self) -> AdapterOffer | None:
        """The offer, if it has changed since the last call."""
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
        """The current offer, for gateways and `/state`."""
        resident, now = self._resident, self._now
        return AdapterOffer(now.wanted.id, dict(resident.offered), resident.former, dict(now.problems))

    def fileno(self) -> int:
        """A descriptor that is readable when a list has been opened."""
        return self._done.fileno()

    def _start(self, wanted: AdapterList) -> None:
        self._wanted, self._tried_at = wanted, self._clock()
        known = self._now.adapters
        self._thread.submit(lambda: self._done.put(self._open_all(wanted, known)))

    def _open_all(self, wanted: AdapterList, known: Mapping[AdapterEntry, OfferedAdapter]) -> _Opened:
        """Opens all entries, except known ones."""
        adapters, problems = {}, {}
        for entry in wanted.entries:
            try:
                adapters[entry] = known[entry] if entry in known else self._open(entry)
            except (EngineError, OSError) as error:
                problems[entry.name] = str(error)
            except Exception as error:  # invalid files must not affect other adapters
                _log.exception("an adapter cannot be opened")
                problems[entry.name] = f"{entry.path} cannot be opened: {error!r}"
        return _Opened(wanted, adapters, problems)

    def _take(self, opened: _Opened) -> None:
        """Offers opened adapters; a failed one leaves the earlier adapter of its name in place."""
        stay = {e.name: (e, each) for e, each in self._now.adapters.items() if e.name in opened.problems}
        self._resident.offer([*opened.adapters.values(), *(each for _, each in stay.values())])
        adapters = {**dict(stay.values()), **opened.adapters}
        self._now, self._tried_at = opened._replace(adapters=adapters), self._clock()
