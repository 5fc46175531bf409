"""OpenAPI descriptions of the API's paths: bodies that FastAPI does not read, answers, and errors."""

from functools import cache
from typing import Any, Final

import msgspec

Shown = dict[int | str, dict[str, Any]]  # FastAPI's form of responses

_ERROR: Final = {
    "type": "object",
    "required": ["message", "type", "param", "code"],
    "properties": {
        "message": {"type": "string"},
        "type": {"type": "string"},
        "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]},
        "part": {"type": "string"},
    },
}
_ERRORS: Final = {"type": "object", "required": ["error"], "properties": {"error": _ERROR}}


@cache
def takes(schema: type[msgspec.Struct]) -> dict[str, Any]:
    """Returns the extra description of a path with such a body. It is cached: do not change it."""
    body = json_schema(schema) | {"additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}


def errors(schema: dict[str, Any] = _ERRORS) -> Shown:
    """Returns the description of all errors."""
    return {"default": {"description": "An error", "content": {"application/json": {"schema": schema}}}}


def generated() -> Shown:
    """Returns the description of answers from a path that generates."""
    content: dict[str, Any] = {"application/json": {}, "text/event-stream": {}}
    return {200: {"description": "The answer; with `stream: true`, its events", "content": content}}


def json_schema(type: Any) -> dict[str, Any]:
    """Returns a type's schema in one piece: OpenAPI keeps no definitions inside a request body."""
    whole = msgspec.json.schema(type, ref_template="#/{name}")
    definitions = whole.pop("$defs", {})

    def inlined(value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(name := value.get("$ref"), str):
                return inlined(definitions[name.removeprefix("#/")])
            return {key: inlined(inner) for key, inner in value.items()}
        return [inlined(inner) for inner in value] if isinstance(value, list) else value

    complete: dict[str, Any] = inlined(whole)
    return complete
