"""Drift of an object from its desired state: every desired field must be present, other fields may be. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from legato_operator.manifests import common

Fields = Mapping[str, Any]  # as `managedFields` have them; `{}` is a field as a whole


def has_drifted(signed: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
    """True if a signed object must be applied again.

    While an object is applied, the API server normalizes quantities and admission webhooks rewrite images: such fields
    still belong to the operator and have not drifted. Fields that somebody changed later have drifted.
    """
    if live is None or contained(signed, live):
        return live is None
    rewritten = common.applied_hash(signed) == common.applied_hash(live)
    return not (rewritten and contained(signed, live, common.applied_fields(live)))


def contained(desired: Any, live: Any, rewritable: Fields | None = None) -> bool:
    """True if `live` has every field of `desired`, with its value or as one of the `rewritable` fields.

    Lists of maps with distinct names are compared by name, other lists by position. Empty values may be absent, because
    the API server omits them.
    """
    if desired == live:
        return True
    if isinstance(desired, Mapping) and (live is None or isinstance(live, Mapping)):
        there = live or {}
        return all(contained(value, there.get(key), _field(rewritable, key)) for key, value in desired.items())
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        return _list_contained(desired, live, rewritable)
    return bool(live is None and desired == "") or rewritable is not None


def _list_contained(desired: Sequence[Any], live: Any, rewritable: Fields | None) -> bool:
    if rewritable == {} or not desired:
        return rewritable == {} or not live
    there = () if live is None else live
    if not isinstance(there, Sequence) or isinstance(there, str):
        return False
    names = {entry.get("name") for entry in desired if isinstance(entry, Mapping)}
    if None not in names and len(names) == len(desired):
        named = {entry.get("name"): entry for entry in there if isinstance(entry, Mapping)}
        pairs = [(entry, named.get(entry["name"])) for entry in desired]
    elif rewritable:
        known = {_key(rewritable, entry): entry for entry in there}
        pairs = [(entry, known.get(_key(rewritable, entry))) for entry in desired]
    elif len(desired) == len(there):
        pairs = list(zip(desired, there, strict=True))
    else:
        return False
    entries = rewritable or {}
    return all(contained(one, other, entries.get(_key(entries, other or one))) for one, other in pairs)


def _field(fields: Fields | None, name: str) -> Fields | None:
    return fields.get(f"f:{name}") if fields else fields


def _key(fields: Fields, entry: Any) -> str:
    """Returns the key of a list's entry in `fields`: some of its values, as in `k:{"name":"gateway"}`, or all, as in
    `v:1`; empty if absent."""
    if not isinstance(entry, Mapping):
        return next((key for key in fields if key.startswith("v:") and json.loads(key[2:]) == entry), "")
    keys = ((key, json.loads(key[2:])) for key in fields if key.startswith("k:"))
    return next(
        (key for key, values in keys if all(entry.get(name, value) == value for name, value in values.items())), ""
    )
