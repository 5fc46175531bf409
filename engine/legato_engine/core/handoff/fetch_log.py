"""Records fetches of cached blocks: the running ones, their results, and the reasons of failures."""

from collections import Counter
from collections.abc import Callable, Set

from legato_engine.core.frames import FetchFailure
from legato_engine.core.reporting.phases import PhaseLog
from legato_engine.scheduler.handoff.transfers import IncomingTransfer
from legato_engine.transfer.session.events import Arrived, Cause

_FAILURE_OF: dict[Cause, FetchFailure] = {"cancelled": "late", "refused": "missing", "corrupt": "corrupt"}


class FetchLog:
    """Fetches by room. A request that waits for one begins once it is no longer `running`."""

    def __init__(self, phases: PhaseLog, clock: Callable[[], float]) -> None:
        self._phases = phases
        self._clock = clock
        self._began: dict[int, float] = {}
        self._ended = False
        self.completed = 0
        self.blocks = 0
        self.bytes = 0
        self.seconds = 0.0  # total of completed ones
        self.failures = Counter[FetchFailure]()

    @property
    def rooms(self) -> Set[int]:
        """Rooms of the running fetches."""
        return self._began.keys()

    def running(self, room: int) -> bool:
        return room in self._began

    def take_ended(self) -> bool:
        """True if a fetch has ended since the last call."""
        ended, self._ended = self._ended, False
        return ended

    def begin(self, transfer: IncomingTransfer) -> None:
        """A fetch begins: its blocks are granted next."""
        self._began[_room(transfer)] = self._clock()

    def complete(self, transfer: IncomingTransfer, event: Arrived) -> None:
        """The blocks, or the leading ones that the source still had, are now cached here."""
        began, now = self._end(transfer)
        self.completed += 1
        self.blocks += event.blocks
        self.bytes += event.bytes
        self.seconds += now - began
        details: dict[str, str | int] = {
            "source": event.source,
            "bytes": event.bytes,
            "blocks": event.blocks,
            "cached_blocks": event.cached,
        }
        self._phases.add_fetch(transfer.request.trace, began, now, details)

    def abort(self, transfer: IncomingTransfer, cause: Cause) -> None:
        """The session ended early. Ignored if the fetch has failed before."""
        self.fail(transfer, _FAILURE_OF.get(cause, "lost"))

    def fail(self, transfer: IncomingTransfer, failure: FetchFailure) -> None:
        """The fetch failed. Ignored if it has failed before."""
        if self.running(_room(transfer)):
            began, now = self._end(transfer)
            self.failures[failure] += 1
            self._phases.add_fetch(transfer.request.trace, began, now, {"source": transfer.source.worker}, failure)

    def drop(self, transfer: IncomingTransfer) -> None:
        """The fetch is given up with its request, which is not a failure."""
        self._end(transfer)

    def refuse(self) -> None:
        """A fetch did not begin because there was no room for its blocks."""
        self.failures["no_room"] += 1

    def _end(self, transfer: IncomingTransfer) -> tuple[float, float]:
        self._ended = True
        return self._began.pop(_room(transfer)), self._clock()


def _room(transfer: IncomingTransfer) -> int:
    assert transfer.request.room is not None
    return transfer.request.room
