"""Which hosts services ask for, so that two that ask for the same are told. Pure but for the list of services."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Object, Ref, is_leaving, ref_of, uid_of
from legato_operator.manifests import route
from legato_protocol import names

LISTED_FOR = 10.0  # seconds: services that are looked at together share one list
_ANY = "*"
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class HostClaim:
    """That requests for a host are to go to a service."""

    kind: str  # of the route
    through: str  # the IngressClass, or namespace and name of the Gateway
    listener: str  # of the Gateway; empty: any
    host: str  # *: any

    def meets(self, other: "HostClaim") -> bool:
        """Whether a request could be for both."""
        mine, others = (self.kind, self.through, self.host), (other.kind, other.through, other.host)
        return mine == others and (self.listener == other.listener or not (self.listener and other.listener))


class RouteHosts:
    """Of all services that the operator looks after."""

    def __init__(self, cluster: Cluster, clock: Clock, namespaces: Sequence[str] = ()) -> None:
        """Without `namespaces`: those of all."""
        self._cluster = cluster
        self._clock = clock
        self._namespaces: Sequence[str | None] = tuple(namespaces) or (None,)
        self._listed: tuple[Object, ...] = ()
        self._listed_at = float("-inf")

    async def taken(self, stored: Object) -> tuple[tuple[str, Ref], ...]:
        """Hosts that older services ask for at the same place, and whose they are. A service without routes asks
        nobody."""
        mine = tuple(claims(stored))
        if not mine:
            return ()
        older = [each for each in await self._services() if _age(each) < _age(stored)]
        found = {
            (each.host, ref_of(other))
            for other in sorted(older, key=_age)
            for each in mine
            if any(each.meets(claim) for claim in claims(other))
        }
        return tuple(sorted(found))

    async def _services(self) -> Sequence[Object]:
        now = self._clock.now()
        if not 0 <= now - self._listed_at < LISTED_FOR:
            lists = [await self._cluster.list(names.INFERENCE_SERVICE, namespace) for namespace in self._namespaces]
            found = (item for listing in lists for item in listing.items)
            self._listed = tuple(item for item in found if not is_leaving(item) and any(claims(item)))
            self._listed_at = now
        return self._listed


def claims(stored: Object) -> Iterator[HostClaim]:
    """Those of a service's manifest."""
    gateway = stored.get("spec", _NOTHING).get("gateway") or _NOTHING
    ingress, http_route = gateway.get("ingress") or _NOTHING, gateway.get("httpRoute") or _NOTHING
    for host in ingress.get("hosts") or ():
        yield HostClaim(route.INGRESS, ingress.get("className") or "", "", host)
    for parent in http_route.get("parentRefs") or ():
        through = f"{parent.get('namespace') or ref_of(stored).namespace}/{parent.get('name')}"
        for host in http_route.get("hostnames") or (_ANY,):
            listener = str(parent.get("sectionName") or parent.get("port") or "")
            yield HostClaim(route.HTTP_ROUTE, through, listener, host)


def _age(stored: Object) -> tuple[str, Ref, str]:
    return stored["metadata"].get("creationTimestamp", ""), ref_of(stored), uid_of(stored)
