"""Reads and checks numbers and lists of a model's config. No torch."""

from collections.abc import Mapping
from math import inf
from typing import Any

from legato_engine.errors import CorruptModel, UnsupportedModel


def flag(raw: Mapping[str, Any], key: str, source: str, default: bool = False) -> bool:
    """True or false; null is false. Raises CorruptModel, which names `source` and the key."""
    value = raw.get(key, default)
    if value not in (None, False, True):
        raise CorruptModel(f"{source}: {key} is {value!r}; true or false is needed")
    return bool(value)


def size(raw: Mapping[str, Any], key: str, source: str, default: int | None = None) -> int:
    """A whole number above 0. Raises CorruptModel, which names `source` and the key."""
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CorruptModel(f"{source}: {key} is {value!r}; a whole number above 0 is needed")
    return value


def count(raw: Mapping[str, Any], key: str, source: str) -> int:
    """A whole number from 0 on; 0 if it is missing or null. Raises CorruptModel."""
    return size(raw, key, source) if raw.get(key) else 0


def number(raw: Mapping[str, Any], key: str, source: str, default: float | None = None) -> float:
    """A finite number above 0. Raises CorruptModel."""
    value = raw.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < inf:
        raise CorruptModel(f"{source}: {key} is {value!r}; a finite number above 0 is needed")
    return float(value)


def mapping(raw: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    """An object; an empty one if it is missing or null. Raises CorruptModel."""
    value = raw.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise CorruptModel(f"{source}: {key} is {value!r}; an object is needed")
    return value or {}


def numbers(raw: Mapping[str, Any], key: str, source: str) -> tuple[float, ...]:
    """A list of finite numbers above 0. Raises CorruptModel."""
    values = raw.get(key)
    if not isinstance(values, list) or not values:
        raise CorruptModel(f"{source}: {key} is {values!r}; a list of numbers is needed")
    return tuple([number({key: value}, key, source) for value in values])


def kinds(raw: Mapping[str, Any], key: str, layers: int, source: str, *allowed: object) -> list[Any] | None:
    """A list with one of the `allowed` values for each layer; None if it is missing.

    Raises CorruptModel, or UnsupportedModel for another value.
    """
    values = raw.get(key)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != layers:
        count = f"{len(values)} entries" if isinstance(values, list) else f"{values!r}"
        raise CorruptModel(f"{source}: {key} has {count} for {layers} layers")
    for value in values:
        if value not in allowed:
            raise UnsupportedModel(f"{source}: {key} names {value!r}; supported: {', '.join(map(str, allowed))}")
    return values
