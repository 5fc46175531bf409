"""Requests that wait until their grammar is compiled or their adapter is loaded, before the scheduler knows of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from legato_protocol.stream import Cancel, Decode, Generate, Pause, Prefill


@dataclass(slots=True)
class HeldRequest:
    """A frame as it came. Its deadline counts from `arrival`, in the caller's monotonic seconds."""

    gateway: int
    frame: Generate | Prefill | Decode
    arrival: float
    paused: bool = False

    @property
    def deadline(self) -> float:
        return self.arrival + self.frame.sequence.deadline


class HeldRequests:
    """In the order of their arrival."""

    def __init__(self) -> None:
        self._held: list[HeldRequest] = []

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldRequest]:
        return iter(self._held)

    def prefills(self) -> frozenset[tuple[int, int]]:
        """Rooms and attempts of those that other workers wait for."""
        return frozenset((held.frame.room, held.frame.attempt) for held in self if isinstance(held.frame, Prefill))

    def add(self, held: HeldRequest) -> None:
        self._held.append(held)

    def take_all(self) -> list[HeldRequest]:
        """All of them; those that still have to wait are added again."""
        taken, self._held = self._held, []
        return taken

    def take_expired(self, now: float) -> list[HeldRequest]:
        """Those whose deadline is past."""
        return self.take(lambda held: held.deadline <= now)

    def take(self, meant: Callable[[HeldRequest], bool]) -> list[HeldRequest]:
        """Those that are meant; they are held no more."""
        taken = [held for held in self._held if meant(held)]
        if taken:
            self._held = [held for held in self._held if not meant(held)]
        return taken

    def pause(self, gateway: int, frame: Pause) -> None:
        """As the frame says."""
        for held in self._of(gateway, frame.id):
            if held.frame.attempt == frame.attempt:
                held.paused = frame.on

    def drop(self, gateway: int, frame: Cancel) -> None:
        """A sequence is not cancelled for some of its choices before it has a token."""
        for held in self._of(gateway, frame.id):
            if held.frame.attempt <= frame.attempt and set(held.frame.sequence.choices) <= set(
                frame.choices or held.frame.sequence.choices
            ):
                self._held.remove(held)

    def drop_gateway(self, gateway: int) -> None:
        """Its requests end with it."""
        self._held = [held for held in self._held if held.gateway != gateway]

    def _of(self, gateway: int, id: str) -> list[HeldRequest]:
        return [held for held in self._held if held.gateway == gateway and held.frame.id == id]
