"""The interface for events on workers' streams."""

from typing import Protocol

from legato_protocol.wire.kv_events import KVEvent
from legato_protocol.wire.stream import FromWorker, Hello


class StreamListener(Protocol):
    """Receives the events. All calls are synchronous and must not block."""

    def greeted(self, worker: str, hello: Hello) -> None:
        """The worker introduced itself: after connecting, and again with each new epoch."""

    def received(self, worker: str, frame: FromWorker) -> None:
        """Any other frame."""

    def silent(self, worker: str) -> None:
        """Its core was silent for `StreamLimits.silence` seconds: it may hang or recover."""

    def hung(self, worker: str) -> None:
        """Nothing at all came for `StreamLimits.hang` seconds, or longer if its steps take long."""

    def spoke(self, worker: str) -> None:
        """First frame of its core after `silent`; the frame itself follows."""

    def disconnected(self, worker: str, reason: str) -> None:
        """The stream broke or could not be opened. It reconnects by itself."""

    def kv_event(self, worker: str, event: KVEvent) -> bool:
        """An event of its prefix cache. Returns True if the worker must be asked for a new snapshot."""

    def kv_read_on(self, worker: str) -> bool:
        """Continues with its last event. Returns False if nothing was left to do."""

    def kv_lost(self, worker: str) -> None:
        """The event connection broke: earlier events no longer count."""

    def removed(self, worker: str) -> None:
        """Discovery has dropped it, and it is no longer connected."""

    def bad_frame(self, worker: str, reason: str) -> None:
        """It sent an invalid frame, and its connection was closed."""

    def unknown_kind(self, worker: str, reason: str) -> None:
        """It is of a later version, and sent a frame that this version skips."""

    def refused(self, worker: str, path: str) -> None:
        """It refused the token; another one is tried, if there is one."""
