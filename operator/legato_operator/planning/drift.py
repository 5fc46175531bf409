"""Whether an object has drifted from its desired state: each desired field must be there, whatever else is. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any


def contained(desired: Any, live: Any) -> bool:
    """Whether `live` has every field of `desired`.

    Lists of maps whose names differ are compared by name; other lists place by place. What is empty need not be there:
    the API server leaves it out.
    """
    if isinstance(desired, Mapping):
        if not isinstance(live, Mapping):
            return not desired and live is None
        return all(contained(value, live.get(key)) for key, value in desired.items())
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        return _list_contained(desired, live)
    return bool(desired == live) or (live is None and desired in (None, ""))


def _list_contained(desired: Sequence[Any], live: Any) -> bool:
    if not desired:
        return not live
    if not isinstance(live, Sequence) or isinstance(live, str):
        return False
    names = {entry.get("name") for entry in desired if isinstance(entry, Mapping)}
    if None not in names and len(names) == len(desired):
        named = {entry.get("name"): entry for entry in live if isinstance(entry, Mapping)}
        return all(contained(entry, named.get(entry["name"])) for entry in desired)
    return len(desired) == len(live) and all(contained(one, other) for one, other in zip(desired, live, strict=True))
