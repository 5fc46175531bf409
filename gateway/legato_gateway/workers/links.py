"""One `WorkerStream` per discovered worker; sends frames to workers by name."""

import asyncio
from collections.abc import Callable
from functools import partial

from legato_gateway.discovery.addresses import Discovery, WorkerAddress
from legato_gateway.workers.connecting import Connector
from legato_gateway.workers.fleet import Fleet
from legato_gateway.workers.silence import StreamLimits
from legato_gateway.workers.stream_listener import StreamListener
from legato_gateway.workers.worker_stream import WorkerStream
from legato_protocol.security.followed_tokens import ServiceTokens
from legato_protocol.security.tls_files import InternalTLS
from legato_protocol.wire.stream import ToWorker

OpenStream = Callable[[WorkerAddress, StreamListener], WorkerStream]


def opener(
    gateway: str, tokens: ServiceTokens, limits: StreamLimits, tls: InternalTLS | None = None, strict: bool = False
) -> OpenStream:
    """Returns a function that creates streams which present this gateway and the service's token.

    Discovery says whether a worker has TLS, so that streams from before and after a change are consistent and nobody on
    the network decides it. With `strict`, workers without TLS are not connected.
    """

    def open_stream(address: WorkerAddress, listener: StreamListener) -> WorkerStream:
        secured = address.tls or strict
        refused = partial(listener.refused, address.worker)
        connector = Connector(address.address, tokens, limits.open_timeout, refused, secured, tls if secured else None)
        return WorkerStream(address, connector, listener, gateway, limits)

    return open_stream


class Links:
    """Follows discovery. A worker that was dropped keeps its connection while that lasts, but gets nothing new."""

    def __init__(self, fleet: Fleet, open_stream: OpenStream) -> None:
        self._fleet = fleet
        self._open = open_stream
        self._streams: dict[str, WorkerStream] = {}
        self._fault: asyncio.Future[None]
        self._closing: set[asyncio.Task[None]] = set()

    def send(self, worker: str, frame: ToWorker) -> bool:
        """Queues a frame. Returns False if the worker is not connected."""
        stream = self._streams.get(worker)
        return stream is not None and stream.send(frame)

    def request_snapshot(self, worker: str) -> None:
        """Requests a snapshot of its prefix cache."""
        stream = self._streams.get(worker)
        if stream is not None:
            stream.request_snapshot()

    async def follow(self, discovery: Discovery, listener: StreamListener) -> None:
        """Keeps streams to all listed workers until cancelled. Raises faults of this gateway's code."""
        self._fault = asyncio.get_running_loop().create_future()
        watching = asyncio.create_task(self._watch(discovery, listener))
        try:
            await asyncio.wait({watching, self._fault}, return_when=asyncio.FIRST_COMPLETED)
            await (self._fault if self._fault.done() else watching)
        finally:
            watching.cancel()
            closing = [stream.close() for stream in self._streams.values()]
            await asyncio.gather(watching, *closing, *self._closing, return_exceptions=True)

    def check_integrity(self) -> None:
        """Raises AssertionError unless exactly the known workers have a stream each."""
        assert self._streams.keys() == {worker.name for worker in self._fleet}, "streams and workers differ"

    async def _watch(self, discovery: Discovery, listener: StreamListener) -> None:
        async for workers in discovery.watch():
            self._apply(workers, listener)
        await asyncio.Event().wait()

    def _faulty(self, fault: BaseException) -> None:
        if not self._fault.done():
            self._fault.set_exception(fault)

    def _apply(self, workers: tuple[WorkerAddress, ...], listener: StreamListener) -> None:
        listed = {address.worker: address for address in workers}
        for name, stream in list(self._streams.items()):
            if name not in listed:
                self._retire(stream, listener)
            elif stream.address != listed[name].address:
                listener.disconnected(name, "it has another address now")
                self._remove(stream, listener)
        for name, address in listed.items():
            self._list(name, address, listener)
        self._fleet.listed()

    def _list(self, name: str, address: WorkerAddress, listener: StreamListener) -> None:
        known = self._streams.get(name)
        if known is not None:
            known.retired = False
            self._fleet.list(name, True)
            return
        self._fleet.add(name, address.address)
        stream = self._streams[name] = self._open(address, listener)
        stream.start(self._faulty, lambda ended: self._remove(ended, listener))

    def _retire(self, stream: WorkerStream, listener: StreamListener) -> None:
        if stream.retired:
            return
        stream.retired = True
        if stream.connected:
            self._fleet.list(stream.worker, False)
        else:
            self._remove(stream, listener)

    def _remove(self, stream: WorkerStream, listener: StreamListener) -> None:
        """Removes a stream, the only place that does: closes both connections and notifies the listener."""
        stream.stop()
        del self._streams[stream.worker]
        listener.removed(stream.worker)
        task = asyncio.create_task(stream.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
