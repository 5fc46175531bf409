"""The link over UCX. All of UCX runs in one thread of its own, which sleeps on UCX's event descriptor.

Calls travel to that thread, and events back, through queues that an eventfd announces. This is the only module that
imports ucxx, and `_open_worker` the only place that tells UCX its settings.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from queue import SimpleQueue

from legato_engine.transfer import sockets
from legato_engine.transfer.link import Connected, Fenced, LinkError, LinkEvent, PeerDown, PutFailed, Received, Span
from legato_engine.transfer.transports import Choice, choose
from legato_engine.transfer.ucp import Ucp
from legato_engine.transfer.ucx_endpoint import Endpoint

# A closed endpoint's lanes are given up in the progress calls after the close; the socket is closed in the first one.
_CLOSING_ROUNDS = 64
_ANY_PORTS = (0,)


def open(transport: str, host: str, address: int, length: int, ports: tuple[int, int] | None = None) -> "UcxLink":
    """A link that peers reach at `host`, an address of this machine, and on no other of its interfaces.

    Who reaches these ports can write into this process: UCX's protocol asks for no proof of anything, and what `peers`
    and `session` verify comes after it. So only a network that others cannot enter keeps them out.
    All that listens is on free ports from the first to the last of `ports` (any, unless given), which several links may
    share; each takes two.
    `length` bytes at `address` become writable for peers. Raises LinkError when UCX or the transport is not usable.
    """
    return UcxLink(choose(transport), host, address, length, ports)


class UcxLink:
    """See `link.Link`."""

    def __init__(self, choice: Choice, host: str, address: int, length: int, ports: tuple[int, int] | None) -> None:
        self.transport = choice.label
        self._numbers = count(1)
        self._calls: deque[Callable[[], None]] = deque()
        self._events: deque[LinkEvent] = deque()
        self._call_wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._event_wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False
        started: SimpleQueue[tuple[int, bytes] | Exception] = SimpleQueue()
        self._loop = _Loop(self._numbers, self._calls, self._call_wake, self._tell)
        own = sockets.numeric(host)
        work = (choice, own, address, length, ports, started)
        self._thread = threading.Thread(target=self._loop.run, args=work, name="ucx", daemon=True)
        self._thread.start()
        result = started.get()
        if isinstance(result, Exception):
            self._release()
            raise LinkError(f"UCX could not be opened with {choice.tls}: {result}") from result
        port, self.rkey = result
        self.address = f"{own}:{port}".encode()

    def connect(self, address: bytes) -> int:
        number = next(self._numbers)
        self._call(lambda: self._loop.connect(number, address))
        return number

    def attach(self, connection: int, rkey: bytes) -> None:
        self._call(lambda: self._loop.attach(connection, rkey))

    def send(self, connection: int, data: bytes) -> None:
        self._call(lambda: self._loop.send(connection, data))

    def put(self, connection: int, spans: Sequence[Span], tag: int) -> None:
        self._call(lambda: self._loop.put(connection, spans, tag))

    def fence(self, connection: int) -> None:
        self._call(lambda: self._loop.fence(connection))

    def poll(self) -> list[LinkEvent]:
        if self._closed:
            return []
        # Before the queue is read: what comes later wakes again. Events and wakes need not go together: the other
        # thread may stand still between the two.
        with suppress(BlockingIOError):
            os.eventfd_read(self._event_wake)
        return [self._events.popleft() for _ in range(len(self._events))]

    def fileno(self) -> int:
        return self._event_wake

    def close(self) -> None:
        if self._closed:
            return
        self._call(self._loop.stop)
        self._thread.join()
        self._release()

    def _release(self) -> None:
        self._closed = True
        os.close(self._call_wake)
        os.close(self._event_wake)

    def _call(self, call: Callable[[], None]) -> None:
        if not self._closed:
            self._calls.append(call)
            os.eventfd_write(self._call_wake, 1)

    def _tell(self, event: LinkEvent) -> None:
        self._events.append(event)
        os.eventfd_write(self._event_wake, 1)


class _Loop:
    """What runs in the UCX thread. Every method but `__init__` is called there."""

    def __init__(
        self, numbers: "count[int]", calls: deque[Callable[[], None]], wake: int, tell: Callable[[LinkEvent], None]
    ) -> None:
        self._numbers = numbers
        self._calls = calls
        self._wake = wake
        self._tell = tell
        self._endpoints: dict[int, Endpoint] = {}
        self._by_handle: dict[int, int] = {}
        self._failed: list[int] = []
        self._running = True

    def run(
        self,
        choice: Choice,
        host: str,
        address: int,
        length: int,
        ports: tuple[int, int] | None,
        started: "SimpleQueue[tuple[int, bytes] | Exception]",
    ) -> None:
        try:
            self._open_worker(choice, host, ports)
            self._memory = self._ucp.map_memory(self._context.handle, address, length)
            key = self._ucp.pack_key(self._context.handle, self._memory)
            port = self._listen(host, range(ports[0], ports[1] + 1) if ports else _ANY_PORTS)
        except (LinkError, self._error, ImportError, OSError) as error:
            started.put(error)
            return
        started.put((port, key))
        while self._running:
            self._run_calls()
            self._worker.progress()
            told = self._collect()
            if self._running and not (told or self._calls or self._failed) and self._worker.arm():
                self._sleeper.poll()
        self._shut()

    # calls

    def connect(self, number: int, address: bytes) -> None:
        try:
            handle = self._ucp.connect(self._worker.handle, sockets.packed(*sockets.split(address)))
        except (ValueError, LinkError) as error:
            self._tell(PeerDown(number, f"cannot connect to {address!r}: {error}"))
            return
        self._adopt(number, handle, accepted=False)
        self._tell(Connected(number))

    def attach(self, number: int, rkey: bytes) -> None:
        endpoint = self._endpoints.get(number)
        if endpoint is not None:
            try:
                endpoint.attach(rkey)
            except LinkError:
                self._failed.append(number)

    def send(self, number: int, data: bytes) -> None:
        endpoint = self._endpoints.get(number)
        if endpoint is not None:
            endpoint.send(data)

    def put(self, number: int, spans: Sequence[Span], tag: int) -> None:
        endpoint = self._endpoints.get(number)
        if endpoint is None or not endpoint.put(spans, tag):
            self._tell(PutFailed(number, tag, "no connection"))

    def fence(self, number: int) -> None:
        endpoint = self._endpoints.get(number)
        if endpoint is not None:
            self._close(endpoint)
            self._tell(Fenced(number))

    def stop(self) -> None:
        self._running = False

    # inside

    def _open_worker(self, choice: Choice, host: str, ports: tuple[int, int] | None) -> None:
        os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")  # ucxx sets some that UCX then complains about
        from ucxx._lib import libucxx

        self._error = libucxx.UCXError
        # Without MM_ERROR_HANDLING endpoints that notice a dead peer cannot use shared memory.
        config = {"TLS": choice.tls, "MM_ERROR_HANDLING": "y"}
        if choice.by_tcp:  # UCX listens for data at the first address of every device that it may use
            config["NET_DEVICES"] = sockets.interface(host)
            config["TCP_AF_PRIO"] = "inet6" if ":" in host else "inet"
        if ports:
            config["TCP_PORT_RANGE"] = f"{ports[0]}-{ports[1]}"
        features = (libucxx.Feature.AM, libucxx.Feature.RMA, libucxx.Feature.WAKEUP)
        self._ucp = Ucp()
        self._context = libucxx.UCXContext(config, features)
        self._worker = libucxx.UCXWorker(self._context)
        self._worker.init_blocking_progress_mode()
        self._ucp.receive_with(self._worker.handle, self._take)
        self._ucp.tell_failures(self._broke)
        self._sleeper = select.poll()
        self._sleeper.register(self._worker.epoll_file_descriptor, select.POLLIN)
        self._sleeper.register(self._wake, select.POLLIN)

    _error: type[Exception] = LinkError  # until ucxx is loaded

    def _listen(self, host: str, ports: Sequence[int]) -> int:
        for port in ports:
            try:
                self._listener, taken = self._ucp.listen(self._worker.handle, sockets.packed(host, port), self._accept)
            except LinkError as error:
                refusal = error
            else:
                return taken
        raise LinkError(f"no port from {ports[0]} to {ports[-1]} of {host} can be listened at: {refusal}")

    def _accept(self, request: int) -> None:
        number = next(self._numbers)
        self._adopt(number, self._ucp.accept(self._worker.handle, request), accepted=True)
        self._tell(Connected(number, accepted=True))

    def _take(self, handle: int, message: bytes) -> None:
        number = self._by_handle.get(handle)
        if number is not None:
            self._endpoints[number].take(message)

    def _broke(self, handle: int) -> None:
        number = self._by_handle.get(handle)
        if number is not None:
            self._endpoints[number].broke()
            self._failed.append(number)

    def _adopt(self, number: int, handle: int, accepted: bool) -> None:
        self._by_handle[handle] = number
        self._endpoints[number] = Endpoint(number, handle, self._ucp, accepted)

    def _run_calls(self) -> None:
        with suppress(BlockingIOError):  # nobody called
            os.eventfd_read(self._wake)
        while self._calls:
            self._calls.popleft()()

    def _collect(self) -> bool:
        """Tells what has ended since; whether there was anything."""
        told = False
        for endpoint in self._endpoints.values():
            try:
                endpoint.settle()
            except LinkError:
                self._failed.append(endpoint.number)
            for data in endpoint.received():
                told = True
                self._tell(Received(endpoint.number, data))
            for event in endpoint.puts_ended():
                told = True
                self._tell(event)
        while self._failed:
            number = self._failed.pop()
            if number in self._endpoints:
                told = True
                self._close(self._endpoints[number])
                self._tell(PeerDown(number, "the connection broke or the peer closed it"))
        return told

    def _close(self, endpoint: Endpoint) -> None:
        """After this nothing that the peer has written or will write over this endpoint can reach memory here."""
        del self._endpoints[endpoint.number]
        del self._by_handle[endpoint.handle]
        endpoint.close()
        for _ in range(_CLOSING_ROUNDS):
            self._worker.progress_once()
        while not endpoint.closed():
            self._worker.progress_once()
        for event in endpoint.puts_ended():
            self._tell(event)
        endpoint.release()

    def _shut(self) -> None:
        for endpoint in list(self._endpoints.values()):
            self._close(endpoint)
        self._ucp.unmap_memory(self._context.handle, self._memory)
        self._ucp.stop_listening(self._listener)
        self._worker.progress()
        self._worker = None
        self._context = None
