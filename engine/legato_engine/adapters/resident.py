"""The adapters in memory: at most so many, loaded in a thread of their own when a request asks for one.

The least recently used one makes room for another. Where all of them are in use, the least recently used one is
*closing*: requests for it wait behind the one that asked, so that none starves. One that is offered no more leaves
memory with its last sequence, and can be had again by sequences that began with it. No torch in here.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from legato_engine.errors import EngineError
from legato_engine.mailbox import Mailbox
from legato_engine.scheduler.batch import Adapter

MOST_WITHDRAWN = 64  # that are still there for sequences that began with them

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OfferedAdapter:
    """An adapter that fits the model. `load` reads it, in any thread, and raises EngineError or OSError."""

    name: str
    digest: str
    load: Callable[[], Adapter]


class ResidentAdapters:
    """Used by the core's loop alone. `in_use` are digests of adapters that sequences here compute with, or will.

    Memory of an adapter that was pushed out is free once the step in flight ends, if that computes with it."""

    def __init__(self, offered: Sequence[OfferedAdapter], most: int, in_use: Callable[[], Collection[str]]) -> None:
        self.loads = 0
        self._crowded = False  # a request waits until one of those in memory is in use no more
        self._offered: Mapping[str, OfferedAdapter] = {}
        self._withdrawn: OrderedDict[tuple[str, str], OfferedAdapter] = OrderedDict()  # by name and digest
        self._by_digest: dict[str, OfferedAdapter] = {}
        self._most = most
        self._in_use = in_use
        self._thread = ThreadPoolExecutor(1, "adapters")
        self._loaded: OrderedDict[str, Adapter] = OrderedDict()  # the least recently used first
        self._under_way: set[str] = set()
        self._closing: set[str] = set()
        self._wanted: set[str] = set()  # without room for them
        self._faults: dict[str, str] = {}  # of those that could not be loaded, for who waits for them
        self._done: Mailbox[tuple[str, Adapter | str]] = Mailbox()
        self.offer(offered)

    @property
    def offered(self) -> Mapping[str, str]:
        """Digests by name. One that was withdrawn keeps its name while no other has it: whoever still asks gets it."""
        kept = {each.name: each.digest for each in self._withdrawn.values()}
        return kept | {name: each.digest for name, each in self._offered.items()}

    @property
    def former(self) -> tuple[str, ...]:
        """Digests of those withdrawn whose names others have."""
        named = set(self.offered.values())
        return tuple(dict.fromkeys(digest for _, digest in self._withdrawn if digest not in named))

    def offer(self, offered: Iterable[OfferedAdapter]) -> None:
        """These from now on. Others are withdrawn."""
        before, self._offered = self._offered, {each.name: each for each in offered}
        self._withdrawn |= {(each.name, each.digest): each for each in before.values()}
        for each in self._offered.values():
            self._withdrawn.pop((each.name, each.digest), None)
        while len(self._withdrawn) > MOST_WITHDRAWN:
            self._withdrawn.popitem(last=False)
        self._by_digest = {each.digest: each for each in (*self._withdrawn.values(), *self._offered.values())}

    def release(self) -> None:
        """Takes what nothing computes with and nobody is offered out of memory."""
        offered = {each.digest for each in self._offered.values()}
        if gone := [digest for digest in self._loaded if digest not in offered]:
            in_use = self._in_use()
            for digest in gone:
                if digest not in in_use:
                    del self._loaded[digest]

    @property
    def loaded(self) -> tuple[str, ...]:
        """Digests of those in memory, or on their way there."""
        return (*self._loaded, *self._under_way)

    def ask(self, digest: str) -> Adapter | str | None:
        """The adapter, or why there is none; None while it is loaded, or has to wait for room."""
        if digest not in self._by_digest:
            return f"this worker has no adapter {digest[:64]!r}"
        if digest in self._faults:
            return self._faults[digest]
        if digest in self._loaded and digest not in self._closing:
            self._loaded.move_to_end(digest)
            return self._loaded[digest]
        if digest in self._loaded or digest in self._wanted:
            self._crowded = True
        elif digest not in self._under_way:
            self._start(digest)
        return None

    @property
    def has_room(self) -> bool:
        """Whether one that was asked for without room, or while it was closing, may come now."""
        return self._crowded and (self._places_left > 0 or self._idle() is not None)

    def lacks_room(self, digest: str) -> bool:
        """Whether it was asked for, and others have to be in use no more before it is there."""
        return digest in self._wanted or (digest in self._closing and digest in self._loaded)

    def begin_round(self) -> None:
        """All that wait ask again now, in the order of their arrival."""
        self._crowded = False
        self._closing.clear()
        self._wanted.clear()

    def end_round(self) -> None:
        """All that waited have asked: who comes now has a failed load tried again."""
        self._faults.clear()

    def take_done(self) -> bool:
        """Whether loads have ended since the last time."""
        done = self._done.take()
        for digest, found in done:
            self._under_way.discard(digest)
            if isinstance(found, str):
                self._faults[digest] = found
            else:
                self._loaded[digest] = found
                self.loads += 1
        return bool(done)

    def fileno(self) -> int:
        """Readable when a load has ended."""
        return self._done.fileno()

    def check_integrity(self) -> None:
        """Raises AssertionError unless there are no more than allowed."""
        assert len(self._loaded) + len(self._under_way) <= self._most, "more adapters than there is room for"
        assert not self._under_way & self._loaded.keys(), "an adapter is loaded twice"

    def _start(self, digest: str) -> None:
        if self._make_room():
            self._under_way.add(digest)
            self._thread.submit(self._load, self._by_digest[digest])
        else:
            self._wanted.add(digest)
            self._crowded = True

    def _make_room(self) -> bool:
        """Pushes out the least recently used one, if need be; without one to push out, closes one."""
        if self._places_left > 0:
            return True
        if (idle := self._idle()) is not None:
            del self._loaded[idle]
            return True
        if (busy := next((digest for digest in self._loaded if digest not in self._closing), None)) is not None:
            self._closing.add(busy)
        return False

    @property
    def _places_left(self) -> int:
        return self._most - len(self._loaded) - len(self._under_way)

    def _idle(self) -> str | None:
        """The least recently used one that nothing here computes with."""
        in_use = self._in_use()
        return next((digest for digest in self._loaded if digest not in in_use), None)

    def _load(self, offered: OfferedAdapter) -> None:
        try:
            found: Adapter | str = offered.load()
        except (EngineError, OSError) as error:
            found = f"adapter {offered.name}: {error}"
        except Exception as error:  # a request whose adapter is never there would wait until its deadline
            _log.exception("an adapter cannot be loaded")
            found = f"adapter {offered.name} cannot be loaded: {error!r}"
        self._done.put((offered.digest, found))
