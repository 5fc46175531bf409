"""The golden files: every object that the operator makes of a manifest on Kubernetes. Run it, and it writes them again.

A folder holds `manifest.yaml`, and `operator.yaml` where the operator has other settings than usual. `quickstart` holds
the metadata that its objects share, and each object without it. The last is what differs from the pod before it. Every
other case holds the changes that make its own objects of the quickstart's (see `deltas`).
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltas
import yaml

from legato_operator.api import parsing
from legato_operator.cluster import Ref, ref_of
from legato_operator.manifests import common, placement, secret
from legato_operator.observing.observed import Observed
from legato_operator.planning.actions import Apply, SetToken
from legato_operator.planning.plan import Plan, plan

FOLDER = Path(__file__).parents[1] / "operator" / "golden"
WHOLE = "quickstart"
SHARED = ("namespace", "labels", "ownerReferences")  # metadata that is written only once
LINE = 135  # characters, without what a value is indented by
CASES = sorted(path.parent.name for path in FOLDER.glob("*/manifest.yaml"))
OPERATOR = {
    "engine_image": "registry.example/legato-engine:0.1.0",
    "gateway_image": "registry.example/legato-gateway:0.1.0",
}


class _Dumper(yaml.SafeDumper):
    """Writes what fits into a line on one, and words of a command one after another, as people do."""

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        node = super().represent_mapping(tag, mapping, flow_style)
        node.flow_style = _width(node) <= LINE
        return node

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        node = super().represent_sequence(tag, sequence, flow_style)
        node.flow_style = _width(node) <= LINE // 2 or all(isinstance(part, yaml.ScalarNode) for part in node.value)
        return node


def _width(node: yaml.Node) -> int:
    """Characters of the node on one line, with what separates it from the next."""
    if isinstance(node, yaml.ScalarNode):
        return len(node.value) + 2
    parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
    return 2 + sum(map(_width, parts))


class Golden:
    """One case: the operator's passes over a service until nothing but pods' starts remains.

    `manifest` is that of a case without stored objects.
    """

    def __init__(self, case: str, manifest: Path | None = None) -> None:
        self._folder = FOLDER / case
        settings = self._folder / "operator.yaml"
        given = yaml.safe_load(settings.read_text()) if settings.exists() else OPERATOR
        self._placement = placement.kubernetes(
            placement.Containers(**{**given, "pull_secrets": tuple(given.get("pull_secrets", ()))})
        )
        self.service = parsing.parse((manifest or self._folder / "manifest.yaml").read_text())
        self.objects: dict[Ref, dict[str, Any]] = {}

    def look(self) -> Plan:
        """A pass over what was applied so far."""
        found = tuple(_living(item) for item in self.objects.values() if item["kind"] not in ("Secret", "Pod"))
        has_token = any(ref.kind == "Secret" for ref in self.objects)
        now = "2026-01-01T00:00:00Z"
        return plan(
            Observed(self.service, _uid(self.ref), 1, {}, False, found, (), has_token, 0.0, now), self._placement
        )

    def take(self, made: Plan) -> None:
        for action in (action for phase in made.phases for action in phase.actions):
            if isinstance(action, SetToken):
                token = secret.manifest(self.service, replace(action.token, token="random"))
                self._apply(common.owned(token, common.service_object(self.service, _uid(self.ref))))
            elif isinstance(action, Apply):
                self._apply(action.item)

    @property
    def ref(self) -> Ref:
        metadata = self.service.metadata
        return Ref("InferenceService", metadata.namespace, metadata.name)

    def run(self) -> list[dict[str, Any]]:
        """All objects, each with nothing in it twice, which YAML would write as an alias."""
        self.take(self.look())
        self.take(self.look())
        return list(json.loads(json.dumps(list(self.objects.values()))))

    def text(self) -> str:
        """The content of the case's file."""
        objects = self.run()
        if self._folder.name == WHOLE:
            *others, last = objects
            shared = {"metadata": {key: others[1]["metadata"][key] for key in SHARED}}
            written = [shared, *(deltas.delta(shared, each) for each in others), deltas.delta(others[-1], last)]
            return yaml.dump_all(written, Dumper=_Dumper, sort_keys=False, width=150)
        return yaml.dump(deltas.delta(self._base(), objects), Dumper=_Dumper, sort_keys=False, width=150)

    def stored(self) -> list[dict[str, Any]]:
        """The objects as the case's file says, whole."""
        if self._folder.name == WHOLE:
            return list(json.loads(_quickstart()))
        return deltas.changed(self._base(), yaml.safe_load(self.file.read_text()))

    @property
    def file(self) -> Path:
        return self._folder / ("objects.yaml" if self._folder.name == WHOLE else "delta.yaml")

    def _base(self) -> list[dict[str, Any]]:
        """The quickstart's objects as they would be under this service's name, in its namespace."""
        text = re.sub("smollm2(?!-135m)", self.ref.name, _quickstart())
        return [_signed(item) for item in json.loads(text.replace('"default"', f'"{self.ref.namespace}"'))]

    def _apply(self, item: Mapping[str, Any]) -> None:
        ref = ref_of(item)
        self.objects[ref] = _merged(self.objects.get(ref, {}), item)


def _merged(known: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(known[key], value) if isinstance(value, Mapping) and isinstance(known.get(key), Mapping) else value
        for key, value in more.items()
    }
    return {**known, **both}


def _living(item: Mapping[str, Any]) -> dict[str, Any]:
    return {**item, "metadata": {**item["metadata"], "uid": _uid(ref_of(item)), "generation": 1}}


def _uid(ref: Ref) -> str:
    return f"{ref.kind}-{ref.name}"


@functools.cache
def _quickstart() -> str:
    shared, *written, last = yaml.safe_load_all((FOLDER / WHOLE / "objects.yaml").read_text())
    objects = [deltas.changed(shared, each) for each in written]
    return json.dumps([*objects, deltas.changed(objects[-1], last)])


def _signed(item: dict[str, Any]) -> dict[str, Any]:
    """The object with the hash of what the operator applies; a pool's replicas are applied by another manager."""
    annotations = dict(item["metadata"].get("annotations", {}))
    if annotations.pop(common.ANNOTATION_APPLIED, None) is None:
        return item
    metadata = {**item["metadata"], "annotations": annotations}
    if not annotations:
        del metadata["annotations"]
    applied = {**item, "metadata": metadata}
    if item["kind"] == "WorkerPool":
        applied["spec"] = {key: value for key, value in item["spec"].items() if key != "replicas"}
    signature = common.signed(applied)["metadata"]["annotations"]
    return {**item, "metadata": {**metadata, "annotations": signature}}


if __name__ == "__main__":
    for name in sorted(CASES, key=lambda case: case != WHOLE):  # the others are written as what differs from it
        Golden(name).file.write_text(Golden(name).text())
