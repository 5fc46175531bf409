"""The fields of the manifest that set each flag: those that change the flags of pods once they are changed."""

import functools
import itertools
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from field_changes import BASE, CHANGES, base_for, service_of, with_field

from legato_engine import settings as worker_settings
from legato_gateway import settings as gateway_settings
from legato_operator.api.resources import InferenceService
from legato_operator.manifests import placement
from legato_operator.manifests.pods import gateway, worker

PROCESSES = {"worker": worker_settings, "gateway": gateway_settings}
PLACES = (placement.local(("legato",)), placement.kubernetes(placement.Containers("engine", "gateway")))
FURTHER: tuple[tuple[str, Any, dict[str, Any]], ...] = (  # changes that set a flag of their own: path, value, base
    ("scaling.decode.min", 0, BASE | {"scaling": {"prefill": {"min": 0}}}),
    ("engine.kvCacheMemory", "Auto", BASE),
    ("transfer.required", True, BASE | {"transfer": {"transport": "RDMA"}}),
)
BY_HAND = {  # for lists that do not change, and for ports other than those of pods
    "worker --adapter",
    "gateway --adapter",
    "gateway --worker",
    "gateway --control-tls-port",
    "worker --control-tls-port",
}


def unreachable() -> list[str]:
    """Returns the flags of workers and gateways that neither a field, nor the operator, nor a reason covers."""
    return [
        f"{process} {flag}"
        for process in PROCESSES
        for flag in _known(process)
        if not (fields_of(process)[flag] or flag in _given(process) or f"{process} {flag}" in BY_HAND)
    ]


@functools.cache
def fields_of(process: str) -> Mapping[str, list[str]]:
    """Returns the fields that set each flag of a process."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, value, base in (*((path, value, base_for(path)) for path, value in CHANGES.items()), *FURTHER):
        for flag in _differing(process, service_of(base), service_of(with_field(base, path, value))):
            found[flag].add(path)
    return defaultdict(list, {flag: sorted(paths) for flag, paths in found.items()})


def _differing(process: str, before: InferenceService, after: InferenceService) -> set[str]:
    both = (zip(_arguments(process, before, place), _arguments(process, after, place), strict=True) for place in PLACES)
    return {flag for pairs in both for old, new in pairs for flag, _ in old ^ new}


def _arguments(process: str, service: InferenceService, place: placement.PodPlacement) -> list[set[tuple[str, str]]]:
    """Returns the flags with their values, of a gateway, or of a worker of each pool."""
    if process == "gateway":
        return [_read(gateway.template(service, place))]
    return [_read(worker.template(service, pool, place)) for pool in ("prefill", "decode")]


def _read(template: dict[str, Any]) -> set[tuple[str, str]]:
    (container, *_) = template["spec"]["containers"]
    words = [word for text in container.get("args", container.get("command")) for word in text.split("=", 1)]
    ends = [i for i, word in enumerate(words) if word.startswith("--")] + [len(words)]
    return {(words[i], " ".join(words[i + 1 : j])) for i, j in itertools.pairwise(ends)}


def _given(process: str) -> set[str]:
    """Returns the flags that a process gets whatever its manifest says."""
    service = service_of(base_for("model.maxLength"))
    return {flag for place in PLACES for pairs in _arguments(process, service, place) for flag, _ in pairs}


def _known(process: str) -> list[str]:
    parser = ArgumentParser(add_help=False)
    PROCESSES[process].add_flags(parser)
    return sorted(parser._option_string_actions)
