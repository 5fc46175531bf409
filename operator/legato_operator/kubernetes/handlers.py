"""kopf's watches: events of services and their objects wake the controller's loops. They decide and write nothing.

kopf runs in its own thread, because it ends with any task of its loop, and handles signals in a main thread.
"""

import asyncio
import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import kopf
from kubernetes.client import Configuration

from legato_operator.api import kinds
from legato_operator.cluster import Object
from legato_operator.manifests import common
from legato_operator.observing import ownership
from legato_protocol import names

# Without the token's Secret: watching it would need permission to read all Secrets.
LABELLED = ("Pod", ownership.REPLICA_SET, *common.OWNED_KINDS)
WATCHED = (names.INFERENCE_SERVICE, *LABELLED)

SILENCE_SECONDS = 60.0  # after which a silent connection counts as dead
CONNECT_SECONDS = 10.0
RESTART_SECONDS = 5.0  # delay before a restart after kopf failed
AGAIN_SECONDS = 2.0  # delay before a restart after a watch ended
CHECK_SECONDS = 0.5  # between checks of the watches
END_SECONDS = 3.0  # for kopf to end; remaining tasks are abandoned
STOP_SECONDS = 10.0

Notify = Callable[[Object, bool], None]  # an object, and True if it was deleted
log = logging.getLogger(__name__)


class Handlers:
    """kopf in its thread, which calls `notify` for every event, and `ended` when watches have ended unexpectedly."""

    def __init__(
        self,
        load: Callable[[], Configuration],
        namespaces: tuple[str, ...],
        notify: Notify,
        silence: float,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._load = load
        self._namespaces = namespaces
        self._notify = notify
        self._silence = silence
        self._ended = ended
        self._stopping = threading.Event()  # set by `stop`
        self._running = threading.Event()  # set while all watches run
        self._stop: threading.Event = threading.Event()  # ends this run of kopf
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Starts to watch. The API server must serve the custom resources."""
        self._thread.start()

    def restart(self) -> None:
        """Restarts all watches from fresh lists."""
        self._stop.set()

    def running(self) -> bool:
        """True if all watches have started and none has ended since."""
        return self._running.is_set() and self._thread.is_alive()

    def stop(self) -> None:
        """Ends all watches. Blocks for a moment."""
        self._stopping.set()
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._stop = threading.Event()
            loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(self._operator())
            except Exception:  # whatever ends kopf, only fresh watches help
                log.exception("kopf ended; it restarts in %s s", RESTART_SECONDS)
                self._running.clear()
                self._ended()
                self._stopping.wait(RESTART_SECONDS)
            finally:
                self._running.clear()
                self._stop.set()  # threads of kopf wait for it
                loop.close()

    async def _operator(self) -> None:
        """Runs kopf until it ends or is stopped, and abandons tasks that it would wait for forever."""
        watching = asyncio.create_task(self._watch())
        supervision = asyncio.create_task(self._supervise())
        await asyncio.wait((watching, supervision), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((watching,), timeout=END_SECONDS)
        error = watching.exception() if watching.done() else None
        if error is not None and not self._stop.is_set():
            raise error
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=CHECK_SECONDS)

    async def _supervise(self) -> None:
        """Stops kopf when a watch has ended, because kopf may continue without it, for example between two installs of
        the CRDs. Ends when kopf is stopped."""
        wanted = len(WATCHED) * max(1, len(self._namespaces))
        # kopf discovers the kinds, then starts all watches together, without a notification.
        while not (_watches() or self._stop.is_set()):  # noqa: ASYNC110
            await asyncio.sleep(CHECK_SECONDS)
        await asyncio.sleep(CHECK_SECONDS)
        while _watches() == wanted and not self._stop.is_set():
            self._running.set()
            await asyncio.sleep(CHECK_SECONDS)
        self._running.clear()
        if not self._stop.is_set():
            log.error("%d of %d watches run; restarting all", _watches(), wanted)
            self._ended()
            await asyncio.sleep(AGAIN_SECONDS)
            self._stop.set()

    async def _watch(self) -> None:
        scope: dict[str, Any] = {"namespaces": self._namespaces} if self._namespaces else {"clusterwide": True}
        await kopf.operator(
            registry=self._registry(),
            settings=_settings(self._silence),
            standalone=True,
            stop_flag=self._stop,
            **scope,
        )

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(self._login)
        for kind in WATCHED:
            kopf.on.event(*_resource(kind), id=kind.lower(), registry=registry)(_handler(kind, self._notify))
        return registry

    def _login(self, **_: Any) -> kopf.ConnectionInfo:
        return _connection(self._load())


def _watches() -> int:
    """Counts kopf's watches in this thread by the names of their tasks."""
    return sum(task.get_name().startswith("watcher for ") for task in asyncio.all_tasks())


def _handler(kind: str, notify: Notify) -> Callable[..., None]:
    api_version = kinds.KINDS[kind].api_version

    async def handle(event: Any, **_: Any) -> None:
        metadata = dict(event["object"]["metadata"])  # a copy, because kopf keeps its own
        item = {**event["object"], "apiVersion": api_version, "kind": kind, "metadata": metadata}
        notify(item, event["type"] == "DELETED")

    return handle  # type: ignore[return-value]


def _resource(kind: str) -> tuple[str, str, str]:
    """Returns the group, version and plural for kopf."""
    served = kinds.KINDS[kind]
    group, _, version = served.api_version.rpartition("/")
    return group, version, served.plural


def _settings(silence: float) -> kopf.OperatorSettings:
    """Returns settings for watches that end by themselves, are retried forever, and write nothing to the cluster."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None  # it would kill this process
    settings.scanning.disabled = True  # it would need permissions for all CRDs and namespaces
    settings.watching.server_timeout = math.ceil(silence * 0.8)  # the server ends a watch before it counts as dead
    settings.watching.client_timeout = silence
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.inactivity_timeout = math.inf  # client_timeout ends silent watches; this one may end kopf
    settings.watching.chunk_size = 500
    for kind in LABELLED:
        settings.watching.label_selectors[_resource(kind)] = names.LABEL_SERVICE
    settings.queueing.exit_timeout = CHECK_SECONDS  # fresh lists contain the unread events
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.request_timeout = silence
    settings.networking.error_backoffs = _Endless()
    return settings


class _Endless:
    """An endless sequence of seconds between tries."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1.0, 2.0), itertools.repeat(3.0))


def _connection(configuration: Configuration) -> kopf.ConnectionInfo:
    """Converts the official client's configuration to kopf's."""
    header = configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
    scheme, _, token = header.rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        username=configuration.username or None,
        password=configuration.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )
