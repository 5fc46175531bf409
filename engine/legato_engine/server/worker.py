"""The server process from start to end: ports, model, core, signals, drain."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legato_engine.errors import EngineError
from legato_engine.gpus.interface import GpuMonitor
from legato_engine.gpus.watch import GpuWatch
from legato_engine.metrics import WorkerMetrics
from legato_engine.server import apps, listen
from legato_engine.server.connections import GatewayConnections
from legato_engine.server.core_link import Launch
from legato_engine.server.hub import Hub
from legato_engine.server.phase_spans import PhaseSpans
from legato_engine.server.supervisor import Supervisor
from legato_engine.server.token_auth import TokenAuth
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.connections.certificates import HandoffCertificates
from legato_protocol import names
from legato_protocol.model_files.adapter_file import AdapterFile
from legato_protocol.process.followed_files import FollowedFiles, InvalidFile
from legato_protocol.security.followed_tokens import RefusalLog, ServiceTokens
from legato_protocol.security.tls_files import InternalTLS
from legato_protocol.settings.flags import SettingsError

if TYPE_CHECKING:
    import uvicorn

    from legato_telemetry.spans import Tracing

Resolve = Callable[[str, Callable[[str], None]], Path]
Log = Callable[[str, str], None]

_POLL = 0.02  # seconds between checks for the end of a drain
_LAST_FRAMES = 0.1  # seconds in which the last frames are sent


class WorkerServer:
    """Serves until it is stopped and drained."""

    def __init__(self, settings: WorkerSettings, resolve: Resolve, launch: Launch, log: Log) -> None:
        self._settings = settings
        self._resolve = resolve
        self._log = log
        self._flushing = False
        self._tracing = _tracing(settings, log)
        spans = PhaseSpans(self._tracing, settings.name, settings.role) if self._tracing is not None else None
        self._gpus = GpuWatch(_open_gpus, partial(log, "WARNING"))
        self.hub = Hub(WorkerMetrics(self._gpus, settings.speculation), self._wake, spans)
        self._tokens = ServiceTokens(settings.token, Path(settings.token_folder) if settings.token_folder else None)
        self._tls = _internal_tls(settings.internal_tls_folder)
        self._handoff_tls = _handoff_tls(settings)
        self._adapters = AdapterFile(Path(settings.adapters_file)) if settings.adapters_file else None
        self._refusals = RefusalLog()
        self._supervisor = Supervisor(settings, self.hub, launch, log)
        self._stopping = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> None:
        """Serves until stopped. Raises EngineError if the start fails permanently."""
        settings = self._settings
        servers = self._servers()
        serving = [asyncio.create_task(server.serve(sockets=[listener])) for server, listener in servers.values()]
        following = [asyncio.create_task(self._tokens.follow(self._trust, partial(self._log, "WARNING")))]
        following += [asyncio.create_task(files.follow(self._log_level)) for files in self._tls_files]
        if self._adapters is not None:
            self._offer()
            following.append(asyncio.create_task(self._adapters.follow_changes(self._log_level, self._offer)))
        if settings.announce:
            ports = {name: listener.getsockname()[1] for name, (_, listener) in servers.items()}
            listen.announce(settings.announce, ports)
        try:
            await self._until_stopped()
        finally:
            self._gpus.close()
            for task in following:
                task.cancel()
            for server, _ in servers.values():
                server.should_exit = True
            await asyncio.gather(*serving)
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)

    def _servers(self) -> "dict[str, tuple[uvicorn.Server, socket.socket]]":
        """Servers and their sockets by announced name. Raises SettingsError for a port in use."""
        settings, refused = self._settings, self.hub.metrics.count_refusal
        connections = GatewayConnections(self.hub, self._supervisor.wait_writable)
        answers = apps.control(self.hub, settings, self._tokens, self.drain, self.recall, connections)
        control = TokenAuth(answers, self._tokens, self._log_refusal)
        health = listen.server(apps.health(self.hub, self._tls_files), refused)
        servers = {"health": (health, listen.bind("--health-port", settings.host, settings.health_port))}
        if settings.plain_control:
            listener = listen.bind("--control-port", settings.host, settings.control_port)
            servers[names.CONTROL] = listen.server(control, refused), listener
        if self._tls is not None:
            listener = listen.bind("--control-tls-port", settings.host, settings.control_tls_port)
            servers[names.CONTROL_TLS] = listen.server(control, refused, self._tls), listener
        return servers

    @property
    def _tls_files(self) -> list[FollowedFiles[Any]]:
        """The files of internal TLS that are followed."""
        return [files for files in (self._tls, self._handoff_tls) if files is not None]

    def drain(self) -> None:
        """Accepts no new requests from now on."""
        if not self.hub.draining:
            self._log("INFO", "draining: accepts no new requests")
            self.hub.drain()

    def recall(self) -> bool:
        """Serves again after `drain`; False if the process is stopping."""
        if self.hub.draining and not self.hub.stopping:
            self._log("INFO", "recalled: accepts requests again")
            self.hub.recall()
        return not self.hub.stopping

    def stop(self) -> None:
        """Drains, then ends; a second call ends it immediately."""
        if self._stopping.is_set():
            self._stop_now.set()
        self._stopping.set()
        self.hub.stopping = True
        self.drain()

    def catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    async def _until_stopped(self) -> None:
        working = asyncio.create_task(self._work())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working  # raises its error: it never returns
            await self._finish(working)
            await self._supervisor.stop()
        finally:
            for task in (working, stopping):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await working

    async def _work(self) -> None:
        self.hub.phase = "waiting for the service's token"
        while self._tokens.missing:  # noqa: ASYNC110 - polls files
            await asyncio.sleep(_POLL)
        self._trust()
        self.hub.phase = "resolving"
        path = await _in_thread(lambda: self._resolve(self._settings.model, self._progress))
        draft = self._settings.speculation_model
        draft_path = None if draft is None else await _in_thread(lambda: self._resolve(draft, self._progress))
        await self._supervisor.run(str(path), None if draft_path is None else str(draft_path))

    async def _finish(self, working: "asyncio.Task[None]") -> None:
        """Waits until the worker is drained, the drain deadline has passed, or `stop` is called again."""
        stop_now = asyncio.create_task(self._stop_now.wait())
        deadline = asyncio.get_running_loop().time() + self._settings.drain_deadline
        while not (self.hub.drained or stop_now.done() or working.done()):
            if asyncio.get_running_loop().time() >= deadline:
                self._log("WARNING", "the drain deadline has passed; stopping")
                break
            await asyncio.wait([stop_now, working], timeout=_POLL, return_when=asyncio.FIRST_COMPLETED)
        if self.hub.drained:
            self._log("INFO", "drained")
            await asyncio.sleep(_LAST_FRAMES)
        stop_now.cancel()

    def _trust(self) -> None:
        """Passes the current tokens on to hand-offs."""
        if self._settings.token_folder:
            self.hub.trust(self._tokens.known)

    def _offer(self) -> None:
        if self._adapters is not None:
            self.hub.offer(self._adapters.value)

    def _log_refusal(self, who: str) -> None:
        self.hub.metrics.count_refusal("unauthorized")
        if line := self._refusals.note(f"refused {who}: its token is missing or not the service's"):
            self._log("WARNING", line)

    def _log_level(self, level: int, line: str) -> None:
        self._log(logging.getLevelName(level), line)

    def _progress(self, line: str) -> None:
        self._log("INFO", line)

    def _wake(self) -> None:
        """Schedules one flush per iteration of the event loop, for any number of frames."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._supervisor.flush()


def _internal_tls(folder: str | None) -> InternalTLS | None:
    """Raises SettingsError for files that cannot be used."""
    try:
        return InternalTLS(Path(folder)) if folder is not None else None
    except InvalidFile as error:
        raise SettingsError(f"--internal-tls-folder {error}") from None


def _handoff_tls(settings: WorkerSettings) -> HandoffCertificates | None:
    """Reads the files as the core does, to report files that the core would refuse. Raises SettingsError."""
    if not (settings.internal_tls_folder and settings.internal_tls_name) or settings.transport == "None":
        return None
    try:
        return HandoffCertificates(Path(settings.internal_tls_folder), settings.internal_tls_name)
    except InvalidFile as error:
        raise SettingsError(f"--internal-tls-folder {error}") from None


def _tracing(settings: WorkerSettings, log: Log) -> "Tracing | None":
    if not settings.traces:
        return None
    from legato_telemetry.spans import Tracing

    return Tracing("legato-worker", settings.name, lambda message: log("WARNING", message))


def _open_gpus(uuids: Sequence[str]) -> GpuMonitor:
    """Raises GpuUnreadable."""
    from legato_engine.gpus import nvml  # only workers with GPUs import it

    return nvml.open_monitor(uuids)


async def _in_thread(work: Callable[[], Path]) -> Path:
    """Runs `work` in a daemon thread, so that a stopping worker does not wait for a download."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Path] = loop.create_future()

    def finish(set_outcome: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: the worker has stopped meanwhile
            loop.call_soon_threadsafe(lambda: None if done.done() else set_outcome())

    def run() -> None:
        try:
            path = work()
        except EngineError as error:
            refused = error
            finish(lambda: done.set_exception(refused))
        else:
            finish(lambda: done.set_result(path))

    threading.Thread(target=run, name="resolve", daemon=True).start()
    return await done
