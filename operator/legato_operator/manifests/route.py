"""Routes to the gateways from outside the cluster: an HTTPRoute of the Gateway API, and an Ingress."""

from collections.abc import Mapping, Sequence
from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.api.spec.routes import HTTPRoutePart, IngressPart
from legato_operator.manifests import common
from legato_operator.manifests import service as front

HTTP_ROUTE = "HTTPRoute"
INGRESS = "Ingress"
KINDS = (HTTP_ROUTE, INGRESS)


def routes(service: InferenceService) -> list[dict[str, Any]]:
    """Returns the routes that the manifest asks for."""
    gateway = service.spec.gateway
    return [
        *([_http_route(service, gateway.http_route)] if gateway.http_route else ()),
        *([_ingress(service, gateway.ingress)] if gateway.ingress else ()),
    ]


def hosts(item: Mapping[str, Any]) -> Sequence[str]:
    """Returns the hosts of a route, none if it accepts every host."""
    if item["kind"] == INGRESS:
        return [rule["host"] for rule in item["spec"]["rules"]]
    hostnames: Sequence[str] = item["spec"].get("hostnames", ())
    return hostnames


def name(service: InferenceService) -> str:
    """Returns the name of a route of either kind. It is not the Service's, which an administrator's route may have."""
    return common.pool_name(service, common.GATEWAY)


def _http_route(service: InferenceService, given: HTTPRoutePart) -> dict[str, Any]:
    """Returns an HTTPRoute without a timeout: streams may take as long as a request, which exceeds usual limits."""
    backend = {"name": service.metadata.name, "port": front.gateway_port(service)}
    spec = {
        "parentRefs": [each.model_dump(by_alias=True, exclude_none=True) for each in given.parent_refs],
        **({"hostnames": list(given.hostnames)} if given.hostnames else {}),
        "rules": [{"backendRefs": [backend], "timeouts": {"request": "0s"}}],
    }
    return common.owned_object(service, HTTP_ROUTE, name(service), annotations=given.annotations, spec=spec)


def _ingress(service: InferenceService, given: IngressPart) -> dict[str, Any]:
    backend = {"service": {"name": service.metadata.name, "port": {"number": front.gateway_port(service)}}}
    http = {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}
    spec = {
        **({"ingressClassName": given.class_name} if given.class_name else {}),
        "rules": [{"host": host, "http": http} for host in given.hosts],
        **({"tls": [{"hosts": list(given.hosts), "secretName": given.tls_secret}]} if given.tls_secret else {}),
    }
    return common.owned_object(service, INGRESS, name(service), annotations=given.annotations, spec=spec)
