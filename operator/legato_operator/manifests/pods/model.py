"""Delivers the files of a model and its draft model to a pod: arguments, volumes and downloads."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from legato_operator.api.resources import InferenceService
from legato_operator.api.spec.model import DraftSource, HubFile, HubRepository, HuggingFace, Source
from legato_operator.manifests import common
from legato_operator.manifests.placement import Containers, PodPlacement
from legato_protocol import names
from legato_protocol.model_files import gguf_parts

DOWNLOAD = "model"  # name of the container that downloads the model
DRAFT_DOWNLOAD = "draft-model"  # the same for the draft model, and the name of its volume
FOLDER = "/model"
DRAFT_FOLDER = "/draft-model"
CACHE = "/cache"
_VOLUME = "model"
_SHARED = ("cpu", "memory")  # a pod gets the maximum of its sequential containers' requests


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
    made = _delivered(source, placement.containers, FOLDER, _VOLUME)
    hub = source.hugging_face
    if hub is None:
        return made
    # The folder must exist: one that the kubelet creates belongs to root and is not writable for others.
    kept = {"hostPath": {"path": hub.node_cache, "type": "Directory"}}
    return replace(made, download=hub, cache=kept if hub.node_cache else made.cache)


def draft(service: InferenceService, placement: PodPlacement) -> Delivery | None:
    """Returns the delivery of the draft model to a worker; `draft_downloads` has its download. None without one."""
    source = common.draft_source(service)
    if source is None or placement.containers is None or source.builtin:
        return None if source is None else Delivery(common.draft_argument(source))
    return _delivered(source, placement.containers, DRAFT_FOLDER, DRAFT_DOWNLOAD)


def draft_downloads(service: InferenceService, resources: Mapping[str, Any]) -> list[Download]:
    """Returns the container that downloads the draft model, if it is on the hub, for a worker of these `resources`."""
    source = common.draft_source(service)
    if source is None or (hub := source.hugging_face) is None:
        return []
    return [Download(DRAFT_DOWNLOAD, draft_arguments(hub), download_variables(hub), shared(resources))]


def draft_arguments(hub: HubFile) -> list[str]:
    """Returns the arguments of `legato` that download a draft model into the cache folder."""
    return [*download_arguments(hub), *(["--file", hub.file] if hub.file else [])]


def shared(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the CPU and memory of a pod's main `resources` for a download, after which the pod uses them."""
    both = {kind: {name: given[name] for name in _SHARED if name in given} for kind, given in resources.items()}
    return {kind: amounts for kind, amounts in both.items() if amounts}


def _delivered(source: Source | DraftSource, containers: Containers, folder: str, volume: str) -> Delivery:
    """Returns the delivery of files to `folder` by a volume of this name, without the download."""
    if source.hugging_face:
        hub = source.hugging_face
        return Delivery(posixpath.join(cached(hub), hub.file) if hub.file else cached(hub))
    if source.pvc:
        claim = {"persistentVolumeClaim": {"claimName": source.pvc.claim, "readOnly": True}}
        return _mounted(volume, claim, folder, posixpath.normpath(posixpath.join(folder, source.pvc.path.lstrip("/"))))
    if source.image:
        image = {"image": {"reference": source.image, "pullPolicy": containers.pull_policy}}
        return _mounted(volume, image, folder)
    # The file name is kept, because its suffix identifies a GGUF file. A split one's other parts are in its folder.
    path = posixpath.normpath(str(source.path))
    parent, name = posixpath.split(path)
    argument, is_split = posixpath.join(folder, name), parent != "/" and len(gguf_parts.parts(name)) > 1
    return _mounted(
        volume, {"hostPath": {"path": parent if is_split else path}}, folder if is_split else argument, argument
    )


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


def _mounted(name: str, volume: dict[str, Any], at: str, argument: str | None = None) -> Delivery:
    mount = {"name": name, "mountPath": at, "readOnly": True}
    return Delivery(argument or at, {"name": name, **volume}, mount)
