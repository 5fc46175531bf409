"""The golden files: what the operator makes of a manifest on Kubernetes, whole. Run it, and it writes them again.

A folder holds `manifest.yaml`, `objects.yaml`, and `operator.yaml` where the operator has other settings than usual.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from legato_operator.api import parsing
from legato_operator.cluster import Ref, ref_of
from legato_operator.manifests import common, placement, secret
from legato_operator.observing.observed import Observed
from legato_operator.planning.actions import Apply, SetToken
from legato_operator.planning.plan import Plan, plan

FOLDER = Path(__file__).parents[1] / "operator" / "golden"
CASES = sorted(path.parent.name for path in FOLDER.glob("*/manifest.yaml"))
OPERATOR = {
    "engine_image": "registry.example/legato-engine:0.1.0",
    "gateway_image": "registry.example/legato-gateway:0.1.0",
}


class Golden:
    """One case: the operator's passes over a service until nothing but pods' starts remains.

    `manifest` is that of a case without stored objects.
    """

    def __init__(self, case: str, manifest: Path | None = None) -> None:
        self._folder = FOLDER / case
        settings = self._folder / "operator.yaml"
        given = yaml.safe_load(settings.read_text()) if settings.exists() else OPERATOR
        self._placement = placement.kubernetes(**{**given, "pull_secrets": tuple(given.get("pull_secrets", ()))})
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
        """Apply what a pass wants."""
        for action in (action for phase in made.phases for action in phase.actions):
            if isinstance(action, SetToken):
                token = secret.manifest(self.service, replace(action.held, token="random"))
                self._apply(common.owned(token, common.service_object(self.service, _uid(self.ref))))
            elif isinstance(action, Apply):
                self._apply(action.item)

    @property
    def ref(self) -> Ref:
        metadata = self.service.metadata
        return Ref("InferenceService", metadata.namespace, metadata.name)

    def text(self) -> str:
        """The content of `objects.yaml`: all objects, or the status of a service that is refused."""
        made = self.look()
        self.take(made)
        if not self.objects:
            return _dump([{"kind": "InferenceService", "status": dict(made.status)}])
        self.take(self.look())
        return _dump(list(self.objects.values()))

    def stored(self) -> str:
        return (self._folder / "objects.yaml").read_text()

    def write(self) -> None:
        (self._folder / "objects.yaml").write_text(self.text())

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
    return f"uid-of-{ref.kind}-{ref.name}"


def _dump(items: list[dict[str, Any]]) -> str:
    plain = json.loads(json.dumps(items))  # nothing in it twice, which YAML would spell as an alias
    return yaml.safe_dump_all(plain, sort_keys=False, width=120)


if __name__ == "__main__":
    for name in CASES:
        Golden(name).write()
