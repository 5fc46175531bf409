"""The process behind `legato up`: the local cluster, the operator's loop, the manifest's file and the admin socket."""

import asyncio
import codecs
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from legato_cli.local import admin, downloads, greeting
from legato_cli.local.operations import LocalOperations
from legato_cli.local.progress import Progress
from legato_cli.local.terminal import Terminal
from legato_cli.machine import gpus
from legato_cli.manifests import manifest_file, unmet_objectives
from legato_cli.models import model
from legato_cli.services.log_lines import LogLines
from legato_cli.ui import proxy
from legato_cli.ui.sources import OwnSource
from legato_operator.api import conditions, parsing, pool_sizes, yaml_text
from legato_operator.api.quantities import GPU
from legato_operator.api.resources import InferenceService
from legato_operator.autoscaling import Autoscaler
from legato_operator.clock import SystemClock
from legato_operator.cluster import Object, Ref
from legato_operator.controller import Controller
from legato_operator.errors import ManifestError, ObjectNotFound
from legato_operator.local import following
from legato_operator.local.cluster import LocalCluster, open_cluster
from legato_operator.local.logs import Logs
from legato_operator.local.settings import LocalSettings
from legato_operator.local.store import Store
from legato_operator.manifests.common import model_argument
from legato_operator.manifests.placement import local
from legato_operator.metrics.operator_metrics import OperatorMetrics
from legato_operator.observing.gateway_api import HttpGateways
from legato_operator.observing.gateway_signals import GatewaySignalSource
from legato_operator.observing.worker_api import HttpWorkers
from legato_operator.planning import checks
from legato_operator.reconcile import Collaborators, Reconciler
from legato_operator.waking import DemandWaker
from legato_protocol.settings import durations

USER = "legato-up"  # the field manager of the manifest's file
FILE_POLL = 0.5  # seconds
STATUS_POLL = 0.1
SETTLE = 30.0  # seconds that a ready service waits for its other workers before it is announced
GRACE = 5.0  # seconds after the drain deadline before all processes are killed
PROGRAM = (sys.executable, "-m", "legato_cli.main")


class CannotServe(Exception):
    """The service cannot be started, and a retry would not help."""


@dataclass(frozen=True)
class Manifest:
    """A service, the object as written by its author, and the file's text."""

    service: InferenceService
    written: Object
    text: str


def read_manifest(path: Path) -> Manifest:
    """Reads a manifest that this machine can serve; paths are relative to the file. Raises ManifestError."""
    text = manifest_file.read_text(path)
    spec, visible = parsing.parse(text).spec, gpus.visible(os.environ)
    if problems := checks.unavailable(spec) or checks.contradictions(spec, (GPU,), len(visible)):
        raise ManifestError(problems)
    written = manifest_file.located(yaml_text.load(text), path.resolve().parent)
    first = pool_sizes.first_gpus(spec)
    if visible and first and spec.scaling.gpu_budget is None:
        # The first workers share all GPU memory, so another worker would have none.
        written["spec"].setdefault("scaling", {})["gpuBudget"] = max(len(visible), first)
    service = parsing.read_mapping(written)
    return Manifest(service, parsing.to_object(service, written), text)


def serve(path: Path, manifest: Manifest, listener: socket.socket, verbose: bool = False) -> int:
    """Serves at the listening socket `listener` until a signal, and closes it. Raises CannotServe, ModelUnavailable.

    `verbose` shows all log lines of processes instead of only warnings and errors.
    """
    try:
        return asyncio.run(_serve(path, manifest, listener, verbose))
    except admin.CannotListen as error:
        raise CannotServe(str(error)) from None


async def _serve(path: Path, manifest: Manifest, listener: socket.socket, verbose: bool) -> int:
    clock, terminal = SystemClock(), Terminal(sys.stdout, sys.stderr)
    await downloads.download(manifest.service, PROGRAM, lambda text: terminal.say(f"legato: {text}"))
    written = LogLines()
    here = os.environ
    placement = local(PROGRAM, len(os.sched_getaffinity(0)), str(model.cache_folder(here)), gpus.visible(here))
    hidden = () if verbose else ("INFO ",)
    logs = Logs(terminal.log, colour=sys.stderr.isatty(), hidden=hidden, keep=written.add)
    async with (
        open_cluster(logs, clock, here, LocalSettings(), listener, placement.shared_gpus) as cluster,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        workers = HttpWorkers(session)
        gateways = HttpGateways(session)
        metrics = _metrics()
        waker = DemandWaker(gateways, clock)
        url = f"{_url(manifest.service, listener)}/v1"
        operations = LocalOperations(cluster.store, manifest.service.ref, clock, gateways, written, url)
        collaborators = Collaborators(
            recorder=operations.recent,
            journal=metrics.services,
            gateways=gateways,
            autoscaler=Autoscaler(GatewaySignalSource(), metrics.services),
            waker=waker,
        )
        reconciler = Reconciler(cluster.store, workers, clock, placement, collaborators)
        controller = Controller(reconciler, metrics)
        shown = [web.get("/metrics", metrics.answer)]
        return await _Serving(cluster, controller, path, manifest, listener, terminal, operations, shown, waker).run()


def _metrics() -> OperatorMetrics:
    """Returns the metrics of an operator without other replicas, which reads the store itself."""
    metrics = OperatorMetrics()
    metrics.leader.set(1)
    metrics.synced.set(1)
    return metrics


@dataclass
class _Serving:
    """One run of `legato up`, from the first apply to the end of the last process."""

    local: LocalCluster
    controller: Controller
    path: Path
    manifest: Manifest
    listener: socket.socket
    terminal: Terminal
    operations: LocalOperations
    routes: Iterable[web.RouteDef] = ()  # additional routes on the page's port
    waker: DemandWaker | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    stop_now: asyncio.Event = field(default_factory=asyncio.Event)  # second signal: stop without waiting

    @property
    def store(self) -> Store:
        return self.local.store

    @property
    def ref(self) -> Ref:
        return self.manifest.service.ref

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        async with admin.listening(self.manifest.service.metadata.name, self.operations.answer):
            await self.store.apply(self.manifest.written, USER)
            controller = asyncio.create_task(following.run(self.store, self.controller, self.waker))
            try:
                await self._until_stopped(controller)
            finally:
                try:
                    await self._first(self._end(), controller)
                    self._say("stopped")
                finally:
                    await _cancel(controller)
        return 0

    def _on_signal(self) -> None:
        if self.stop.is_set():
            self.stop_now.set()
        self.stop.set()

    async def _until_stopped(self, controller: "asyncio.Task[None]") -> None:
        """Starts the service, prints how to use it, and follows the manifest's file. Raises CannotServe."""
        progress = Progress(self.store, self.ref, self.terminal)
        self._say(greeting.starting(self.manifest.service))
        self._say_warnings()
        following = asyncio.create_task(progress.follow())
        watching = asyncio.create_task(self._watch_file())
        try:
            await self._first(self._wait_ready(), controller, watching, following, stoppable=True)
            if not self.stop.is_set():
                await progress.started()
                url = _url(self.manifest.service, self.listener)
                async with proxy.listening(OwnSource(self.store, self.ref), 0, self.routes) as page:
                    self.terminal.say(greeting.text(url, self.manifest.service.served_name, page))
                    await self._first(self.stop.wait(), controller, watching, following)
        finally:
            await _cancel(following, watching)

    async def _first(
        self, work: Coroutine[Any, Any, Any], *background: "asyncio.Task[None]", stoppable: bool = False
    ) -> None:
        """Waits for `work`. A background task only ends by a fault, which is raised here."""
        main = asyncio.create_task(work)
        stop = asyncio.create_task(self.stop.wait())
        watched = {main, self.local.failed, *background} | ({stop} if stoppable else set())
        try:
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _cancel(main, stop)

    async def _wait_ready(self) -> None:
        """Waits until the service is ready, and shortly for its remaining workers.

        Raises CannotServe if a process reports that it can never start.
        """
        loop = asyncio.get_running_loop()
        patience = float("inf")
        while True:
            status = (await self.store.get(self.ref)).get("status", {})
            for condition in status.get("conditions", ()):
                if condition["reason"] == conditions.WORKER_REFUSED:
                    raise CannotServe(condition["message"])
            if conditions.find(status, conditions.READY).get("status") == "True":
                patience = min(patience, loop.time() + SETTLE)
                if loop.time() >= patience or conditions.find(status, conditions.PROGRESSING).get("status") != "True":
                    return
            await asyncio.sleep(STATUS_POLL)

    async def _watch_file(self) -> None:
        """Applies the manifest whenever its file changes. A bad edit is reported and ignored."""
        seen: bytes | None = self.manifest.text.encode()
        while True:
            await asyncio.sleep(FILE_POLL)
            content = await asyncio.to_thread(_content, self.path)
            if content is None or content == seen:
                continue
            seen = content
            await self._apply_edit()

    async def _apply_edit(self) -> None:
        try:
            edited = read_manifest(self.path)
            if edited.service.metadata != self.manifest.service.metadata:
                raise ManifestError(
                    [("metadata", "cannot be changed while the service is running (restart `legato up`)")]
                )
            await asyncio.to_thread(model.resolve, model_argument(edited.service), self._say)
            await downloads.download(edited.service, PROGRAM, self._say)
        except (ManifestError, model.ModelUnavailable) as error:
            for line in str(error).splitlines():
                self._say(f"{self.path}: {line}")
            self._say(f"{self.path}: change rejected; the service keeps running as before")
            return
        self.manifest = edited
        await self.store.apply(edited.written, USER, force=True)
        self._say(f"{self.path}: change applied")
        self._say_warnings()

    def _say_warnings(self) -> None:
        """Prints fields without effect here, and objectives that no worker meets."""
        spec = self.manifest.service.spec
        without_effect = checks.without_effect(spec, bool(gpus.visible(os.environ)))
        for path, message in (*without_effect, *unmet_objectives.of_paced(spec)):
            self._say(f"{self.path}: {path}: {message}")

    def _say(self, text: str) -> None:
        self.terminal.say(f"legato: {text}")

    async def _end(self) -> None:
        """Deletes the service and waits for the end of its processes, at most the drain deadline."""
        longest = durations.text(self.manifest.service.spec.drain.deadline)
        self._say(f"stopping: draining, up to {longest}; press Ctrl-C again to stop now")
        self.listener.close()  # and the gateway closes its copy: new clients are refused immediately
        deadline = self.manifest.service.spec.drain.deadline + GRACE
        gone = asyncio.create_task(self._gone())
        now = asyncio.create_task(self.stop_now.wait())
        await asyncio.wait((gone, now), timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
        await _cancel(gone, now)

    async def _gone(self) -> None:
        with contextlib.suppress(ObjectNotFound):
            await self.store.delete(self.ref)
            while True:
                await self.store.get(self.ref)
                await asyncio.sleep(0.05)


def _url(service: InferenceService, listener: socket.socket) -> str:
    scheme = "https" if service.spec.gateway.tls else "http"
    return f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError:
        return None  # an editor may be replacing it


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels tasks and waits for their end, so that none uses a closed resource."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
