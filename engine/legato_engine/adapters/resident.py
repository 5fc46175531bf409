"""The adapters in memory: a limited number, loaded in a thread when a request needs one.

The least recently used one makes room for another. If all are in use, the least recently used one is *closing*:
requests for it wait behind the one that needs room, so that none starves. A withdrawn adapter leaves memory with its
last sequence; sequences that started with it can load it again. No torch.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from legato_engine.errors import EngineError
from legato_engine.mailbox import Mailbox
from legato_engine.scheduler.batch import LoadedAdapter

MOST_WITHDRAWN = 64  # withdrawn adapters kept for sequences that started with them

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OfferedAdapter:
    """An adapter that fits the model. `load` reads it, in any thread, and raises EngineError or OSError."""

    name: str
    digest: str
    load: Callable[[], LoadedAdapter]


class ResidentAdapters:
    """Used only by the core's loop. `in_use` returns the digests of adapters of all sequences here.

    Memory of an evicted adapter is freed once the step in flight ends, if that computes with it.
    """

    def __init__(self, offered: Sequence[OfferedAdapter], most: int, in_use: Callable[[], Collection[str]]) -> None:
        self.loads = 0
        self._crowded = False  # a request waits until an adapter in memory is no longer in use
        self._offered: Mapping[str, OfferedAdapter] = {}
        self._withdrawn: OrderedDict[tuple[str, str], OfferedAdapter] = OrderedDict()  # by name and digest
        self._by_digest: dict[str, OfferedAdapter] = {}
        self._most = most
        self._in_use = in_use
        self._thread = ThreadPoolExecutor(1, "adapters")
        self._loaded: OrderedDict[str, LoadedAdapter] = OrderedDict()  # the least recently used first
        self._loading: set[str] = set()
        self._closing: set[str] = set()
        self._wanted: set[str] = set()  # requested without room for them
        self._faults: dict[str, str] = {}  # of failed loads, for the requests that wait for them
        self._done: Mailbox[tuple[str, LoadedAdapter | str]] = Mailbox()
        self.offer(offered)

    @property
    def offered(self) -> Mapping[str, str]:
        """Digests by name. A withdrawn adapter keeps its name until another has it, for requests that still use it."""
        kept = {each.name: each.digest for each in self._withdrawn.values()}
        return kept | {name: each.digest for name, each in self._offered.items()}

    @property
    def former(self) -> tuple[str, ...]:
        """Digests of withdrawn adapters whose names others have now."""
        named = set(self.offered.values())
        return tuple(dict.fromkeys(digest for _, digest in self._withdrawn if digest not in named))

    def offer(self, offered: Iterable[OfferedAdapter]) -> None:
        """Offers these from now on. Others are withdrawn."""
        before, self._offered = self._offered, {each.name: each for each in offered}
        self._withdrawn |= {(each.name, each.digest): each for each in before.values()}
        for each in self._offered.values():
            self._withdrawn.pop((each.name, each.digest), None)
        while len(self._withdrawn) > MOST_WITHDRAWN:
            self._withdrawn.popitem(last=False)
        self._by_digest = {each.digest: each for each in (*self._withdrawn.values(), *self._offered.values())}

    def release(self) -> None:
        """Evicts adapters that are neither offered nor in use."""
        offered = {each.digest for each in self._offered.values()}
        if withdrawn := [digest for digest in self._loaded if digest not in offered]:
            in_use = self._in_use()
            for digest in withdrawn:
                if digest not in in_use:
                    del self._loaded[digest]

    @property
    def loaded(self) -> tuple[str, ...]:
        """Digests of adapters that are in memory or being loaded."""
        return (*self._loaded, *self._loading)

    def ask(self, digest: str) -> LoadedAdapter | str | None:
        """Returns the adapter, or why it cannot be used; None while it is being loaded or waits for room."""
        if digest not in self._by_digest:
            return f"this worker has no adapter {digest[:64]!r}"
        if digest in self._faults:
            return self._faults[digest]
        if digest in self._loaded and digest not in self._closing:
            self._loaded.move_to_end(digest)
            return self._loaded[digest]
        if digest in self._loaded or digest in self._wanted:
            self._crowded = True
        elif digest not in self._loading:
            self._start(digest)
        return None

    @property
    def has_room(self) -> bool:
        """True if an adapter that lacked room, or was closing, may be loaded now."""
        return self._crowded and (self._free_slots > 0 or self._idle() is not None)

    def lacks_room(self, digest: str) -> bool:
        """True if the adapter is requested and has to wait until others are no longer in use."""
        return digest in self._wanted or (digest in self._closing and digest in self._loaded)

    def begin_round(self) -> None:
        """All waiting requests will ask again now, in the order of their arrival."""
        self._crowded = False
        self._closing.clear()
        self._wanted.clear()

    def end_round(self) -> None:
        """All waiting requests have asked: later ones retry failed loads."""
        self._faults.clear()

    def take_done(self) -> bool:
        """True if loads have ended since the last call."""
        done = self._done.take()
        for digest, outcome in done:
            self._loading.discard(digest)
            if isinstance(outcome, str):
                self._faults[digest] = outcome
            else:
                self._loaded[digest] = outcome
                self.loads += 1
        return bool(done)

    def fileno(self) -> int:
        """A descriptor that is readable when a load has ended."""
        return self._done.fileno()

    def check_integrity(self) -> None:
        """Raises AssertionError if there are more than allowed, or one twice."""
        assert len(self._loaded) + len(self._loading) <= self._most, "more adapters than there is room for"
        assert not self._loading & self._loaded.keys(), "an adapter is loaded twice"

    def _start(self, digest: str) -> None:
        if self._make_room():
            self._loading.add(digest)
            self._thread.submit(self._load, self._by_digest[digest])
        else:
            self._wanted.add(digest)
            self._crowded = True

    def _make_room(self) -> bool:
        """Evicts the least recently used idle adapter if necessary; if all are in use, closes one."""
        if self._free_slots > 0:
            return True
        if (idle := self._idle()) is not None:
            del self._loaded[idle]
            return True
        if (busy := next((digest for digest in self._loaded if digest not in self._closing), None)) is not None:
            self._closing.add(busy)
        return False

    @property
    def _free_slots(self) -> int:
        return self._most - len(self._loaded) - len(self._loading)

    def _idle(self) -> str | None:
        """The least recently used adapter that no sequence uses."""
        in_use = self._in_use()
        return next((digest for digest in self._loaded if digest not in in_use), None)

    def _load(self, offered: OfferedAdapter) -> None:
        try:
            outcome: LoadedAdapter | str = offered.load()
        except (EngineError, OSError) as error:
            outcome = f"adapter {offered.name}: {error}"
        except Exception as error:  # otherwise the request would wait until its deadline
            _log.exception("an adapter cannot be loaded")
            outcome = f"adapter {offered.name} cannot be loaded: {error!r}"
        self._done.put((offered.digest, outcome))
