"""The life of one pod: its process is started, probed, restarted with back-off, drained and removed."""

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
CANNOT_START = 127  # exit code of shells for a command that is not found


@dataclass(frozen=True)
class Surroundings:
    """Resources shared by all pods of a local cluster."""

    store: Store
    session: aiohttp.ClientSession
    clock: Clock
    logs: Logs
    settings: LocalSettings
    environment: Mapping[str, str]  # inherited by processes
    folder: Path
    listener: socket.socket | None  # inherited by pods whose command names LEGATO_LISTEN_FD
    gpus: tuple[str, ...]  # in the notation of CUDA_VISIBLE_DEVICES


class PodLife:
    """Runs a pod until it is deleted and its process has ended. `variables` are added to its environment.

    `reachable` is called with the announced ports of each process, and with None once the process has ended.
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
        """Starts to drain. A repeated call has no effect."""
        self._leaving.set()

    def kill(self) -> None:
        """Kills the process immediately; it is restarted unless the pod is leaving."""
        if self._process is not None:
            self._process.kill()

    async def run(self) -> None:
        """Runs the pod until it has been removed."""
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
        watchers = [asyncio.create_task(self._probe(process)), asyncio.create_task(self._stop_when_leaving(process))]
        try:
            await self._write_status(self._status.started(process.pid))
            return await process.wait()
        finally:
            process.kill()
            await process.wait()
            self._process = None
            for task in watchers:
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
        """Returns the listening socket for a pod whose command uses it. Raises OSError if it is closed."""
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
            misses = 0 if alive.passed or self._leaving.is_set() else misses + 1  # a leaving pod has its grace period
            await self._report_readiness(await self._ask("readinessProbe", ports) if alive.passed else alive)
            ready = self._status.ready
            await self._around.clock.sleep(settings.probe_interval if ready else settings.probe_interval_starting)
        self._around.logs.line(self._ref.name, f"missed {misses} liveness probes and is killed")
        process.kill()

    async def _wait_announced(self, process: Process) -> dict[str, int] | None:
        """Returns a process's announced ports, or None if it announced none in time and was killed."""
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

    async def _report_readiness(self, answer: Answer) -> None:
        if answer.passed and self._ready_since is None:
            self._ready_since = self._around.clock.now()
        await self._write_status(self._status.probed(answer.passed, answer.message))

    async def _write_status(self, status: PodStatus) -> None:
        self._status = status.stamped(self._status, self._around.clock.timestamp())
        container = str(command.container(self._pod)["name"])
        with contextlib.suppress(ObjectNotFound, Conflict):  # the object was removed by force
            await self._around.store.patch_status(self._ref, self._status.manifest(container), uid_of(self._pod))
