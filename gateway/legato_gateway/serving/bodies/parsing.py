"""Parses a body into a checked object: UTF-8, JSON, types. All errors are 4xx.

Nothing is decoded into objects before it is known to be small: the outline of a body keeps each field as JSON, and only
fields of the schema are decoded, each up to `MAX_FIELD_BYTES`. Decoding stops at the first error.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from legato_gateway.errors import BadRequest, Unsupported

MAX_FIELD_BYTES = 262_144  # of JSON; 16 stop strings of 1024 escaped characters are 196,608
_SHOWN = 40  # characters of a wrong value that an error shows
_ALLOWED = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}
_PLACE = re.compile(r" - at `\$(?P<place>.*)`$", re.DOTALL)

_UNKNOWN = re.compile(r"unknown field `(?P<name>.*)`$", re.DOTALL)

_B = TypeVar("_B", bound=msgspec.Struct)
_T = TypeVar("_T")


def parse(schema: type[_B], body: bytearray) -> _B:
    """Decodes the body as `schema`. Raises BadRequest with the first wrong field."""
    outline, fields = _plan(schema)
    outlined = _outlined(outline, body)
    values = {}
    for field in fields:
        raw = getattr(outlined, field.name)
        if raw is not UNSET:
            values[field.name] = field.value(raw)
        elif field.required:
            raise BadRequest(f"{field.name} is missing", param=field.name)
    return schema(**values)


def check_size(raw: Raw, most: int, param: str) -> None:
    """Raises BadRequest for a field with more than `most` bytes."""
    if (size := memoryview(raw).nbytes) > most:
        raise BadRequest(f"{param} has {size} bytes of JSON; at most {most} are allowed", param=param)


def decode(decoder: "msgspec.json.Decoder[_T]", raw: Raw, param: str) -> _T:
    """Decodes a field that was left as JSON. Raises BadRequest with the path of the error."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise BadRequest(f"{param}: nested too deeply", param=param) from None
    except msgspec.DecodeError as error:
        said = str(error)
        place = _PLACE.search(said)
        at = param + (place["place"] if place else "")
        text = said[: place.start()] if place else said
        raise BadRequest(f"{at}: {text[:1].lower()}{text[1:200]}", param=at) from None


def optional(decoder: "msgspec.json.Decoder[_T | None]", raw: Raw | UnsetType, param: str) -> _T | None:
    """Decodes a field that was left as JSON, like `decode`; None if the request does not have it."""
    return None if raw is UNSET else decode(decoder, raw, param)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    required: bool
    allowed: str
    decoder: "msgspec.json.Decoder[Any] | None"  # None: the field stays JSON

    def value(self, raw: Raw) -> Any:
        if self.decoder is None:
            return raw
        check_size(raw, MAX_FIELD_BYTES, self.name)
        try:
            return self.decoder.decode(raw)
        except msgspec.DecodeError:
            shown = bytes(raw)[: 4 * _SHOWN].decode(errors="replace")
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
            raise BadRequest(f"not a valid {self.name}: {shown} ({self.allowed})", param=self.name) from None


@cache
def _plan(schema: type[msgspec.Struct]) -> tuple["msgspec.json.Decoder[Any]", tuple[_Field, ...]]:
    """Returns the decoder of a schema's outline, and one per field."""
    kept: Any = Raw | UnsetType
    names = [(field.encode_name, kept, UNSET) for field in msgspec.structs.fields(schema)]
    outline = msgspec.defstruct(f"{schema.__name__}Outline", names, forbid_unknown_fields=True)
    return msgspec.json.Decoder(outline), tuple(map(_field, msgspec.structs.fields(schema)))


def _field(field: msgspec.structs.FieldInfo) -> _Field:
    parts = list(_parts(field.type))
    described = (part.description for part in parts if isinstance(part, Meta) and part.description)
    kinds = (_ALLOWED[part] for part in parts if part in _ALLOWED)
    decoder = None if Raw in parts else msgspec.json.Decoder(field.type)
    return _Field(field.encode_name, field.required, next(described, next(kinds, "")), decoder)


def _parts(annotation: Any) -> Iterator[Any]:
    """Yields a type's metadata, the type and its parts, outermost first."""
    yield from reversed(get_args(annotation)[1:]) if hasattr(annotation, "__metadata__") else ()
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _outlined(outline: "msgspec.json.Decoder[Any]", body: bytearray) -> Any:
    try:
        if not body.isascii():
            body.decode()
        return outline.decode(body)
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: byte {error.start} is wrong") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    except msgspec.ValidationError as error:
        if unknown := _UNKNOWN.search(str(error)):
            name = unknown["name"][:_SHOWN]
            raise Unsupported(f"{name!r} is not a field that this server knows", param=name) from None
        raise BadRequest("the body is not a JSON object") from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
