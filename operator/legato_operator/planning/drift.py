"""Whether an object is as it is wished: every field that the wish names is there, whatever others added. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any


def contained(wish: Any, live: Any) -> bool:
    """Whether `live` has all that `wish` names.

    Lists of maps whose names differ are compared by name; other lists place by place. What is empty need not be there:
    the API server leaves it out.
    """
    if isinstance(wish, Mapping):
        if not isinstance(live, Mapping):
            return not wish and live is None
        return all(contained(value, live.get(key)) for key, value in wish.items())
    if isinstance(wish, Sequence) and not isinstance(wish, str):
        return _list_contained(wish, live)
    return bool(wish == live) or (live is None and wish in (None, ""))


def _list_contained(wish: Sequence[Any], live: Any) -> bool:
    if not wish:
        return not live
    if not isinstance(live, Sequence) or isinstance(live, str):
        return False
    names = {entry.get("name") for entry in wish if isinstance(entry, Mapping)}
    if None not in names and len(names) == len(wish):
        named = {entry.get("name"): entry for entry in live if isinstance(entry, Mapping)}
        return all(contained(entry, named.get(entry["name"])) for entry in wish)
    return len(wish) == len(live) and all(contained(one, other) for one, other in zip(wish, live, strict=True))
