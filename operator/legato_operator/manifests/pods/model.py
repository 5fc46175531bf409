"""Delivers a model's files to a pod: the `--model` argument, volumes and downloads."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from legato_operator.api.resources import InferenceService
from legato_operator.api.spec.model import HubRepository, HuggingFace
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_protocol import names
from legato_protocol.model_files import gguf_parts

DOWNLOAD = "model"  # name of the container that downloads the model
FOLDER = "/model"
CACHE = "/cache"
_VOLUME = "model"


class Volume(NamedTuple):
    """A volume of a pod with its mount."""

    volume: dict[str, Any]
    mount: dict[str, Any]


class Download(NamedTuple):
    """A container that downloads a repository into the cache folder before the pod's process starts."""

    name: str
    arguments: list[str]
    variables: list[dict[str, Any]]
    resources: dict[str, Any]


@dataclass(frozen=True)
class Delivery:
    """The `--model` argument of a process, with the volume or download that it needs.

    `cache` is the volume of the cache folder, which ends with the pod unless it is a folder of the node.
    """

    argument: str
    volume: dict[str, Any] | None = None
    mount: dict[str, Any] | None = None
    download: HuggingFace | None = None
    cache: Mapping[str, Any] = field(default_factory=lambda: {"emptyDir": {}})


def delivery(service: InferenceService, placement: PodPlacement) -> Delivery:
    """Returns the delivery of the service's source; processes without containers use the machine's own files."""
    source = service.spec.model.source
    if placement.containers is None or source.builtin:
        return Delivery(common.model_argument(service))
    if source.hugging_face:
        hub = source.hugging_face
        made = Delivery(posixpath.join(cached(hub), hub.file) if hub.file else cached(hub), download=hub)
        # The folder must exist: one that the kubelet creates belongs to root and is not writable for others.
        kept = {"hostPath": {"path": hub.node_cache, "type": "Directory"}}
        return replace(made, cache=kept) if hub.node_cache else made
    if source.pvc:
        claim = {"persistentVolumeClaim": {"claimName": source.pvc.claim, "readOnly": True}}
        return _mounted(claim, FOLDER, posixpath.normpath(posixpath.join(FOLDER, source.pvc.path.lstrip("/"))))
    if source.image:
        return _mounted({"image": {"reference": source.image, "pullPolicy": placement.containers.pull_policy}}, FOLDER)
    # The file name is kept, because its suffix identifies a GGUF file. A split one's other parts are in its folder.
    path = posixpath.normpath(str(source.path))
    folder, name = posixpath.split(path)
    argument, is_split = posixpath.join(FOLDER, name), folder != "/" and len(gguf_parts.parts(name)) > 1
    return _mounted({"hostPath": {"path": folder if is_split else path}}, FOLDER if is_split else argument, argument)


def cached(repository: HubRepository) -> str:
    """Returns the path of a downloaded repository inside containers."""
    return f"{CACHE}/{names.hub_folder(repository.repo, repository.revision)}"


def download(repository: HuggingFace, gateway: bool) -> Download:
    """Returns the container that downloads the model, for gateways without the weights."""
    file = ["--file", repository.file] if repository.file else []
    arguments = [*download_arguments(repository), *file, *(["--header-only"] if gateway else [])]
    resources = common.merged_resources(repository.resources) if repository.resources.given else {}
    return Download(DOWNLOAD, arguments, download_variables(repository), resources)


def download_arguments(repository: HubRepository) -> list[str]:
    """Returns the arguments of `legato` that download a repository into the cache folder."""
    return ["prepare", "--hugging-face", repository.repo, "--revision", repository.revision]


def download_variables(repository: HubRepository) -> list[dict[str, Any]]:
    """Returns the environment entry of the access token, if the manifest names one."""
    if repository.token_secret is None:
        return []
    secret = {"name": repository.token_secret, "key": "token"}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}]


def _mounted(volume: dict[str, Any], at: str, argument: str | None = None) -> Delivery:
    mount = {"name": _VOLUME, "mountPath": at, "readOnly": True}
    return Delivery(argument or at, {"name": _VOLUME, **volume}, mount)
