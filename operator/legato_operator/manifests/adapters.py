"""How adapters come into pods: volumes, downloads, and a ConfigMap that lists them, which processes read again when it
changes.

The list is no part of a pod's template. So an adapter on a volume that pods have already comes without a rollout.
"""

import hashlib
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from legato_operator.api.model_spec import AdapterSource, HubRepository
from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Object
from legato_operator.manifests import common, model
from legato_operator.manifests.model import Download, Volume
from legato_operator.manifests.placement import PodPlacement
from legato_protocol import adapter_list, names
from legato_protocol.adapter_list import AdapterEntry

CONFIG_MAP = "ConfigMap"
DOWNLOAD = re.compile("adapter-[0-9a-f]{8}")  # names of containers that download adapters
_ROOT = "/adapters"
_SHARED = ("cpu", "memory")  # of these a pod gets as much as the largest of those that run one after another


def name(service: str) -> str:
    """Of the ConfigMap with a service's list."""
    return f"{service}-adapters"


def are_listed(service: InferenceService) -> bool:
    """Whether pods follow a list, perhaps an empty one; those of services without adapters stay as they are."""
    return bool(service.spec.model.adapters or service.spec.model.adapter_volumes)


def entries(service: InferenceService, placement: PodPlacement) -> tuple[AdapterEntry, ...]:
    """The adapters, with their directories as workers see them."""
    listed = service.spec.model.adapters
    return tuple(AdapterEntry(each.name, _path(each.source, placement), each.max_rank) for each in listed)


def list_id(service: InferenceService, placement: PodPlacement) -> str:
    """Of the list that all processes are to have read."""
    return adapter_list.read(adapter_list.text(entries(service, placement)).encode()).id


def config_map(service: InferenceService, placement: PodPlacement) -> dict[str, Any]:
    """The list."""
    return {
        "apiVersion": "v1",
        "kind": CONFIG_MAP,
        "metadata": common.metadata(service, name(service.metadata.name)),
        "data": {adapter_list.FILE: adapter_list.text(entries(service, placement))},
    }


def content(config: Object) -> dict[str, str]:
    """What one holds, by key."""
    return dict(config.get("data") or {})


def volumes(service: InferenceService, placement: PodPlacement) -> list[Volume]:
    """What brings the directories into a worker's pod: each volume once, however many adapters are on it."""
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
        *(_volume(_of_claim(claim), {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
          for claim in sorted(set(claims))),
        *(_volume(_of_path(path), {"hostPath": {"path": path}}) for path in _outermost(paths)),
        *(_volume(_of_image(image), {"image": {"reference": image, "pullPolicy": policy}})
          for image in sorted(set(images))),
    ]  # fmt: skip


def downloads(service: InferenceService, resources: Mapping[str, Any]) -> list[Download]:
    """What brings adapters of the hub into a worker's pod: a container for each, in the order of names, whatever the
    manifest's is, with the processor and the memory that the worker, whose `resources` these are, has after it."""
    found = {kind: {name: given[name] for name in _SHARED if name in given} for kind, given in resources.items()}
    shared = {kind: amounts for kind, amounts in found.items() if amounts}
    listed = sorted(service.spec.model.adapters, key=lambda each: each.name)
    hubs = [(each.name, each.source.hugging_face) for each in listed]
    return [
        Download(
            f"adapter-{_short(name)}",
            download_arguments(name, hub),
            model.download_variables(hub),
            shared,
        )
        for name, hub in hubs
        if hub is not None
    ]


def download_arguments(name: str, found: HubRepository) -> list[str]:
    """What `legato` is asked to bring into the cache folder."""
    return [*model.download_arguments(found), "--adapter", name]


def list_volume(service: InferenceService, placement: PodPlacement) -> list[Volume]:
    """What brings the list into a pod. A pod starts without it, and then has no adapters."""
    if placement.containers is None or not are_listed(service):
        return []
    source = {"name": name(service.metadata.name), "optional": True}
    mount = {"name": "adapter-list", "mountPath": placement.adapters_folder, "readOnly": True}
    return [Volume({"name": "adapter-list", "configMap": source}, mount)]


def worker_arguments(service: InferenceService, placement: PodPlacement) -> list[str]:
    """Flags of a worker."""
    model = service.spec.model
    if not are_listed(service):
        return []
    bounds = [f"--adapters-in-memory={model.adapters_in_memory}", f"--max-adapter-rank={model.max_adapter_rank}"]
    return [*gateway_arguments(service, placement), *bounds]


def gateway_arguments(service: InferenceService, placement: PodPlacement) -> list[str]:
    """Flags of a gateway."""
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
        return posixpath.normpath(posixpath.join(_of_claim(source.pvc.claim), source.pvc.path.lstrip("/")))
    return _of_image(source.image) if source.image else _of_path(posixpath.normpath(str(source.path)))


def _of_claim(claim: str) -> str:
    return f"{_ROOT}/claims/{claim}"


def _of_path(path: str) -> str:
    return f"{_ROOT}/paths{path}"


def _of_image(image: str) -> str:
    return f"{_ROOT}/images/{_short(image)}"


def _outermost(paths: list[str]) -> list[str]:
    """Those that are in none of the others: these are seen through them."""
    found: list[str] = []
    for path in sorted({posixpath.normpath(path) for path in paths}):
        if not any(path.startswith(f"{outer.rstrip('/')}/") for outer in found):
            found.append(path)
    return found


def _volume(at: str, source: dict[str, Any]) -> Volume:
    """Its name follows from its place alone, so that one that comes or goes changes no other."""
    named = f"adapters-{_short(at)}"
    return Volume({"name": named, **source}, {"name": named, "mountPath": at, "readOnly": True})


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
