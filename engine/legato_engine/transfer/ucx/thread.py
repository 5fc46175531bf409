"""The thread that runs all of UCX: it sleeps on UCX's event descriptor and on the mailbox with calls.

Only this module imports ucxx, and only `_open_worker` sets UCX's options.
"""

import logging
import math
import os
import select
import time
from collections.abc import Callable, Sequence
from itertools import count
from queue import SimpleQueue
from typing import ParamSpec

from legato_engine.mailbox import Mailbox
from legato_engine.transfer.link import Connected, Fenced, LinkError, LinkEvent, PeerDown, PutFailed, PutSpan, Received
from legato_engine.transfer.ucx import sockets
from legato_engine.transfer.ucx.endpoint import UcxEndpoint
from legato_engine.transfer.ucx.strangers import Strangers
from legato_engine.transfer.ucx.transports import TransportConfig
from legato_engine.transfer.ucx.ucp import Ucp

# The progress calls after a close release the endpoint's lanes; the first one closes the socket.
_CLOSING_ROUNDS = 64
CLOSING_PATIENCE = 30.0  # seconds; a forced close ends in milliseconds
_ANY_PORTS = (0,)
_P = ParamSpec("_P")
_log = logging.getLogger(__name__)


class UcxThread:
    """Every method except `__init__` is called in the thread that runs `run`."""

    def __init__(
        self,
        numbers: "count[int]",
        calls: Mailbox[Callable[[], None]],
        report: Callable[[LinkEvent], None],
        broke: Callable[[Exception], None],
    ) -> None:
        self._numbers = numbers
        self._calls = calls
        self._report = report
        self._report_fault = broke
        self._fault: Exception | None = None
        self._endpoints: dict[int, UcxEndpoint] = {}
        self._by_handle: dict[int, int] = {}
        self._failed: list[int] = []
        self._running = True

    def run(
        self,
        config: TransportConfig,
        host: str,
        address: int,
        length: int,
        ports: tuple[int, int] | None,
        started: "SimpleQueue[tuple[int, bytes] | Exception]",
    ) -> None:
        try:
            self._open_worker(config, host, ports)
            self._memory = self._ucp.map_memory(self._context.handle, address, length)
            key = self._ucp.pack_key(self._context.handle, self._memory)
            port = self._listen(host, range(ports[0], ports[1] + 1) if ports else _ANY_PORTS)
            self._strangers = Strangers(port)
        except Exception as error:  # `open` waits for it and raises it
            started.put(error)
            return
        started.put((port, key))
        try:
            while self._running:
                self._run_once()
            self._shut()
        except Exception as error:  # the next call or poll raises it
            self._report_fault(error)

    def _run_once(self) -> None:
        for call in self._calls.take():
            call()
        self._worker.progress()
        if self._fault is not None:
            raise self._fault
        reported = self._collect()
        if self._strangers.wait <= 0:  # after progress, which makes endpoints of connections that sent UCX's bytes
            self._strangers.check({each.client for each in self._endpoints.values()})
        elif self._running and not (reported or self._failed) and self._worker.arm():
            self._sleeper.poll(math.ceil(1000 * self._strangers.wait))

    # calls

    def connect(self, number: int, address: bytes) -> None:
        try:
            handle = self._ucp.connect(self._worker.handle, sockets.pack(*sockets.split(address)))
        except (ValueError, LinkError) as error:
            self._report(PeerDown(number, f"cannot connect to {address!r}: {error}"))
            return
        self._adopt(number, handle, None)
        self._report(Connected(number))

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

    def put(self, number: int, spans: Sequence[PutSpan], tag: int) -> None:
        endpoint = self._endpoints.get(number)
        if endpoint is None or not endpoint.put(spans, tag):
            self._report(PutFailed(number, tag, "no connection"))

    def fence(self, number: int) -> None:
        endpoint = self._endpoints.get(number)
        if endpoint is not None:
            self._close(endpoint)
            self._report(Fenced(number))

    def stop(self) -> None:
        self._running = False

    # internals

    def _open_worker(self, config: TransportConfig, host: str, ports: tuple[int, int] | None) -> None:
        os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")  # ucxx sets some that UCX warns about
        from ucxx._lib import libucxx

        # Without MM_ERROR_HANDLING endpoints that notice a dead peer cannot use shared memory.
        options = {"TLS": config.tls, "MM_ERROR_HANDLING": "y"}
        if config.by_tcp:  # else UCX would listen for data at the first address of every device
            options["NET_DEVICES"] = sockets.interface(host)
            options["TCP_AF_PRIO"] = "inet6" if ":" in host else "inet"
        if ports:
            options["TCP_PORT_RANGE"] = f"{ports[0]}-{ports[1]}"
        features = (libucxx.Feature.AM, libucxx.Feature.RMA, libucxx.Feature.WAKEUP)
        self._ucp = Ucp(config.on_device)
        self._context = libucxx.UCXContext(options, features)
        self._worker = libucxx.UCXWorker(self._context)
        self._worker.init_blocking_progress_mode()
        self._ucp.on_message(self._worker.handle, self._guarded(self._take))
        self._ucp.on_failure(self._guarded(self._broke))
        self._sleeper = select.poll()
        self._sleeper.register(self._worker.epoll_file_descriptor, select.POLLIN)
        self._sleeper.register(self._calls, select.POLLIN)

    def _listen(self, host: str, ports: Sequence[int]) -> int:
        worker, accept = self._worker.handle, self._guarded(self._accept)
        for port in ports:
            try:
                self._listener, taken = self._ucp.listen(worker, sockets.pack(host, port), accept)
            except LinkError as error:
                refusal = error
            else:
                return taken
        raise LinkError(f"cannot listen on any port from {ports[0]} to {ports[-1]} of {host}: {refusal}")

    def _accept(self, request: int) -> None:
        try:
            client = sockets.unpack(self._ucp.client(request))
            handle = self._ucp.accept(self._worker.handle, request)
        except LinkError as error:  # the client may have disconnected already
            _log.warning("could not accept a peer: %s", error)
            return
        number = next(self._numbers)
        self._adopt(number, handle, client)
        self._report(Connected(number, accepted=True))

    def _take(self, handle: int, message: bytes) -> None:
        number = self._by_handle.get(handle)
        if number is None:
            return
        try:
            self._endpoints[number].take(message)
        except LinkError:
            self._failed.append(number)

    def _broke(self, handle: int) -> None:
        number = self._by_handle.get(handle)
        if number is not None:
            self._endpoints[number].mark_failed()
            self._failed.append(number)

    def _adopt(self, number: int, handle: int, client: tuple[str, int] | None) -> None:
        self._by_handle[handle] = number
        self._endpoints[number] = UcxEndpoint(number, handle, self._ucp, client)

    def _guarded(self, act: Callable[_P, None]) -> Callable[_P, None]:
        """Wraps a callback of UCX, whose progress call does not propagate exceptions; `_run_once` raises them."""

        def guarded(*arguments: _P.args, **named: _P.kwargs) -> None:
            try:
                act(*arguments, **named)
            except Exception as error:
                self._fault = self._fault or error

        return guarded

    def _collect(self) -> bool:
        """Reports received messages, ended puts and lost connections; False if there are none."""
        reported = False
        for endpoint in self._endpoints.values():
            try:
                endpoint.settle()
            except LinkError:
                self._failed.append(endpoint.number)
            for data in endpoint.take_ordered():
                reported = True
                self._report(Received(endpoint.number, data))
            for event in endpoint.take_ended_puts():
                reported = True
                self._report(event)
        while self._failed:
            number = self._failed.pop()
            if number in self._endpoints:
                reported = True
                self._close(self._endpoints[number])
                self._report(PeerDown(number, "the connection broke or the peer closed it"))
        return reported

    def _close(self, endpoint: UcxEndpoint) -> None:
        """Closes an endpoint. Afterwards no write of the peer over this endpoint can reach memory here.

        Raises LinkError, which ends the thread and the core with it, if the endpoint does not close.
        """
        del self._endpoints[endpoint.number]
        del self._by_handle[endpoint.handle]
        endpoint.close()
        for _ in range(_CLOSING_ROUNDS):
            self._worker.progress_once()
        give_up = time.monotonic() + CLOSING_PATIENCE
        while not endpoint.is_closed():
            self._worker.progress_once()
            if time.monotonic() > give_up:  # the peer's writes could still land: only the end of this process is safe
                raise LinkError(f"endpoint {endpoint.number} did not close within {CLOSING_PATIENCE:g} seconds")
        for event in endpoint.take_ended_puts():
            self._report(event)
        endpoint.release()

    def _shut(self) -> None:
        for endpoint in list(self._endpoints.values()):
            self._close(endpoint)
        self._ucp.unmap_memory(self._context.handle, self._memory)
        self._ucp.stop_listening(self._listener)
        self._worker.progress()
        self._worker = None
        self._context = None
