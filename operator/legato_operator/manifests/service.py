"""Services: the one that clients reach, and the headless one by which gateways find workers."""

from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common
from legato_protocol import names

_HTTP_PORT, _HTTPS_PORT = 80, 443


def gateway_port(service: InferenceService) -> int:
    """Of the Service that clients reach."""
    return _HTTPS_PORT if service.spec.gateway.tls else _HTTP_PORT


def gateway(service: InferenceService) -> dict[str, Any]:
    """Where clients inside the cluster reach the gateway."""
    port = {"name": "https" if service.spec.gateway.tls else "http", "port": gateway_port(service)}
    spec = {
        "type": "ClusterIP",
        "selector": common.selector(service, role=common.GATEWAY),
        "ports": [{**port, "targetPort": "http", "protocol": "TCP"}],
    }
    return _service(service, service.metadata.name, spec)


def workers(service: InferenceService) -> dict[str, Any]:
    """All workers, also those not ready: whether one takes requests is what it says itself."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": common.selector(service, app=names.APP_WORKER),
        "ports": [
            _control(names.CONTROL, names.WORKER_CONTROL_PORT),
            _control(names.CONTROL_TLS, names.CONTROL_TLS_PORT),
        ],
    }
    return _service(service, common.workers_name(service), spec)


def _control(name: str, port: int) -> dict[str, Any]:
    """Of pods that have it: an EndpointSlice names the ports that its pods have."""
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def _service(service: InferenceService, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": common.metadata(service, name), "spec": spec}
