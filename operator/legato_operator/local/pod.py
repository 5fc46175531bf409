"""The life of one pod: its process is started, probed, restarted with back-off, drained, and then it is gone."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from legato_operator.clock import Clock
from legato_operator.cluster import Object, ref_of, uid_of
from legato_operator.errors import Conflict, ObjectNotFound
from legato_operator.local import command, files
from legato_operator.local.backoff import CrashBackoff
from legato_operator.local.logs import Logs
from legato_operator.local.pod_status import HOST, PodStatus
from legato_operator.local.probes import Answer, probe
from legato_operator.local.process import Process
from legato_operator.local.settings import LocalSettings
from legato_operator.local.store import Store

ENV_ANNOUNCE = "LEGATO_ANNOUNCE_FILE"
ENV_LISTEN = "LEGATO_LISTEN_FD"
CANNOT_START = 127  # what a shell says


@dataclass(frozen=True)
class Surroundings:
    """What all pods of a local cluster share."""

    store: Store
    session: aiohttp.ClientSession
    clock: Clock
    logs: Logs
    settings: LocalSettings
    environment: Mapping[str, str]  # that processes inherit
    folder: Path
    listener: socket.socket | None  # inherited by pods whose command names LEGATO_LISTEN_FD
    gpus: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES names them


class PodLife:
    """Runs a pod until it was deleted and its process is gone. `variables` join its environment.

    `reachable` is told the announced ports of each process, and nothing (None) once that process is gone.
    """

    def __init__(
        self,
        pod: Object,
        around: Surroundings,
        variables: Mapping[str, str],
        reachable: Callable[[dict[str, int] | None], None],
    ) -> None:
        self._pod = pod
        self._ref = ref_of(pod)
        self._around = around
        self._variables = variables
        self._reachable = reachable
        settings = around.settings
        self._backoff = CrashBackoff(settings.backoff_first, settings.backoff_longest, settings.backoff_reset_after)
        self._status = PodStatus()
        self._leaving = asyncio.Event()
        self._process: Process | None = None
        self._ready_since: float | None = None
        self._announce = around.folder / f"{self._ref.namespace}.{self._ref.name}.ports.json"

    def leave(self) -> None:
        """Begin to drain. Asking twice is no error."""
        self._leaving.set()

    def kill(self) -> None:
        """End the process at once; it is started again unless the pod leaves."""
        if self._process is not None:
            self._process.kill()

    async def run(self) -> None:
        """The whole life."""
        try:
            while not self._leaving.is_set():
                code, last_words = await self._run_once()
                if not self._leaving.is_set():
                    await self._wait_for_restart(code, last_words)
        finally:
            self.kill()
        with contextlib.suppress(ObjectNotFound, Conflict):
            await self._around.store.remove(self._ref, uid_of(self._pod))

    async def _run_once(self) -> tuple[int, str]:
        self._announce.unlink(missing_ok=True)
        self._ready_since = None
        try:
            self._process = process = await self._start()
        except OSError as error:
            return CANNOT_START, str(error)
        beside = [asyncio.create_task(self._probe(process)), asyncio.create_task(self._stop_when_leaving(process))]
        try:
            await self._write_status(self._status.started(process.pid))
            return await process.wait()
        finally:
            process.kill()
            await process.wait()
            self._process = None
            for task in beside:
                task.cancel()
            self._reachable(None)
            self._announce.unlink(missing_ok=True)

    async def _start(self) -> Process:
        variables = command.environment(self._pod)
        variables = {**self._around.environment, **self._variables, **variables, ENV_ANNOUNCE: str(self._announce)}
        inherited = self._inherited()
        if inherited:
            variables[ENV_LISTEN] = str(inherited[0])
        arguments = command.expand(command.container(self._pod)["command"], variables)
        return await Process.start(self._ref.name, arguments, variables, inherited, self._around.logs)

    def _inherited(self) -> tuple[int, ...]:
        """The listening socket, for a pod that asks for it. Raises OSError when it is closed."""
        listener = self._around.listener
        if listener is None or not command.names(self._pod, ENV_LISTEN):
            return ()
        if listener.fileno() < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), "the listening socket is closed")
        return (listener.fileno(),)

    async def _stop_when_leaving(self, process: Process) -> None:
        await self._leaving.wait()
        process.terminate()
        await self._around.clock.sleep(self._pod["spec"].get("terminationGracePeriodSeconds", 30))
        self._around.logs.line(self._ref.name, "did not end within its grace period and is killed")
        process.kill()

    async def _wait_for_restart(self, code: int, last_words: str) -> None:
        now = self._around.clock.now()
        delay = self._backoff.delay(now - self._ready_since if self._ready_since is not None else 0.0)
        await self._write_status(self._status.ended(code, last_words, delay))
        self._around.logs.line(self._ref.name, self._status.message)
        sleep = asyncio.create_task(self._around.clock.sleep(delay))
        leave = asyncio.create_task(self._leaving.wait())
        await asyncio.wait((sleep, leave), return_when=asyncio.FIRST_COMPLETED)
        sleep.cancel()
        leave.cancel()

    async def _probe(self, process: Process) -> None:
        ports = await self._wait_announced(process)
        if ports is None:
            return
        await self._write_status(self._status.announced(ports))
        self._reachable(ports)
        settings, misses = self._around.settings, 0
        while misses < settings.liveness_misses:
            alive = await self._ask("livenessProbe", ports)
            misses = 0 if alive.passed or self._leaving.is_set() else misses + 1  # leaving: it has its grace period
            await self._tell_readiness(await self._ask("readinessProbe", ports) if alive.passed else alive)
            ready = self._status.ready
            await self._around.clock.sleep(settings.probe_interval if ready else settings.probe_interval_starting)
        self._around.logs.line(self._ref.name, f"missed {misses} liveness probes and is killed")
        process.kill()

    async def _wait_announced(self, process: Process) -> dict[str, int] | None:
        """The ports a process took; None when it told none in time and was killed for that."""
        settings, clock = self._around.settings, self._around.clock
        deadline = clock.now() + settings.announce_timeout
        while (ports := files.read_ports(self._announce)) is None:
            if clock.now() > deadline:
                self._around.logs.line(self._ref.name, "announced no ports in time and is killed")
                process.kill()
                return None
            await clock.sleep(settings.announce_interval)
        return ports

    async def _ask(self, kind: str, ports: Mapping[str, int]) -> Answer:
        get = command.container(self._pod)[kind]["httpGet"]
        url = f"http://{HOST}:{ports[get['port']]}{get['path']}"
        return await probe(self._around.session, url, self._around.settings.probe_timeout)

    async def _tell_readiness(self, answer: Answer) -> None:
        if answer.passed and self._ready_since is None:
            self._ready_since = self._around.clock.now()
        await self._write_status(self._status.probed(answer.passed, answer.message))

    async def _write_status(self, status: PodStatus) -> None:
        self._status = status.stamped(self._status, self._around.clock.timestamp())
        container = str(command.container(self._pod)["name"])
        with contextlib.suppress(ObjectNotFound, Conflict):  # removed by force: there is nobody left to tell
            await self._around.store.patch_status(self._ref, self._status.manifest(container), uid_of(self._pod))
