"""The page that says where each setting is set. Run it, and it writes the page again.

Which field sets a flag is read off the pods: a field sets the flags that differ once it is changed.
"""

import functools
import itertools
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from field_changes import BASE, CHANGES, base_for, service_of, with_field

from legato_engine import settings as worker_settings
from legato_gateway import settings as gateway_settings
from legato_operator.api.resources import InferenceService
from legato_operator.kubernetes import settings as operator_settings
from legato_operator.manifests import gateway, placement, worker

PAGE = Path(__file__).parents[2] / "docs" / "where-settings-are-set.md"
PROCESSES = {"worker": worker_settings, "gateway": gateway_settings, "operator": operator_settings}
PLACES = (placement.local(("legato",)), placement.kubernetes("engine", "gateway"))
FURTHER: tuple[tuple[str, Any, dict[str, Any]], ...] = (  # changes that set a flag of their own: path, value, base
    ("scaling.decode.min", 0, BASE | {"scaling": {"prefill": {"min": 0}}}),
    ("engine.kvCacheMemory", "Auto", BASE),
    ("transfer.required", True, BASE | {"transfer": {"transport": "RDMA"}}),
)
BY_HAND = {
    "worker --adapter": "instead of a list of adapters that changes",
    "gateway --adapter": "instead of a list of adapters that changes",
    "gateway --worker": "instead of a list of workers that changes",
    "gateway --control-tls-port": "as pods use 8084",
    "worker --control-tls-port": "as pods use 8084",
    "operator --identity": "`LEGATO_POD_NAME`, the pod's name",
    "operator --lease-namespace": "`LEGATO_NAMESPACE`, the pod's namespace",
}
INTRODUCTION = """# Where each setting is set

Written by `scripts/golden` from the code. [Command line](settings.md) says what the flags mean, and
[Manifest](manifest.md) what the fields mean. The operator and `legato up` set flags
without a field for every process, or they are set only by hand. Each request sets its own
[headers](settings.md#headers-of-a-request).
"""
_WITHOUT = "All other fields set none: they decide which objects and pods there are."


def page() -> str:
    """Returns the whole page."""
    return "\n".join([INTRODUCTION, *_flags("worker"), *_flags("gateway"), *_operator_flags(), *_fields()]) + "\n"


def unreachable() -> list[str]:
    """Returns the flags of workers and gateways that neither a field, nor the operator, nor a reason covers."""
    return [
        f"{process} {flag}"
        for process in ("worker", "gateway")
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


def _flags(process: str) -> Iterator[str]:
    yield from (f"## `legato {process}`\n", "| flag | set by |", "| --- | --- |")
    fields, given = fields_of(process), _given(process)
    for flag in _known(process):
        by_hand = BY_HAND.get(f"{process} {flag}", "")
        names = ", ".join(f"`{path}`" for path in fields[flag])
        yield f"| `{flag}` | {names or ('the operator and `legato up`' if flag in given else f'hand, {by_hand}')} |"
    yield ""


def _operator_flags() -> Iterator[str]:
    yield from ("## `legato operator`\n", "| flag | set by |", "| --- | --- |")
    for flag in _known("operator"):
        by_hand = BY_HAND.get(f"operator {flag}", "")
        yield f"| `{flag}` | {f'the environment: {by_hand}' if by_hand else 'the chart, or its `operator.extraArgs`'} |"
    yield ""


def _fields() -> Iterator[str]:
    yield from ("## Fields of `spec`\n", f"{_WITHOUT}\n", "| field | flags that it sets |", "| --- | --- |")
    by_field: dict[str, list[str]] = defaultdict(list)
    for process in ("worker", "gateway"):
        for flag, paths in sorted(fields_of(process).items()):
            for path in paths:
                by_field[path].append(f"`{process} {flag}`")
    for path, flags in sorted(by_field.items()):
        yield f"| `{path}` | {', '.join(flags)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
