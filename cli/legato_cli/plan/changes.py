"""The fields of a manifest that a plan changes, and the whole manifest with them."""

from collections.abc import Mapping
from typing import Any

import yaml

from legato_operator.api.resources import Spec
from legato_protocol.settings import durations

_DURATIONS = {("slo", "tpot")}
_BOUNDS = {"min", "max"}  # written together, because a plan sets both


def changes(written: Spec, planned: Spec) -> dict[str, Any]:
    """Returns the fields that differ, in the manifest's form."""
    return _changes(written.model_dump(by_alias=True), planned.model_dump(by_alias=True), ())


def merged(manifest: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a manifest with changed fields of its `spec`."""
    return {**manifest, "spec": _merged(manifest["spec"], changed)}


def text(content: Mapping[str, Any]) -> str:
    """Returns YAML without anchors."""
    return yaml.dump(dict(content), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in after.items():
        old, here = before.get(name), (*path, name)
        if value == old:
            continue
        if isinstance(value, Mapping) and isinstance(old, Mapping) and value.keys() != _BOUNDS:
            changed[name] = _changes(old, value, here)
        else:
            changed[name] = durations.text(value) if here in _DURATIONS else value
    return changed


def _merged(before: Any, changed: Any) -> Any:
    if not isinstance(before, Mapping) or not isinstance(changed, Mapping):
        return changed
    return {**before, **{name: _merged(before.get(name), value) for name, value in changed.items()}}
