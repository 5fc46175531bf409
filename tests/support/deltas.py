"""Small, readable differences between two YAML values.

The delta of a mapping names only what changes; null removes a key. So does the delta of a list whose items have names:
objects, containers, variables, volumes, flags with their values. A new item that does not stand at the end says which
other it stands after. What a pod shares with one before it is not written again: it is `like` that one, with a delta.
Every other list and value is written whole.
"""

import contextlib
from typing import Any

AFTER = " after "
LIKE = " like "  # and after it, if it is new


def delta(old: Any, new: Any) -> Any:
    """The changes that make `new` of `old`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return _mapping_delta(old, new)
    if isinstance(old, list) and isinstance(new, list) and (before := _named(old)) and (after := _named(new)):
        small = dict(_placed(*change, before, after) for change in _mapping_delta(before, after).items())
        return small if changed(old, small) == new else new
    return new


def changed(old: Any, small: Any) -> Any:
    """The value that a delta makes of `old`."""
    if isinstance(old, dict) and isinstance(small, dict):
        return _changed_mapping(old, small)
    if isinstance(old, list) and isinstance(small, dict):
        return _unnamed(_changed_mapping(_named(old), small))
    return small


def _mapping_delta(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    differing = {key: value for key, value in new.items() if key not in old or old[key] != value}
    changes = {key: delta(old[key], value) if key in old else value for key, value in differing.items()}
    return changes | {key: None for key in old if key not in new}


def _changed_mapping(old: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, change in small.items():
        name, previous, model = _read(key)
        if change is None:
            del result[name]
        elif name in result:
            result[name] = changed(_alike(name, previous, old, result) if model else result[name], change)
        else:
            later = _cut_after(result, previous) if previous else {}
            result |= {name: changed(result[previous], change) if model else change} | later
    return result


def _alike(name: str, model: str, before: dict[str, Any], after: dict[str, Any]) -> Any:
    """The item with the changes that its model has; the changed model itself if one of both is new."""
    if name in before and model in before:
        with contextlib.suppress(KeyError):  # it lacks what the model loses
            return changed(before[name], delta(before[model], after[model]))
    return after[model]


def _cut_after(items: dict[str, Any], name: str) -> dict[str, Any]:
    """Takes the items after this one out."""
    return {each: items.pop(each) for each in list(items)[list(items).index(name) + 1 :]}


def _placed(name: str, change: Any, before: dict[str, Any], after: dict[str, Any]) -> tuple[str, Any]:
    """A change, and its key: with a new item that does not stand at the end goes the name of the one before it."""
    names = list(after)
    place = names.index(name) if name in after else 0
    previous = names[place - 1]
    if place and name.startswith("Pod/") and previous.startswith("Pod/"):
        known = [each for each in names[:place] if each.startswith("Pod/") and each in before]
        model = known[-1] if name in before and known else previous
        alike = delta(_alike(name, model, before, after), after[name])
        if name not in before or 2 * len(str(alike)) < len(str(change)):
            return f"{name}{LIKE}{model}", alike
    inside = place and name not in before and not before.keys().isdisjoint(names[place:])
    return f"{name}{AFTER}{previous}" if inside else name, change


def _read(key: str) -> tuple[str, str, bool]:
    """The name of an item, the one before it unless it stands at the end, and whether that is its model."""
    separator = LIKE if LIKE in key else AFTER
    name, _, previous = key.partition(separator)
    return name, previous, separator == LIKE


def _named(items: list[Any]) -> dict[str, Any]:
    """The items by their names; empty if they have none, or share them."""
    if items and isinstance(items[0], str):
        return _flags(items)
    names = [_name(item) for item in items if isinstance(item, dict)]
    return dict(zip(names, items, strict=True)) if all(names) and len({*names}) == len(items) else {}


def _name(item: dict[str, Any]) -> str:
    return f"{item['kind']}/{item['metadata']['name']}" if "metadata" in item else item.get("name", "")


def _flags(arguments: list[str]) -> dict[str, Any]:
    """The value or values of each flag; empty if one comes twice, or if there are none."""
    flags: dict[str, Any] = {}
    for argument in arguments:
        if not flags or argument.startswith("--"):
            if argument in flags:
                return {}
            flags[argument] = []
        else:
            flags[next(reversed(flags))].append(argument)
    return {flag: values[0] if len(values) == 1 else values for flag, values in flags.items()} if len(flags) > 1 else {}


def _unnamed(items: dict[str, Any]) -> list[Any]:
    if all(isinstance(item, dict) for item in items.values()):
        return list(items.values())
    return [part for flag, value in items.items() for part in (flag, *([value] if isinstance(value, str) else value))]
