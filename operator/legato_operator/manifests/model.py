"""How a model's files come into a pod: what to start with, and the volumes that bring them."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from legato_operator.api.model_spec import AdapterSource, HuggingFace
from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_protocol import names

FOLDER = "/model"
ADAPTERS = "/adapters"
CACHE = "/cache"
_VOLUME = "model"


class Volume(NamedTuple):
    """A volume of a pod, and where it is mounted."""

    volume: dict[str, Any]
    mount: dict[str, Any]


@dataclass(frozen=True)
class Delivery:
    """`argument` is the `--model`; `download`, where there is one, has to run before with these arguments.

    `cache` is what the cache folder is on; what a pod leaves there goes with it, unless it is a folder of the node.
    """

    argument: str
    volume: dict[str, Any] | None = None
    mount: dict[str, Any] | None = None
    download: HuggingFace | None = None
    cache: Mapping[str, Any] = field(default_factory=lambda: {"emptyDir": {}})


def delivery(service: InferenceService, placement: PodPlacement) -> Delivery:
    """Of the service's source; processes without containers see the machine's own files."""
    source = service.spec.model.source
    if placement.containers is None or source.builtin:
        return Delivery(common.model_argument(service))
    if source.hugging_face:
        found = source.hugging_face
        made = Delivery(f"{CACHE}/{names.hub_folder(found.repo, found.revision)}", download=found)
        # It has to be there: a folder that the kubelet makes is root's, and nobody else could write to it.
        kept = {"hostPath": {"path": found.node_cache, "type": "Directory"}}
        return replace(made, cache=kept) if found.node_cache else made
    if source.pvc:
        claim = {"persistentVolumeClaim": {"claimName": source.pvc.claim, "readOnly": True}}
        return _mounted(claim, FOLDER, posixpath.normpath(posixpath.join(FOLDER, source.pvc.path.lstrip("/"))))
    if source.image:
        return _mounted({"image": {"reference": source.image, "pullPolicy": placement.containers.pull_policy}}, FOLDER)
    # The last part of its name stays: it tells a GGUF file.
    path = posixpath.normpath(str(source.path))
    return _mounted({"hostPath": {"path": path}}, posixpath.join(FOLDER, posixpath.basename(path)))


def adapter_volumes(service: InferenceService, placement: PodPlacement) -> list[Volume]:
    """What brings the adapters' directories into a worker's pod, in the manifest's order."""
    if placement.containers is None:
        return []
    policy = placement.containers.pull_policy
    return [_adapter_volume(number, each.source, policy) for number, each in enumerate(service.spec.model.adapters)]


def adapter_arguments(service: InferenceService, placement: PodPlacement) -> list[str]:
    """Flags that name each adapter and its directory; none without adapters, so that other workers stay as they are."""
    model = service.spec.model
    if not model.adapters:
        return []
    flags = []
    for number, adapter in enumerate(model.adapters):
        pvc, at = adapter.source.pvc, str(adapter.source.path)
        if placement.containers:
            at = _adapter_folder(number)
            at = posixpath.normpath(posixpath.join(at, pvc.path.lstrip("/"))) if pvc else at
        flags.append(f"--adapter={adapter.name}={at}")
    return [
        *flags,
        f"--adapters-in-memory={model.adapters_in_memory}",
        f"--max-adapter-rank={model.max_adapter_rank}",
    ]


def _adapter_folder(number: int) -> str:
    return f"{ADAPTERS}/{number}"


def _adapter_volume(number: int, source: AdapterSource, pull_policy: str) -> Volume:
    name = f"adapter-{number}"
    if source.pvc:
        volume: dict[str, Any] = {"persistentVolumeClaim": {"claimName": source.pvc.claim, "readOnly": True}}
    elif source.image:
        volume = {"image": {"reference": source.image, "pullPolicy": pull_policy}}
    else:
        volume = {"hostPath": {"path": posixpath.normpath(str(source.path))}}
    mount = {"name": name, "mountPath": _adapter_folder(number), "readOnly": True}
    return Volume({"name": name, **volume}, mount)


def download_arguments(found: HuggingFace, gateway: bool) -> list[str]:
    """What `legato` is asked to bring into the cache folder; gateways need no weights."""
    arguments = ["prepare", "--hugging-face", found.repo, "--revision", found.revision]
    return [*arguments, "--header-only"] if gateway else arguments


def download_variables(found: HuggingFace) -> list[dict[str, Any]]:
    """The access token, where the repository asks for one."""
    if found.token_secret is None:
        return []
    secret = {"name": found.token_secret, "key": "token"}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}]


def _mounted(volume: dict[str, Any], at: str, argument: str | None = None) -> Delivery:
    mount = {"name": _VOLUME, "mountPath": at, "readOnly": True}
    return Delivery(argument or at, {"name": _VOLUME, **volume}, mount)
