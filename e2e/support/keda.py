"""KEDA as its own manifests install it, of images that `scripts/keda` makes, and the recipe of the docs."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import helm
import kube
import yaml
from kube import Namespace, Object
from service import Service

FOLDER = os.environ.get("LEGATO_E2E_KEDA", "")
PATIENCE = 300.0  # its programs wait until the certificates are mounted that one of them makes
_DOCS = Path(__file__).parents[2] / "docs" / "autoscaling-external.md"


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Without its webhooks. There must be no ScaledObjects left when this ends."""
    listed = yaml.safe_load_all(kube.run("kubectl", "kustomize", f"{FOLDER}/config/minimal"))
    text = yaml.safe_dump_all([_with_our_image(item) for item in listed])
    # For an annotation with the whole of it, as `kubectl apply` makes otherwise, a CRD of KEDA is too large.
    kube.run("kubectl", "apply", "--server-side", "--filename", "-", stdin=text)
    system = Namespace("keda")
    for name in ("keda-operator", "keda-metrics-apiserver"):
        rollout = ("rollout", "status", f"deployment/{name}", f"--timeout={PATIENCE:.0f}s")
        system.kubectl(*rollout, patience=PATIENCE + 10)
    kube.until(_answers, "KEDA answers for external metrics", patience=PATIENCE)
    yield
    kube.run("kubectl", "delete", "--ignore-not-found", "--timeout=120s", "--filename", "-", stdin=text)


def scaled_object(service: Service, role: str, most: int, stabilization: int) -> Object:
    """The example of the docs for a pool of this service, with another maximum and quicker to shrink (seconds)."""
    (text,) = (block for block in _DOCS.read_text().split("```") if "kind: ScaledObject" in block)
    for documented, ours in (("prefill", role), ("chat", service.name), ("prod", service.namespace.name)):
        text = text.replace(documented, ours)
    item: Object = yaml.safe_load(text.removeprefix("yaml\n"))
    behavior = item["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    behavior["scaleDown"]["stabilizationWindowSeconds"] = stabilization
    item["spec"]["maxReplicaCount"] = most
    return item


def is_scaling(service: Service, role: str) -> tuple[str, str]:
    """Status and reason of `ScalingActive` of the HorizontalPodAutoscaler that KEDA makes for a pool; empty before."""
    found = service.namespace.get("horizontalpodautoscalers", f"keda-hpa-{service.name}-{role}")
    conditions = found.get("status", {}).get("conditions", [])
    return next(((c["status"], c["reason"]) for c in conditions if c["type"] == "ScalingActive"), ("", ""))


def _with_our_image(item: Object) -> Object:
    """It has both programs, and no registry has it."""
    if item["kind"] == "Deployment":
        for container in item["spec"]["template"]["spec"]["containers"]:
            container |= {"image": helm.image("keda"), "imagePullPolicy": "IfNotPresent"}
    return item


def _answers() -> bool:
    found = json.loads(kube.run("kubectl", "get", "apiservice", "v1beta1.external.metrics.k8s.io", "--output=json"))
    return any(c["type"] == "Available" and c["status"] == "True" for c in found["status"].get("conditions", ()))
