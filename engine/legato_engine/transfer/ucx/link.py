"""The core's side of the link over UCX: mailboxes carry calls to the UCX thread and events back.

An error in the UCX thread that is not a peer's fault ends the thread, and every later call raises it: a dead link must
not look like an idle one.
"""

import threading
from collections.abc import Callable, Sequence
from itertools import count
from queue import SimpleQueue

from legato_engine.mailbox import Mailbox
from legato_engine.transfer.link import LinkError, LinkEvent, PutSpan
from legato_engine.transfer.ucx import sockets
from legato_engine.transfer.ucx.thread import UcxThread
from legato_engine.transfer.ucx.transports import TransportConfig, choose


def open(transport: str, host: str, address: int, length: int, ports: tuple[int, int] | None = None) -> "UcxLink":
    """Opens a link that peers reach at `host`, an address of this machine, and on no other interface.

    Anyone who reaches these ports can write into this process: UCX's protocol has no authentication, and `peers` and
    `session` verify only what comes after it. So the network has to keep strangers away from these ports.
    The link listens on two free ports from the first to the last of `ports` (any, unless given); several links may
    share the range. `length` bytes at `address` become writable for peers. Raises LinkError if UCX or the transport is
    not usable.
    """
    return UcxLink(choose(transport), host, address, length, ports)


class UcxLink:
    """Implements `link.Link`."""

    def __init__(
        self, config: TransportConfig, host: str, address: int, length: int, ports: tuple[int, int] | None
    ) -> None:
        own = sockets.numeric(host)
        self.transport = config.label
        self._numbers = count(1)
        self._calls: Mailbox[Callable[[], None]] = Mailbox()
        self._events: Mailbox[LinkEvent] = Mailbox()
        self._fault: Exception | None = None
        self._closed = False
        started: SimpleQueue[tuple[int, bytes] | Exception] = SimpleQueue()
        self._ucx = UcxThread(self._numbers, self._calls, self._events.put, self._broke)
        work = (config, own, address, length, ports, started)
        self._thread = threading.Thread(target=self._ucx.run, args=work, name="ucx", daemon=True)
        self._thread.start()
        result = started.get()
        if isinstance(result, Exception):
            self._release()
            raise LinkError(f"UCX could not be opened with {config.tls}: {result}") from result
        port, self.rkey = result
        self.address = f"{own}:{port}".encode()

    def connect(self, address: bytes) -> int:
        number = next(self._numbers)
        self._call(lambda: self._ucx.connect(number, address))
        return number

    def attach(self, connection: int, rkey: bytes) -> None:
        self._call(lambda: self._ucx.attach(connection, rkey))

    def send(self, connection: int, data: bytes) -> None:
        self._call(lambda: self._ucx.send(connection, data))

    def put(self, connection: int, spans: Sequence[PutSpan], tag: int) -> None:
        self._call(lambda: self._ucx.put(connection, spans, tag))

    def fence(self, connection: int) -> None:
        self._call(lambda: self._ucx.fence(connection))

    def poll(self) -> list[LinkEvent]:
        self._check()
        return [] if self._closed else self._events.take()

    def fileno(self) -> int:
        return self._events.fileno()

    def close(self) -> None:
        if self._closed:
            return
        self._calls.put(self._ucx.stop)
        self._thread.join()
        self._release()

    def _release(self) -> None:
        self._closed = True
        self._calls.close()
        self._events.close()

    def _call(self, call: Callable[[], None]) -> None:
        self._check()
        if not self._closed:
            self._calls.put(call)

    def _check(self) -> None:
        if self._fault is not None:
            raise LinkError(f"the UCX thread has ended: {self._fault!r}") from self._fault

    def _broke(self, fault: Exception) -> None:
        self._fault = fault
        self._events.wake()  # so that the core polls, which raises the fault
