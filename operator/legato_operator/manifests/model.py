"""How a model's files come into a pod: what to start with, and the volumes that bring them."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from legato_operator.api.model_spec import HubRepository, HuggingFace
from legato_operator.api.resources import InferenceService
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_protocol import names

DOWNLOAD = "model"  # the container that downloads it
FOLDER = "/model"
CACHE = "/cache"
_VOLUME = "model"


class Volume(NamedTuple):
    """A volume of a pod, and where it is mounted."""

    volume: dict[str, Any]
    mount: dict[str, Any]


class Download(NamedTuple):
    """A container that brings a repository into the cache folder before a pod's own process starts."""

    name: str
    arguments: list[str]
    variables: list[dict[str, Any]]
    resources: dict[str, Any]


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
        made = Delivery(cached(found), download=found)
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


def cached(found: HubRepository) -> str:
    """Where a container finds what was downloaded of it."""
    return f"{CACHE}/{names.hub_folder(found.repo, found.revision)}"


def download(found: HuggingFace, gateway: bool) -> Download:
    """What brings the model; gateways need no weights."""
    arguments = [*download_arguments(found), *(["--header-only"] if gateway else [])]
    resources = common.merged_resources(found.resources) if found.resources.given else {}
    return Download(DOWNLOAD, arguments, download_variables(found), resources)


def download_arguments(found: HubRepository) -> list[str]:
    """What `legato` is asked to bring into the cache folder."""
    return ["prepare", "--hugging-face", found.repo, "--revision", found.revision]


def download_variables(found: HubRepository) -> list[dict[str, Any]]:
    """The access token, where the repository asks for one."""
    if found.token_secret is None:
        return []
    secret = {"name": found.token_secret, "key": "token"}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}]


def _mounted(volume: dict[str, Any], at: str, argument: str | None = None) -> Delivery:
    mount = {"name": _VOLUME, "mountPath": at, "readOnly": True}
    return Delivery(argument or at, {"name": _VOLUME, **volume}, mount)
