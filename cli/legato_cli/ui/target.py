"""A service for `legato ui`: the control ports of its gateways, its token, and the autoscaler's decisions."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from legato_cli.errors import ServiceUnavailable
from legato_operator.api import parsing
from legato_operator.cluster import Cluster, Ref, uid_of
from legato_operator.manifests import common
from legato_operator.observing import control_port, observe, peer_tls
from legato_operator.observing.observed import PeerTLS
from legato_protocol.process.followed_files import InvalidFile


@dataclass(frozen=True)
class GatewayTarget:
    """A gateway. `address` is its control port's host:port, as this machine reaches it; `tls` is its authority."""

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

    gateways: tuple[GatewayTarget, ...]
    token: str
    service: Mapping[str, Any]

    def message(self) -> dict[str, Any]:
        """Returns the target as a message to another process."""
        return asdict(self)


def from_message(message: Mapping[str, Any]) -> UITarget:
    """Decodes a message with gateways of this machine, which have no TLS."""
    gateways = tuple(GatewayTarget(each["name"], each["address"]) for each in message["gateways"])
    return UITarget(gateways, message["token"], message["service"])


class TargetSource(Protocol):
    """A source of the current target."""

    async def find(self) -> UITarget:
        """Reads the service. Raises ServiceUnavailable."""


async def read(cluster: Cluster, ref: Ref) -> UITarget:
    """Reads a service with its ready gateways. Raises ClusterError, ServiceUnavailable."""
    stored = await cluster.get(ref)
    service = parsing.service_from_object(stored)
    pods = await observe.find_pods(cluster, ref, uid_of(stored), time.time())
    ready = [pod for pod in pods if pod.pool == common.GATEWAY and pod.ready and not pod.leaving]
    ready = [pod for pod in await peer_tls.attach(cluster, service, ready) if pod.address]
    try:
        for pod in ready:
            control_port.trust(pod.tls)
    except InvalidFile as error:
        raise ServiceUnavailable(f"Secret {pod.tls_secret} with the authority of the gateways: {error}") from None
    status = stored.get("status", {})
    token = await observe.read_token(cluster, service)
    return UITarget(
        tuple(GatewayTarget(pod.name, pod.address, pod.tls) for pod in sorted(ready, key=lambda pod: pod.name)),
        token.token if token is not None else "",
        {
            "name": ref.name,
            "namespace": ref.namespace,
            "conditions": status.get("conditions", []),
            "scaling": status.get("scaling"),
        },
    )
