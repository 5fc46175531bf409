"""Finds hosts that several services claim. Pure except for listing the services."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Object, Ref, is_leaving, ref_of, uid_of
from legato_operator.manifests import route
from legato_protocol import names

LISTED_FOR = 10.0  # seconds for which passes over several services share one list
_ANY = "*"
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class HostClaim:
    """A service's claim on requests for a host."""

    kind: str  # of the route
    through: str  # the IngressClass, or namespace and name of the Gateway
    listener: str  # of the Gateway; empty: any
    host: str  # *: any

    def overlaps(self, other: "HostClaim") -> bool:
        """True if a request could match both claims."""
        mine, others = (self.kind, self.through, self.host), (other.kind, other.through, other.host)
        return mine == others and (self.listener == other.listener or not (self.listener and other.listener))


class RouteHosts:
    """The host claims of all services of the operator."""

    def __init__(self, cluster: Cluster, clock: Clock, namespaces: Sequence[str] = ()) -> None:
        """`namespaces` limits the services; empty for all."""
        self._cluster = cluster
        self._clock = clock
        self._namespaces: Sequence[str | None] = tuple(namespaces) or (None,)
        self._listed: tuple[Object, ...] = ()
        self._listed_at = float("-inf")

    async def find_taken(self, stored: Object) -> tuple[tuple[str, Ref], ...]:
        """Returns the service's hosts that older services claim on the same Gateway or class, with these services.

        Lists nothing for a service without routes.
        """
        mine = tuple(claims(stored))
        if not mine:
            return ()
        older = [each for each in await self._services() if _age(each) < _age(stored)]
        taken = {
            (each.host, ref_of(other))
            for other in sorted(older, key=_age)
            for each in mine
            if any(each.overlaps(claim) for claim in claims(other))
        }
        return tuple(sorted(taken))

    async def _services(self) -> Sequence[Object]:
        now = self._clock.now()
        if not 0 <= now - self._listed_at < LISTED_FOR:
            lists = [await self._cluster.list(names.INFERENCE_SERVICE, namespace) for namespace in self._namespaces]
            items = (item for listing in lists for item in listing.items)
            self._listed = tuple(item for item in items if not is_leaving(item) and any(claims(item)))
            self._listed_at = now
        return self._listed


class NullRouteHosts:
    """Host claims that never conflict."""

    async def find_taken(self, stored: Object) -> tuple[tuple[str, Ref], ...]:
        return ()


def claims(stored: Object) -> Iterator[HostClaim]:
    """Yields the host claims of a service's manifest."""
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
