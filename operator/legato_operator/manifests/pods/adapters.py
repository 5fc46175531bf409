"""Delivers adapters to pods: volumes, downloads, and a ConfigMap that lists them and that processes follow.

The list is not part of a pod's template, so adding an adapter on a mounted volume needs no rollout.
"""

import hashlib
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from legato_operator.api.resources import InferenceService
from legato_operator.api.spec.model import AdapterSource, HubRepository
from legato_operator.cluster import Object
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_operator.manifests.pods import model
from legato_operator.manifests.pods.model import Download, Volume
from legato_protocol import names
from legato_protocol.model_files import adapter_list
from legato_protocol.model_files.adapter_list import AdapterEntry

CONFIG_MAP = "ConfigMap"
DOWNLOAD = re.compile("adapter-[0-9a-f]{8}")  # names of containers that download adapters
_ROOT = "/adapters"


def name(service: str) -> str:
    """Returns the name of the ConfigMap with a service's list."""
    return f"{service}-adapters"


def are_listed(service: InferenceService) -> bool:
    """True if the service's pods follow a list, which may be empty."""
    return bool(service.spec.model.adapters or service.spec.model.adapter_volumes)


def entries(service: InferenceService, placement: PodPlacement) -> tuple[AdapterEntry, ...]:
    """Returns the adapters with their directories inside workers."""
    listed = service.spec.model.adapters
    return tuple(AdapterEntry(each.name, _path(each.source, placement), each.max_rank) for each in listed)


def list_id(service: InferenceService, placement: PodPlacement) -> str:
    """Returns the id of the list that all processes should have read."""
    return adapter_list.read(adapter_list.text(entries(service, placement)).encode()).id


def config_map(service: InferenceService, placement: PodPlacement) -> dict[str, Any]:
    """Returns the ConfigMap with the list."""
    data = {adapter_list.FILE: adapter_list.text(entries(service, placement))}
    return common.owned_object(service, CONFIG_MAP, name(service.metadata.name), data=data)


def content(config: Object) -> dict[str, str]:
    """Returns the data of a ConfigMap by key."""
    return dict(config.get("data") or {})


def volumes(service: InferenceService, placement: PodPlacement) -> list[Volume]:
    """Returns the volumes of a worker's pod: each once, however many adapters are on it."""
    if placement.containers is None:
        return []
    model = service.spec.model
    claims = [volume.claim for volume in model.adapter_volumes if volume.claim]
    claims += [each.source.pvc.claim for each in model.adapters if each.source.pvc]
    paths = [volume.path for volume in model.adapter_volumes if volume.path]
    paths += [each.source.path for each in model.adapters if each.source.path]
    images = [each.source.image for each in model.adapters if each.source.image]
    policy = placement.containers.pull_policy
    return [
        *(_volume(_claim_folder(claim), {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
          for claim in sorted(set(claims))),
        *(_volume(_path_folder(path), {"hostPath": {"path": path}}) for path in _outermost(paths)),
        *(_volume(_image_folder(image), {"image": {"reference": image, "pullPolicy": policy}})
          for image in sorted(set(images))),
    ]  # fmt: skip


def downloads(service: InferenceService, resources: Mapping[str, Any]) -> list[Download]:
    """Returns a download container for each adapter of the hub, ordered by name. Each gets the CPU and memory of the
    worker's `resources`, which the pod only uses afterwards."""
    listed = sorted(service.spec.model.adapters, key=lambda each: each.name)
    hubs = [(each.name, each.source.hugging_face) for each in listed]
    return [
        Download(
            f"adapter-{_short(name)}",
            download_arguments(name, hub),
            model.download_variables(hub),
            model.shared(resources),
        )
        for name, hub in hubs
        if hub is not None
    ]


def download_arguments(name: str, repository: HubRepository) -> list[str]:
    """Returns the arguments of `legato` that download an adapter into the cache folder."""
    return [*model.download_arguments(repository), "--adapter", name]


def list_volume(service: InferenceService, placement: PodPlacement) -> list[Volume]:
    """Returns the volume with the list. A pod can start without it, and then has no adapters."""
    if placement.containers is None or not are_listed(service):
        return []
    source = {"name": name(service.metadata.name), "optional": True}
    mount = {"name": "adapter-list", "mountPath": placement.adapters_folder, "readOnly": True}
    return [Volume({"name": "adapter-list", "configMap": source}, mount)]


def worker_arguments(service: InferenceService, placement: PodPlacement) -> list[str]:
    """Returns a worker's flags."""
    model = service.spec.model
    if not are_listed(service):
        return []
    bounds = [f"--adapters-in-memory={model.adapters_in_memory}", f"--max-adapter-rank={model.max_adapter_rank}"]
    return [*gateway_arguments(service, placement), *bounds]


def gateway_arguments(service: InferenceService, placement: PodPlacement) -> list[str]:
    """Returns a gateway's flags."""
    file = posixpath.join(placement.adapters_folder, adapter_list.FILE)
    return [f"--adapters-file={file}"] if are_listed(service) else []


def _path(source: AdapterSource, placement: PodPlacement) -> str:
    if placement.containers is not None:
        return _folder(source)
    if (hub := source.hugging_face) is not None:
        return posixpath.join(placement.cache_folder, names.hub_folder(hub.repo, hub.revision))
    return str(source.path)


def _folder(source: AdapterSource) -> str:
    if source.hugging_face:
        return model.cached(source.hugging_face)
    if source.pvc:
        return posixpath.normpath(posixpath.join(_claim_folder(source.pvc.claim), source.pvc.path.lstrip("/")))
    return _image_folder(source.image) if source.image else _path_folder(posixpath.normpath(str(source.path)))


def _claim_folder(claim: str) -> str:
    return f"{_ROOT}/claims/{claim}"


def _path_folder(path: str) -> str:
    return f"{_ROOT}/paths{path}"


def _image_folder(image: str) -> str:
    return f"{_ROOT}/images/{_short(image)}"


def _outermost(paths: list[str]) -> list[str]:
    """Returns the paths that are not inside another of them."""
    outermost: list[str] = []
    for path in sorted({posixpath.normpath(path) for path in paths}):
        if not any(path.startswith(f"{outer.rstrip('/')}/") for outer in outermost):
            outermost.append(path)
    return outermost


def _volume(at: str, source: dict[str, Any]) -> Volume:
    """Returns a volume named after its mount path, so that adding or removing one changes no other."""
    named = f"adapters-{_short(at)}"
    return Volume({"name": named, **source}, {"name": named, "mountPath": at, "readOnly": True})


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
