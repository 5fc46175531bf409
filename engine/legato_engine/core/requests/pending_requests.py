"""Requests that wait for their grammar, their adapter or cached blocks of another worker before they are scheduled."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from legato_protocol.wire.stream import Cancel, Decode, Generate, Pause, Prefill


@dataclass(slots=True)
class PendingRequest:
    """A frame as it was received. Its deadline counts from `arrival`, in the caller's monotonic seconds."""

    gateway: int
    frame: Generate | Prefill | Decode
    arrival: float
    paused: bool = False
    fetched: bool = False  # its fetch of cached blocks was started, if it has one
    awaited: str = ""  # reason for its last wait

    @property
    def deadline(self) -> float:
        return self.arrival + self.frame.sequence.deadline


class PendingRequests:
    """Pending requests in the order of their arrival."""

    def __init__(self) -> None:
        self._requests: list[PendingRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(self._requests)

    def prefills(self) -> frozenset[tuple[int, int]]:
        """Rooms and attempts of prefills, which decode workers wait for."""
        return frozenset((each.frame.room, each.frame.attempt) for each in self if isinstance(each.frame, Prefill))

    def fetches(self) -> frozenset[int]:
        """Rooms of the fetches that they ask for."""
        sources = [each.frame.fetch for each in self if not isinstance(each.frame, Decode)]
        return frozenset(source.room for source in sources if source is not None)

    def add(self, request: PendingRequest) -> None:
        self._requests.append(request)

    def take_all(self) -> list[PendingRequest]:
        """Removes and returns all; the caller adds back the requests that must still wait."""
        taken, self._requests = self._requests, []
        return taken

    def take_expired(self, now: float) -> list[PendingRequest]:
        """Removes and returns the requests whose deadline has passed."""
        return self.take(lambda request: request.deadline <= now)

    def take(self, chosen: Callable[[PendingRequest], bool]) -> list[PendingRequest]:
        """Removes and returns the chosen requests."""
        taken = [request for request in self._requests if chosen(request)]
        if taken:
            self._requests = [request for request in self._requests if not chosen(request)]
        return taken

    def pause(self, gateway: int, frame: Pause) -> None:
        """Pauses or resumes a request."""
        for request in self._matches(gateway, frame.id):
            if request.frame.attempt == frame.attempt:
                request.paused = frame.on

    def drop(self, gateway: int, frame: Cancel) -> None:
        """Removes a cancelled request. Before its first token it is only cancelled with all of its choices."""
        for request in self._matches(gateway, frame.id):
            if request.frame.attempt <= frame.attempt and set(request.frame.sequence.choices) <= set(
                frame.choices or request.frame.sequence.choices
            ):
                self._requests.remove(request)

    def drop_gateway(self, gateway: int) -> None:
        """Removes the requests of a gateway that has disconnected."""
        self._requests = [request for request in self._requests if request.gateway != gateway]

    def _matches(self, gateway: int, id: str) -> list[PendingRequest]:
        return [request for request in self._requests if request.gateway == gateway and request.frame.id == id]
