"""What is told of a worker's streams, and of what comes on them."""

from typing import Protocol

from legato_protocol.kv_events import KVEvent
from legato_protocol.stream import FromWorker, Hello


class StreamListener(Protocol):
    """Who wants to know. All calls are synchronous and must not block."""

    def greeted(self, worker: str, hello: Hello) -> None:
        """The worker said who it is: after connecting, and again with a new epoch."""

    def received(self, worker: str, frame: FromWorker) -> None:
        """Any other frame."""

    def silent(self, worker: str) -> None:
        """Its core said nothing for `SilenceLimits.silence` seconds: it may hang, or go on."""

    def hung(self, worker: str) -> None:
        """Nothing at all came for `SilenceLimits.hang` seconds, and longer where its steps take long."""

    def spoke(self, worker: str) -> None:
        """The first word of its core after `silent`; the frame itself follows."""

    def disconnected(self, worker: str, reason: str) -> None:
        """The stream broke or could not be opened. Reconnecting goes on by itself."""

    def kv_event(self, worker: str, event: KVEvent) -> bool:
        """An event of its prefix cache. True asks the worker for a new snapshot."""

    def kv_read_on(self, worker: str) -> bool:
        """Does more of the work that its last event makes. False: there was none left."""

    def kv_lost(self, worker: str) -> None:
        """The event connection broke: what it told before is worth nothing now."""

    def removed(self, worker: str) -> None:
        """It is listed no more and nothing connects this gateway to it."""

    def bad_frame(self, worker: str, reason: str) -> None:
        """It sent something that is no frame; its connection was closed for that."""

    def unknown_kind(self, worker: str, reason: str) -> None:
        """It is of a later version, and sent a frame that this one skips."""

    def refused(self, worker: str, path: str) -> None:
        """It refused the token that was shown to it; another one is tried, if there is one."""
