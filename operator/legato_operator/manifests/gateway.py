"""The gateway's pod."""

from typing import Any

from legato_operator import quantities
from legato_operator.manifests import common
from legato_operator.placement import Placement
from legato_operator.resources import InferenceService


def template(service: InferenceService, placement: Placement) -> dict[str, Any]:
    """The pod's spec."""
    container = {
        "name": "gateway",
        "command": [*placement.program, "gateway", *_process(placement), *_policy(service)],
        "env": [common.token_variable(service)],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "health"}},
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "health"}},
    }
    return {"containers": [container], "terminationGracePeriodSeconds": common.grace_period(service)}


def pod(service: InferenceService, name: str, template: dict[str, Any]) -> dict[str, Any]:
    """One gateway replica."""
    metadata = common.metadata(service, name, common.GATEWAY, common.revision_of(template))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template}


def _process(placement: Placement) -> list[str]:
    return [
        "--host",
        placement.host,
        *placement.front,
        "--health-port",
        str(placement.health_port),
        *placement.announce,
        *placement.discovery,
    ]


def _policy(service: InferenceService) -> list[str]:
    spec = service.spec
    return [
        "--model",
        common.model_argument(service),
        "--served-name",
        service.served_name,
        "--max-length",
        str(spec.model.max_length),
        "--default-deadline",
        quantities.seconds(spec.gateway.default_deadline),
        "--local-prefill-below-tokens",
        str(spec.routing.local_prefill_below_tokens),
        "--when-prefill-unavailable",
        spec.routing.when_prefill_unavailable,
        "--transfer-on-failure",
        spec.transfer.on_failure,
        "--drain-deadline",
        quantities.seconds(spec.drain.deadline),
        *(f"--tenant-quota={tenant}={tokens}" for tenant, tokens in spec.gateway.tenant_tokens_per_minute.items()),
    ]
