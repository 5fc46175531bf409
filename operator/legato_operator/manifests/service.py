"""Services: one for clients, and a headless one by which gateways find workers."""

from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common
from legato_protocol import names

_HTTP_PORT, _HTTPS_PORT = 80, 443


def gateway_port(service: InferenceService) -> int:
    """Returns the port of the Service for clients."""
    return _HTTPS_PORT if service.spec.gateway.tls else _HTTP_PORT


def gateway(service: InferenceService) -> dict[str, Any]:
    """Returns the Service for clients inside the cluster."""
    port = {"name": "https" if service.spec.gateway.tls else "http", "port": gateway_port(service)}
    spec = {
        "type": "ClusterIP",
        "selector": common.selector(service, role=common.GATEWAY),
        "ports": [{**port, "targetPort": "http", "protocol": "TCP"}],
    }
    return common.owned_object(service, "Service", service.metadata.name, spec=spec)


def workers(service: InferenceService) -> dict[str, Any]:
    """Returns the Service of all workers, including unready ones: workers report their readiness to gateways."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": common.selector(service, app=names.APP_WORKER),
        "ports": [
            _control(names.CONTROL, names.WORKER_CONTROL_PORT),
            _control(names.CONTROL_TLS, names.CONTROL_TLS_PORT),
        ],
    }
    return common.owned_object(service, "Service", common.workers_name(service), spec=spec)


def _control(name: str, port: int) -> dict[str, Any]:
    """Returns a named control port; an EndpointSlice only lists the ports that its pods have."""
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
