"""Reads values of `quantization_config`, and refuses others with their key and the supported ones."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from legato_engine.errors import CorruptModel, UnsupportedFormat

Value = TypeVar("Value", str, int, bool)


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of `quantization_config`; `where` is its file and key, for errors."""

    values: Mapping[str, Any]
    where: str

    def choice(self, key: str, allowed: Sequence[Value], default: Value | None = None) -> Value:
        """The value of `key`, or the default if it is missing or null. Raises UnsupportedFormat."""
        value = self.values.get(key)
        value = default if value is None else value
        for each in allowed:
            if value == each and type(value) is type(each):
                return each
        raise UnsupportedFormat(f"{self.where}: {key} is {value!r}; supported: {', '.join(map(repr, allowed))}")

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above 0, or -1, which means all inputs. Raises CorruptModel."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and value != -1):
            raise CorruptModel(f"{self.where}: {key} is {value!r}; a whole number above 0, or -1, is needed")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        return self.choice(key, (True, False), default)

    def part(self, key: str) -> "Fields | None":
        """The object `key`; None if it is missing or null. Raises CorruptModel."""
        value = self.values.get(key)
        return None if value is None else Fields(_mapping(value, f"{self.where}: {key}"), f"{self.where}: {key}")

    def parts(self) -> "list[Fields]":
        """All values, which must be objects, in order. Raises CorruptModel."""
        return [part for key in self.values if (part := self.part(key)) is not None]

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, empty if it is missing or null. Raises CorruptModel."""
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise CorruptModel(f"{self.where}: {key} is {value!r}; a list of names is needed")
        return tuple(value)

    def target(self, text: str) -> str:
        """`text`, whose pattern after `re:` is valid. Raises CorruptModel."""
        try:
            re.compile(text.removeprefix("re:") if text.startswith("re:") else "")
        except re.error as error:
            raise CorruptModel(f"{self.where}: the pattern {text!r} is wrong: {error}") from None
        return text

    def without(self, key: str) -> None:
        """Raises UnsupportedFormat if `key` has a value: it would change weights or activations."""
        if value := self.values.get(key):
            raise UnsupportedFormat(f"{self.where}: {key} is {str(value)[:80]}; supported: none")


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CorruptModel(f"{where} is {value!r}; an object is needed")
    return value


def at_top(value: object, where: str) -> Fields:
    """The object `quantization_config`. Raises CorruptModel if it is not an object."""
    return Fields(_mapping(value, where), where)
