"""How a model's files come into a pod: what to start with, and the volumes that bring them."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from legato_operator.api.model_spec import HuggingFace
from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_protocol import names

FOLDER = "/model"
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
