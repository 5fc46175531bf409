"""Field ownership for server-side apply: lists, sets and drops the leaves of an object.

A leaf is a path to anything except a mapping; lists are atomic, except finalizers, where each entry is a leaf.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str, ...]

_FINALIZERS: Path = ("metadata", "finalizers")
_SERVER_METADATA = {
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
}  # fmt: skip


def leaves(item: Mapping[str, Any]) -> dict[Path, Any]:
    """Returns every field of an applied object that its manager will own. Identity and status belong to the server."""
    owned: dict[Path, Any] = {}
    for key, value in item.items():
        if key in ("apiVersion", "kind", "status"):
            continue
        for path, leaf in _walk((key,), value):
            if path[0] == "metadata" and path[1] in _SERVER_METADATA:
                continue
            if path == _FINALIZERS:
                owned.update({(*path, str(entry)): True for entry in leaf})
            else:
                owned[path] = leaf
    return owned


def _walk(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _walk((*path, str(key)), inner)
    else:
        yield path, value


def clash(item: Mapping[str, Any], held: Path, given: Path, value: Any) -> bool:
    """True if setting `given` to a value overwrites another manager's field `held`.

    An empty mapping only ensures that the mapping exists, so it overwrites no fields inside.
    """
    if given == held:
        return bool(read(item, held) != value) and not (value == {} and isinstance(read(item, held), Mapping))
    if held[: len(given)] == given:
        return bool(value != {})
    return given[: len(held)] == held and not isinstance(read(item, held), Mapping)


def read(item: Mapping[str, Any], path: Path) -> Any:
    """Returns the value at a path, or None."""
    if path[:2] == _FINALIZERS and len(path) == 3:
        return True if path[2] in item["metadata"].get("finalizers", ()) else None
    value: Any = item
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def write(item: dict[str, Any], path: Path, value: Any) -> None:
    """Sets a leaf, and creates the mappings above it."""
    if path[:2] == _FINALIZERS and len(path) == 3:
        entries = item["metadata"].setdefault("finalizers", [])
        if path[2] not in entries:
            entries.append(path[2])
        return
    for key in path[:-1]:
        if not isinstance(item.get(key), dict):
            item[key] = {}
        item = item[key]
    if value == {} and isinstance(item.get(path[-1]), dict):
        return  # it exists already
    item[path[-1]] = value


def drop(item: dict[str, Any], path: Path) -> None:
    """Removes a leaf and the mappings that become empty, except the topmost."""
    if path[:2] == _FINALIZERS and len(path) == 3:
        remaining = [entry for entry in item["metadata"].get("finalizers", ()) if entry != path[2]]
        item["metadata"]["finalizers"] = remaining
        if not remaining:
            del item["metadata"]["finalizers"]
        return
    parents = [item]
    for key in path[:-1]:
        below = parents[-1].get(key)
        if not isinstance(below, dict):
            return
        parents.append(below)
    if isinstance(parents[-1].get(path[-1]), dict) and parents[-1][path[-1]]:
        return  # owned as an empty mapping; others own fields in it
    parents[-1].pop(path[-1], None)
    for depth in range(len(parents) - 1, 1, -1):
        if not parents[depth]:
            del parents[depth - 1][path[depth - 1]]
