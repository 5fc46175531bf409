"""The gateway's pod, and the Deployment that runs it where there are Deployments."""

from typing import Any

from legato_operator.api import roles
from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common, container, model
from legato_operator.manifests.model import Delivery
from legato_operator.manifests.placement import Containers, PodPlacement
from legato_protocol import durations, names

STOP_SENDING = 3  # seconds in which a Service's proxies learn that a gateway leaves, before it accepts no more
_REQUESTS = {"cpu": "100m", "memory": "256Mi"}


def template(service: InferenceService, placement: PodPlacement) -> dict[str, Any]:
    """The pod's metadata and spec."""
    delivery = model.delivery(service, placement)
    arguments = ["gateway", *_process(service, placement), *_policy(service, delivery)]
    gateway = container.process("gateway", placement, arguments, [common.token_variable(service)])
    spec: dict[str, Any] = {"containers": [gateway], "terminationGracePeriodSeconds": common.grace_period(service)}
    if placement.containers:
        spec = _in_container(service, placement, placement.containers, gateway, delivery)
    return {"metadata": {"labels": common.role_labels(common.GATEWAY)}, "spec": spec}


def pod(service: InferenceService, name: str, template: dict[str, Any]) -> dict[str, Any]:
    """One gateway replica."""
    revision = {names.LABEL_POD_REVISION: common.revision_of(template)}
    metadata = common.metadata(service, name, {**template["metadata"]["labels"], **revision})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def deployment(service: InferenceService, template: dict[str, Any]) -> dict[str, Any]:
    """All gateway replicas: another revision serves before one of the old goes."""
    name = common.pool_name(service, common.GATEWAY)
    labels = common.metadata(service, name, template["metadata"]["labels"])["labels"]
    spec = {
        "replicas": service.spec.gateway.replicas,
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": common.selector(service, role=common.GATEWAY)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": common.DEPLOYMENT,
        "metadata": common.metadata(service, name),
        "spec": spec,
    }


def _in_container(
    service: InferenceService,
    placement: PodPlacement,
    containers: Containers,
    gateway: dict[str, Any],
    delivery: Delivery,
) -> dict[str, Any]:
    gateway["resources"] = {"requests": _REQUESTS}
    gateway["lifecycle"] = {"preStop": {"sleep": {"seconds": STOP_SENDING}}}
    ports = {
        "http": names.GATEWAY_PORT,
        "health": placement.health_port,
        "control": placement.control_port,
    }
    return container.contained(gateway, containers, containers.gateway_image, ports, delivery) | {
        "serviceAccountName": common.pool_name(service, common.GATEWAY),
        "topologySpreadConstraints": [common.spread(common.selector(service, role=common.GATEWAY))],
        "terminationGracePeriodSeconds": common.grace_period(service) + STOP_SENDING,
    }


def _process(service: InferenceService, placement: PodPlacement) -> list[str]:
    mine = {"service": service.metadata.name, "namespace": service.metadata.namespace}
    return [
        "--host",
        placement.host,
        *placement.listen_flags,
        "--health-port",
        str(placement.health_port),
        "--control-port",
        str(placement.control_port),
        *placement.announce,
        *(text.format(**mine) for text in placement.discovery),
    ]


def _policy(service: InferenceService, delivery: Delivery) -> list[str]:
    spec = service.spec
    return [
        "--model",
        delivery.argument,
        "--served-name",
        service.served_name,
        "--max-length",
        str(spec.model.max_length),
        "--default-deadline",
        durations.text(spec.gateway.default_deadline),
        "--local-prefill-below-tokens",
        str(spec.routing.local_prefill_below_tokens),
        "--when-prefill-unavailable",
        spec.routing.when_prefill_unavailable,
        "--transfer-on-failure",
        spec.transfer.on_failure,
        "--drain-deadline",
        durations.text(spec.drain.deadline),
        *(["--hold-without-workers"] if roles.may_be_empty(spec) else []),
        *([f"--access-log={spec.gateway.access_log}"] if spec.gateway.access_log != "Text" else ()),
        *(f"--tenant-quota={tenant}={tokens}" for tenant, tokens in spec.gateway.tenant_tokens_per_minute.items()),
    ]
