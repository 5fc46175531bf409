"""Rewrites JSON schemas for the compiler: drops keywords that constrain nothing, and works around its bugs."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from legato_grammar import schema as schemas

# Formats of JSON Schema 2020-12: unsupported ones are refused. Any other format is an annotation.
FORMATS: Final = frozenset({
    "date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri",
    "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer", "regex",
})  # fmt: skip
_ANY: Final[tuple[Any, ...]] = (True, {})
_WITHOUT_EFFECT: Final[Mapping[str, tuple[Any, ...]]] = {  # these values of these keywords constrain nothing
    "uniqueItems": (False,),
    "not": (False,),
    "propertyNames": (*_ANY, {"type": "string"}),
    "unevaluatedProperties": _ANY,
    "unevaluatedItems": _ANY,
    "dependentSchemas": ({},),
    "dependentRequired": ({},),
    "dependencies": ({},),
}
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {  # keywords that constrain nothing without one of these others
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
}
_STEP: Final = Decimal("1e-9")  # of an excluded bound, or of 1 if that is less


def normalized(schema: Any) -> Any:
    """Returns an equivalent schema, except for numbers next to an excluded bound."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: _within(key, value) for key, value in schema.items() if not _is_without_effect(schema, key, value)}
    return _with_included_bounds(kept)


def _within(key: str, value: Any) -> Any:
    if key in schemas.ONE:
        return normalized(value)
    if key in schemas.LISTS and isinstance(value, list):
        return [normalized(part) for part in value]
    if key in schemas.NAMED and isinstance(value, dict):
        return {name: normalized(part) for name, part in value.items()}
    return value


def _is_without_effect(schema: Mapping[str, Any], key: str, value: Any) -> bool:
    if key == "format":
        return isinstance(value, str) and value not in FORMATS
    if key in ("contains", "minContains") and "maxContains" not in schema and schema.get("minContains") == 0:
        return True
    if needed := _NEEDED.get(key):
        return not any(other in schema for other in needed)
    return any(type(value) is type(none) and value == none for none in _WITHOUT_EFFECT.get(key, ()))


def _with_included_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Excluded bounds of a number that is bounded on both sides become included ones, a billionth further in.

    llguidance 1.9.1 lets the excluded bound itself pass if both lie in one unit, as 0 in `0 < x <= 0.5`.
    """
    if schema.get("type") == "integer":
        return schema
    lower, upper = ([key for key in keys if _is_number(schema.get(key))] for keys in (_LOWER, _UPPER))
    if not lower or not upper:
        return schema
    result = dict(schema)
    least, most = max(schema[key] for key in lower), min(schema[key] for key in upper)
    width = abs(Decimal(repr(most)) - Decimal(repr(least)))
    for excluded, included, sign in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        if _is_number(schema.get(excluded)):
            bound = Decimal(repr(result.pop(excluded)))
            moved = float(bound + sign * _STEP * min(max(abs(bound), Decimal(1)), width))
            bounds = [moved, *(each for each in (schema.get(included),) if isinstance(each, int | float))]
            result[included] = max(bounds) if sign > 0 else min(bounds)
    return result


_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
