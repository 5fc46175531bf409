"""The gateway's pod and, on Kubernetes, its Deployment."""

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Final

from legato_operator.api import roles
from legato_operator.api.resources import InferenceService, Slo, Spec
from legato_operator.api.spec.gateway import (
    APIKeys,
    GatewayLimits,
    GatewayTLS,
    ResponseStoreSpec,
    RoutingWeights,
)
from legato_operator.api.spec.manifest_part import ManifestPart
from legato_operator.manifests import common
from legato_operator.manifests.placement import Containers, PodPlacement
from legato_operator.manifests.pods import adapters, container, model, overlay
from legato_operator.manifests.pods.model import Delivery
from legato_protocol import names
from legato_protocol.settings import durations

STOP_SENDING = 3  # seconds in which proxies of the Service learn that a gateway is leaving, while it still accepts
_KEYS = "api-keys"
_KEYS_FOLDER = "/etc/legato/api-keys"
_TLS = "tls"
_TLS_FOLDER = "/etc/legato/tls"
_REQUESTS = {"cpu": "100m", "memory": "256Mi"}


def template(service: InferenceService, placement: PodPlacement) -> dict[str, Any]:
    """Returns the pod's metadata and spec."""
    delivery = model.delivery(service, placement)
    arguments = ["gateway", *_process(service, placement), *_policy(service, placement, delivery)]
    env = [
        *common.tracing_variables(service, placement),
        *common.sampling_variables(service, placement),
    ]
    gateway = container.process("gateway", placement, arguments, env)
    spec: dict[str, Any] = {"containers": [gateway], "terminationGracePeriodSeconds": common.grace_period(service)}
    if placement.containers:
        spec = _in_container(service, placement, placement.containers, gateway, delivery)
    ours = {"metadata": {"labels": common.role_labels(common.GATEWAY)}, "spec": spec}
    return overlay.merge(ours, service.spec.gateway.template) if placement.containers else ours


def deployment(service: InferenceService, template: dict[str, Any]) -> dict[str, Any]:
    """Returns the Deployment of all gateway replicas: a new one serves before an old one is removed."""
    return common.deployment(
        service,
        common.pool_name(service, common.GATEWAY),
        common.GATEWAY,
        template,
        replicas=service.spec.gateway.replicas,
        revisionHistoryLimit=2,
        strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    )


def step_objective(spec: Spec) -> float:
    """Returns the gateways' `slo.tpot` in seconds.

    If decode workers do not help with prefill, it only matters for migrations. A custom image may be of a release
    without the flag, so it then keeps the default.
    """
    return spec.slo.tpot if _decode_helps(spec) or not spec.gateway.image else Slo().tpot


def _in_container(
    service: InferenceService,
    placement: PodPlacement,
    containers: Containers,
    gateway: dict[str, Any],
    delivery: Delivery,
) -> dict[str, Any]:
    gateway["resources"] = common.merged_resources(service.spec.gateway.resources, _REQUESTS)
    gateway["lifecycle"] = {"preStop": {"sleep": {"seconds": STOP_SENDING}}}
    ports = {
        "http": names.GATEWAY_PORT,
        "health": placement.health_port,
        **container.control_ports(service.spec.internal_tls, placement),
    }
    image = service.spec.gateway.image or containers.gateway_image
    pod = container.pod_spec(gateway, containers, image, ports, delivery)
    pod = container.with_secret(pod, container.TOKEN, placement.token_folder, common.token_name(service))
    keys = service.spec.gateway.api_keys
    if keys and keys.secret:
        pod = container.with_secret(pod, _KEYS, _KEYS_FOLDER, keys.secret)
    tls = service.spec.gateway.tls
    if tls and tls.secret:
        pod = container.with_secret(pod, _TLS, _TLS_FOLDER, tls.secret)
    pod = container.with_internal_tls(pod, service.spec.internal_tls)
    pod = container.with_volumes(pod, adapters.list_volume(service, placement))
    spread = {common.SPREAD: [common.spread(common.selector(service, role=common.GATEWAY))]}
    return pod | {
        "serviceAccountName": common.pool_name(service, common.GATEWAY),
        **({} if common.SPREAD in service.spec.gateway.template.get("spec", {}) else spread),
        "terminationGracePeriodSeconds": common.grace_period(service) + STOP_SENDING,
    }


def _api_keys_file(keys: APIKeys) -> str:
    return keys.path or posixpath.join(_KEYS_FOLDER, names.API_KEYS)


def _tls_flags(tls: GatewayTLS | None) -> list[str]:
    if tls is None:
        return []
    folder = tls.path or _TLS_FOLDER
    return [
        f"--tls-certificate-file={posixpath.join(folder, names.TLS_CERTIFICATE)}",
        f"--tls-key-file={posixpath.join(folder, names.TLS_KEY)}",
    ]


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
        "--token-folder",
        placement.token_folder,
        *(text.format(**mine) for text in placement.discovery),
    ]


def _policy(service: InferenceService, placement: PodPlacement, delivery: Delivery) -> list[str]:
    spec = service.spec
    return [
        "--model",
        delivery.argument,
        "--served-name",
        service.served_name,
        *(["--max-length", str(spec.model.max_length)] if spec.model.max_length is not None else ()),
        "--default-deadline",
        durations.text(spec.gateway.default_deadline),
        "--local-prefill-below-tokens",
        str(spec.routing.local_prefill_below_tokens),
        "--when-prefill-unavailable",
        spec.routing.when_prefill_unavailable,
        *(["--kv-sharing=Off"] if spec.routing.kv_sharing == "Off" else ()),
        *_objectives(service),
        *([f"--max-duration={durations.text(spec.gateway.max_duration)}"] if spec.gateway.max_duration else ()),
        *_changed_flags(spec.routing.weights, _WEIGHT_FLAGS),
        *_changed_flags(spec.gateway.limits, _LIMIT_FLAGS),
        *_changed_flags(spec.gateway.streams, _STREAM_FLAGS),
        "--transfer-on-failure",
        spec.transfer.on_failure,
        *(["--on-worker-failure=Fail"] if spec.routing.on_worker_failure == "Fail" else ()),
        "--worker-silence",
        durations.text(spec.engine.hang_timeout),
        "--drain-deadline",
        durations.text(spec.drain.deadline),
        *(["--hold-without-workers"] if roles.may_be_empty(spec) else []),
        *([f"--access-log={spec.gateway.access_log}"] if spec.gateway.access_log != "Text" else ()),
        *([f"--generation-config={spec.model.generation_config}"] if spec.model.generation_config != "Model" else ()),
        *([f"--tool-call-parser={spec.gateway.tool_call_parser}"] if spec.gateway.tool_call_parser != "Auto" else ()),
        *([f"--reasoning-parser={spec.gateway.reasoning_parser}"] if spec.gateway.reasoning_parser != "Auto" else ()),
        *_store_flags(spec.gateway.response_store),
        *([f"--api-keys-file={_api_keys_file(spec.gateway.api_keys)}"] if spec.gateway.api_keys else ()),
        *_tls_flags(spec.gateway.tls),
        *container.internal_tls_flags(service),
        *adapters.gateway_arguments(service, placement),
        *(f"--trusted-proxy={network}" for network in spec.gateway.trusted_proxies),
        *(f"--allowed-origin={origin}" for origin in spec.gateway.allowed_origins),
        *(f"--tenant-quota={tenant}={tokens}" for tenant, tokens in spec.gateway.tenant_tokens_per_minute.items()),
        *(f"--tenant-max-output-tokens={t}={tokens}" for t, tokens in spec.gateway.tenant_max_output_tokens.items()),
    ]


def _store_flags(store: ResponseStoreSpec | None) -> list[str]:
    if store is None:
        return []
    return [f"--response-retention={durations.text(store.retention)}", f"--response-memory={store.memory}"]


def _objectives(service: InferenceService) -> Iterator[str]:
    """Yields flags for objectives that are not the default: gateways of the previous release do not know them."""
    spec, slo = service.spec, service.spec.slo
    helps = _decode_helps(spec)
    if spec.disaggregated and not helps:
        yield "--when-prefill-busy=Wait"
    refuses = spec.gateway.when_late == "Refuse"
    if refuses:
        yield "--when-late=Refuse"
    if (helps or refuses) and slo.ttft != Slo().ttft:
        yield f"--slo-ttft={durations.text(slo.ttft)}"
    if (tpot := step_objective(spec)) != Slo().tpot:
        yield f"--slo-tpot={durations.text(tpot)}"


def _decode_helps(spec: Spec) -> bool:
    return spec.disaggregated and spec.routing.when_prefill_busy == "Local"


_WEIGHT_FLAGS: Final = {name: f"--{name.replace('_', '-')}-weight" for name in RoutingWeights.model_fields}
_STREAM_FLAGS: Final = {
    "start": "--stream-start",
    "keep_alive": "--stream-keep-alive",
    "slow_client": "--slow-client",
    "buffer_tokens": "--buffer-tokens",
}
_LIMIT_FLAGS: Final = {name: f"--{name.replace('_', '-')}" for name in GatewayLimits.model_fields} | {
    "max_body_size": "--max-body-bytes",
    "max_pending_bodies_size": "--max-pending-body-bytes",
}
_DURATIONS: Final = ("idle_timeout", "head_timeout")


def _changed_flags(part: ManifestPart, flags: Mapping[str, str]) -> Iterator[str]:
    """Yields flags for fields that differ from the default: gateways of the previous release do not know them."""
    default = type(part)()
    for name, flag in flags.items():
        if (value := getattr(part, name)) != getattr(default, name):
            text = durations.text(value) if name in _DURATIONS else f"{value:g}" if isinstance(value, float) else value
            yield f"{flag}={text}"
