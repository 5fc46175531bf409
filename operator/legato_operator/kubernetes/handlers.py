"""kopf's watches: events of services and of what they own wake the controller's loops. They decide and write nothing.

kopf runs in a thread of its own: it ends with every task of its loop, and in a main thread it takes the signals.
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

from legato_operator.cluster import Object
from legato_operator.kubernetes import kinds
from legato_operator.manifests import common
from legato_operator.observing import ownership
from legato_protocol import names

# Not the token's Secret: watching it would need the right to read all Secrets.
LABELLED = ("Pod", ownership.REPLICA_SET, *common.OWNED_KINDS)
WATCHED = (names.INFERENCE_SERVICE, *LABELLED)

SILENCE_SECONDS = 60.0  # after that, a connection that says nothing is held for dead
CONNECT_SECONDS = 10.0
RESTART_SECONDS = 5.0  # after kopf ended by an error
STOP_SECONDS = 10.0

Notify = Callable[[Object, bool], None]  # an object, and whether it is gone
log = logging.getLogger(__name__)


class Handlers:
    """kopf in its thread. `notify` is called there, for every event."""

    def __init__(
        self, load: Callable[[], Configuration], namespaces: tuple[str, ...], notify: Notify, silence: float
    ) -> None:
        self._load = load
        self._namespaces = namespaces
        self._notify = notify
        self._silence = silence
        self._stopping = threading.Event()  # for good
        self._running = threading.Event()  # kopf's watches have begun
        self._stop: threading.Event = threading.Event()  # this run of kopf
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        """Begin to watch. The API server must know the custom resources."""
        self._thread.start()

    def restart(self) -> None:
        """Watch anew, from fresh lists."""
        self._stop.set()

    def running(self) -> bool:
        """Whether kopf has begun to watch, and has not ended since."""
        return self._running.is_set() and self._thread.is_alive()

    def stop(self) -> None:
        """End. Blocks for a moment."""
        self._stopping.set()
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._stop = threading.Event()
            try:
                asyncio.run(self._operator())
            except Exception:  # whatever ends kopf, only fresh watches help
                log.exception("kopf ended; it is started again in %s s", RESTART_SECONDS)
                self._stopping.wait(RESTART_SECONDS)
            finally:
                self._running.clear()

    async def _operator(self) -> None:
        scope: dict[str, Any] = {"namespaces": self._namespaces} if self._namespaces else {"clusterwide": True}
        await kopf.operator(
            registry=self._registry(),
            settings=_settings(self._silence),
            standalone=True,
            stop_flag=self._stop,
            ready_flag=self._running,
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


def _handler(kind: str, notify: Notify) -> Callable[..., None]:
    api_version = kinds.KINDS[kind].api_version

    async def handle(event: Any, **_: Any) -> None:
        metadata = dict(event["object"]["metadata"])  # kopf's own stays as it is
        told = {**event["object"], "apiVersion": api_version, "kind": kind, "metadata": metadata}
        notify(told, event["type"] == "DELETED")

    return handle  # type: ignore[return-value]


def _resource(kind: str) -> tuple[str, str, str]:
    """Group, version and plural, as kopf spells them."""
    found = kinds.KINDS[kind]
    group, _, version = found.api_version.rpartition("/")
    return group, version, found.plural


def _settings(silence: float) -> kopf.OperatorSettings:
    """Watches that end by themselves, are retried for ever, and leave no trace in the cluster."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None  # it would kill this process, whose end is not kopf's to decide
    settings.scanning.disabled = True  # it would need rights on all CRDs and namespaces
    settings.watching.server_timeout = math.ceil(silence * 0.8)  # the server ends a watch before that
    settings.watching.client_timeout = silence
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.inactivity_timeout = silence
    settings.watching.chunk_size = 500
    for kind in LABELLED:
        settings.watching.label_selectors[_resource(kind)] = names.LABEL_SERVICE
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.request_timeout = silence
    settings.networking.error_backoffs = _Endless()
    return settings


class _Endless:
    """Seconds between tries, for as long as it takes."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1.0, 2.0), itertools.repeat(3.0))


def _connection(configuration: Configuration) -> kopf.ConnectionInfo:
    """The official client's configuration as kopf's."""
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
