"""What the pods of workers and gateways have in common: how a process becomes a pod's spec, here or in a container."""

from collections.abc import Mapping, Sequence
from typing import Any

from legato_operator.api.gateway_spec import InternalTLS
from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common, model
from legato_operator.manifests.model import Delivery, Download, Volume
from legato_operator.manifests.placement import Containers, PodPlacement
from legato_protocol import names

TOKEN = "legato-token"  # the volume with the service's tokens
INTERNAL_TLS = "internal-tls"  # the volume with the certificate of the service's processes
INTERNAL_TLS_FOLDER = "/etc/legato/internal-tls"
# The user is the image's, or the cluster's: OpenShift assigns each namespace a range of its own, and refuses others.
_RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_PROBES = {
    # While a process starts, only its own end ends it: a model may load for long.
    "startupProbe": ("/healthz", {"periodSeconds": 1, "failureThreshold": 120, "timeoutSeconds": 3}),
    "readinessProbe": ("/readyz", {"periodSeconds": 2, "failureThreshold": 1, "timeoutSeconds": 3}),
    # Compute may starve a probe now and then.
    "livenessProbe": ("/healthz", {"periodSeconds": 5, "failureThreshold": 6, "timeoutSeconds": 5}),
}
_SCRATCH = "tmp"
_CACHE = "cache"
_NODE_LOST_AFTER = 30  # seconds; by default Kubernetes gives a silent node's pods five minutes


def process(
    name: str, placement: PodPlacement, arguments: Sequence[str], env: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A container that runs `legato` with these arguments and is probed. How it is started is the placement's."""
    started = {"command": [*placement.program, *arguments]} if placement.program else {"args": [*arguments]}
    probes = {kind: {"httpGet": {"path": path, "port": "health"}, **times} for kind, (path, times) in _PROBES.items()}
    return {"name": name, **started, "env": [*env], **probes}


def contained(
    container: Mapping[str, Any],
    containers: Containers,
    image: str,
    ports: Mapping[str, int],
    delivery: Delivery,
    downloads: Sequence[Download] = (),
) -> dict[str, Any]:
    """The spec of a pod at the restricted security level around one container, and those that download before it: its
    model, if need be, and others."""
    mounts = [{"name": _SCRATCH, "mountPath": "/tmp"}, {"name": _CACHE, "mountPath": model.CACHE}]
    run = {
        "image": image,
        "imagePullPolicy": containers.pull_policy,
        "securityContext": _RESTRICTED,
        "volumeMounts": [*mounts, *([delivery.mount] if delivery.mount else [])],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    cache = {"name": names.ENV_CACHE, "value": model.CACHE}
    main = {
        **container,
        "env": [*container["env"], cache],
        **run,
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
    }
    spec: dict[str, Any] = {
        "containers": [main],
        "volumes": [
            {"name": _SCRATCH, "emptyDir": {}},
            {"name": _CACHE, **delivery.cache},
            *([delivery.volume] if delivery.volume else []),
        ],
        "securityContext": _RESTRICTED_POD,
        "tolerations": [_tolerated("not-ready"), _tolerated("unreachable")],
        "enableServiceLinks": False,  # a service named legato would set variables that are ours
    }
    if containers.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in containers.pull_secrets]
    if delivery.download:
        downloads = [model.download(delivery.download, gateway=container["name"] == "gateway"), *downloads]
    if downloads:
        before = {**run, "volumeMounts": mounts}
        spec["initContainers"] = [_downloading(each, [*each.variables, cache], before) for each in downloads]
    return spec


def _downloading(download: Download, env: list[dict[str, Any]], run: Mapping[str, Any]) -> dict[str, Any]:
    resources = {"resources": download.resources} if download.resources else {}
    return {"name": download.name, "args": download.arguments, "env": env, **run, **resources}


def control_ports(tls: InternalTLS | None, placement: PodPlacement) -> dict[str, int]:
    """By name. Whoever looks for a process takes from these names whether it speaks TLS."""
    plain = {} if tls and tls.mode == "Strict" else {names.CONTROL: placement.control_port}
    return plain | ({names.CONTROL_TLS: names.CONTROL_TLS_PORT} if tls else {})


def internal_tls_flags(service: InferenceService) -> list[str]:
    """Of gateways and workers."""
    if service.spec.internal_tls is None:
        return []
    mode, name = service.spec.internal_tls.mode, common.internal_tls_name(service)
    return [
        f"--internal-tls-folder={INTERNAL_TLS_FOLDER}",
        f"--internal-tls-mode={mode}",
        f"--internal-tls-name={name}",
    ]


def with_internal_tls(pod: dict[str, Any], tls: InternalTLS | None) -> dict[str, Any]:
    """With the Secret that these flags name the folder of."""
    return pod if tls is None else with_secret(pod, INTERNAL_TLS, INTERNAL_TLS_FOLDER, tls.secret)


def with_volumes(pod: dict[str, Any], volumes: Sequence[Volume]) -> dict[str, Any]:
    """The pod with these beside those that it has."""
    (container,) = pod["containers"]
    mounts = [*container["volumeMounts"], *(each.mount for each in volumes)]
    return {
        **pod,
        "containers": [{**container, "volumeMounts": mounts}],
        "volumes": [*pod["volumes"], *(each.volume for each in volumes)],
    }


def with_secret(pod: dict[str, Any], name: str, folder: str, secret: str) -> dict[str, Any]:
    """A whole folder is mounted: the kubelet brings changes of the Secret to such ones alone."""
    mount = {"name": name, "mountPath": folder, "readOnly": True}
    return with_volumes(pod, [Volume({"name": name, "secret": {"secretName": secret}}, mount)])


def _tolerated(state: str) -> dict[str, Any]:
    """A state of a node that its pods bear for a while."""
    key = f"node.kubernetes.io/{state}"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _NODE_LOST_AFTER}
