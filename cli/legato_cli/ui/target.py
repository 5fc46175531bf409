"""A service for commands: control ports of its gateways and workers, its token, and the autoscaler's decisions."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from legato_cli.errors import ServiceUnavailable
from legato_operator.api import parsing
from legato_operator.cluster import Cluster, Ref, uid_of
from legato_operator.manifests import common
from legato_operator.observing import control_port, observe, peer_tls
from legato_operator.observing.observed import PeerTLS, Pod
from legato_protocol.process.followed_files import InvalidFile


@dataclass(frozen=True)
class ControlTarget:
    """A gateway or worker. `address` is its control port's host:port, as reached from here; `tls` is its authority."""

    name: str
    address: str
    tls: PeerTLS | None = None

    @property
    def url(self) -> str:
        """URL of the control port."""
        return f"{control_port.scheme(self.tls)}://{self.address}"

    @property
    def trust(self) -> dict[str, Any]:
        """TLS arguments for aiohttp."""
        return control_port.trust(self.tls)


@dataclass(frozen=True)
class UITarget:
    """A service. `service` has the page's data: name, namespace, conditions, and `status.scaling`."""

    gateways: tuple[ControlTarget, ...]
    token: str
    service: Mapping[str, Any]
    workers: tuple[ControlTarget, ...] = ()

    def message(self) -> dict[str, Any]:
        """Returns the target as a message to another process."""
        return asdict(self)


def from_message(message: Mapping[str, Any]) -> UITarget:
    """Decodes a message with processes of this machine, which have no TLS."""
    gateways, workers = (
        tuple(ControlTarget(each["name"], each["address"]) for each in message.get(kind, ()))
        for kind in ("gateways", "workers")
    )
    return UITarget(gateways, message["token"], message["service"], workers)


class TargetSource(Protocol):
    """A source of the current target."""

    async def find(self) -> UITarget:
        """Reads the service. Raises ServiceUnavailable."""


class WorkerSource(Protocol):
    """A source of one worker."""

    async def find_worker(self, name: str | None) -> tuple[ControlTarget, str]:
        """Returns the named or only ready worker, as this machine reaches it, and the token. Raises
        ServiceUnavailable."""


def choose_worker(target: UITarget, name: str | None) -> ControlTarget:
    """Returns the named or only ready worker. Raises ServiceUnavailable."""
    ready = ", ".join(worker.name for worker in target.workers)
    if not ready:
        raise ServiceUnavailable("no worker of this service is ready")
    if name is None and len(target.workers) > 1:
        raise ServiceUnavailable(f"several workers are ready: {ready} (name one)")
    for worker in target.workers:
        if name in (None, worker.name):
            return worker
    raise ServiceUnavailable(f"no ready worker has the name {name} (ready: {ready})")


async def read(cluster: Cluster, ref: Ref) -> UITarget:
    """Reads a service with its ready gateways and workers. Raises ClusterError, ServiceUnavailable."""
    stored = await cluster.get(ref)
    service = parsing.service_from_object(stored)
    pods = await observe.find_pods(cluster, ref, uid_of(stored), time.time())
    ready = [pod for pod in pods if pod.ready and not pod.leaving]
    ready = [pod for pod in await peer_tls.attach(cluster, service, ready) if pod.address]
    try:
        for pod in ready:
            control_port.trust(pod.tls)
    except InvalidFile as error:
        raise ServiceUnavailable(f"Secret {pod.tls_secret} with the authority of {pod.name}: {error}") from None
    status = stored.get("status", {})
    token = await observe.read_token(cluster, service)
    gateways = [pod for pod in ready if pod.pool == common.GATEWAY]
    return UITarget(
        _targets(gateways),
        token.token if token is not None else "",
        {
            "name": ref.name,
            "namespace": ref.namespace,
            "conditions": status.get("conditions", []),
            "scaling": status.get("scaling"),
        },
        _targets([pod for pod in ready if pod not in gateways]),
    )


def _targets(pods: Iterable[Pod]) -> tuple[ControlTarget, ...]:
    return tuple(ControlTarget(pod.name, pod.address, pod.tls) for pod in sorted(pods, key=lambda pod: pod.name))
