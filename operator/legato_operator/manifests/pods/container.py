"""Common parts of workers' and gateways' pods: a process and its pod spec, with or without a container."""

from collections.abc import Mapping, Sequence
from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.api.spec.gateway import InternalTLSSpec
from legato_operator.manifests import common
from legato_operator.manifests.placement import Containers, PodPlacement
from legato_operator.manifests.pods import model
from legato_operator.manifests.pods.model import Delivery, Download, Volume
from legato_protocol import names

TOKEN = "legato-token"  # the volume with the service's tokens
INTERNAL_TLS = "internal-tls"  # the volume with the certificate of the service's processes
INTERNAL_TLS_FOLDER = "/etc/legato/internal-tls"
# The image or the cluster sets the user: OpenShift assigns a range to each namespace and refuses other users.
_RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_PROBES = {
    # Passes before the model is loaded, which may take long: a starting process is not killed.
    "startupProbe": ("/healthz", {"periodSeconds": 1, "failureThreshold": 120, "timeoutSeconds": 3}),
    "readinessProbe": ("/readyz", {"periodSeconds": 2, "failureThreshold": 1, "timeoutSeconds": 3}),
    # Tolerates failures, because compute may occasionally starve a probe.
    "livenessProbe": ("/healthz", {"periodSeconds": 5, "failureThreshold": 6, "timeoutSeconds": 5}),
}
_SCRATCH = "tmp"
_CACHE = "cache"
_NODE_LOST_AFTER = 30  # seconds; the default of Kubernetes is five minutes


def process(
    name: str, placement: PodPlacement, arguments: Sequence[str], env: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns a container that runs `legato` with these arguments and probes; the placement sets its program."""
    program = {"command": [*placement.program, *arguments]} if placement.program else {"args": [*arguments]}
    probes = {kind: {"httpGet": {"path": path, "port": "health"}, **times} for kind, (path, times) in _PROBES.items()}
    return {"name": name, **program, "env": [*env], **probes}


def pod_spec(
    container: Mapping[str, Any],
    containers: Containers,
    image: str,
    ports: Mapping[str, int],
    delivery: Delivery,
    downloads: Sequence[Download] = (),
) -> dict[str, Any]:
    """Returns the spec of a pod of the restricted security level with one container, and init containers that download
    its model, if needed, and adapters."""
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
        "enableServiceLinks": False,  # a Service named legato would set variables of the same names
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


def control_ports(tls: InternalTLSSpec | None, placement: PodPlacement) -> dict[str, int]:
    """Returns the control ports by name, from which clients see if a port uses TLS."""
    plain = {} if tls and tls.mode == "Strict" else {names.CONTROL: placement.control_port}
    return plain | ({names.CONTROL_TLS: names.CONTROL_TLS_PORT} if tls else {})


def internal_tls_flags(service: InferenceService) -> list[str]:
    """Returns the TLS flags of gateways and workers."""
    if service.spec.internal_tls is None:
        return []
    mode, name = service.spec.internal_tls.mode, common.internal_tls_name(service)
    return [
        f"--internal-tls-folder={INTERNAL_TLS_FOLDER}",
        f"--internal-tls-mode={mode}",
        f"--internal-tls-name={name}",
    ]


def with_internal_tls(pod: dict[str, Any], tls: InternalTLSSpec | None) -> dict[str, Any]:
    """Returns the pod with the Secret for these flags mounted."""
    return pod if tls is None else with_secret(pod, INTERNAL_TLS, INTERNAL_TLS_FOLDER, tls.secret)


def with_volumes(pod: dict[str, Any], volumes: Sequence[Volume]) -> dict[str, Any]:
    """Returns the pod with additional volumes."""
    (container,) = pod["containers"]
    mounts = [*container["volumeMounts"], *(each.mount for each in volumes)]
    return {
        **pod,
        "containers": [{**container, "volumeMounts": mounts}],
        "volumes": [*pod["volumes"], *(each.volume for each in volumes)],
    }


def with_secret(pod: dict[str, Any], name: str, folder: str, secret: str) -> dict[str, Any]:
    """Returns the pod with a Secret mounted as a folder: the kubelet updates only folders, not single files."""
    mount = {"name": name, "mountPath": folder, "readOnly": True}
    return with_volumes(pod, [Volume({"name": name, "secret": {"secretName": secret}}, mount)])


def _tolerated(state: str) -> dict[str, Any]:
    """Returns a toleration of a node's state for a limited time."""
    key = f"node.kubernetes.io/{state}"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _NODE_LOST_AFTER}
