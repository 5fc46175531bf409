"""NetworkPolicies: control and transfer ports accept peers, gateways and the operator; other ports accept everyone."""

from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common
from legato_protocol import names


def workers(service: InferenceService, operator_namespace: str) -> dict[str, Any]:
    """Returns the policy of workers. Anybody can label a pod as the operator, but not in the operator's namespace."""
    first, last = names.TRANSFER_PORTS
    transfer = {**_port(first), "endPort": last}
    own = [{"podSelector": {"matchLabels": common.selector(service, app=app)}} for app in _OWN]
    ingress = [
        {"from": [own[0]], "ports": [*_CONTROL, transfer]},
        {"from": [own[1], _operator(operator_namespace)], "ports": _CONTROL},
        {"ports": [_port(names.WORKER_HEALTH_PORT)]},
    ]
    return _policy(service, "workers", names.APP_WORKER, ingress)


def gateway(service: InferenceService, operator_namespace: str) -> dict[str, Any]:
    """Returns the policy of gateways: clients and probes reach them, and the operator their control port."""
    open_to_all = [_port(names.GATEWAY_PORT), _port(names.WORKER_HEALTH_PORT)]
    control = {"from": [_operator(operator_namespace)], "ports": _CONTROL}
    return _policy(service, common.GATEWAY, names.APP_GATEWAY, [{"ports": open_to_all}, control])


_NAMESPACE = "kubernetes.io/metadata.name"
_OWN = (names.APP_WORKER, names.APP_GATEWAY)


def _operator(namespace: str) -> dict[str, Any]:
    where = {"matchLabels": {_NAMESPACE: namespace}} if namespace else {}
    return {"namespaceSelector": where, "podSelector": {"matchLabels": {names.LABEL_APP: names.APP_OPERATOR}}}


def _port(number: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": number}


_CONTROL = [_port(names.WORKER_CONTROL_PORT), _port(names.CONTROL_TLS_PORT)]


def _policy(service: InferenceService, part: str, app: str, ingress: list[dict[str, Any]]) -> dict[str, Any]:
    selector = {"matchLabels": common.selector(service, app=app)}
    spec = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}
    return common.owned_object(service, "NetworkPolicy", common.pool_name(service, part), spec=spec)
