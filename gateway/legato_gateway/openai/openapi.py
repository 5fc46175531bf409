"""What `/openapi.json` says of the API's paths: bodies that FastAPI does not read, answers, and errors."""

from typing import Any, Final

import msgspec

from legato_gateway.openai.schemas import json_schema

Shown = dict[int | str, dict[str, Any]]  # as FastAPI takes responses

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


def takes(schema: type[msgspec.Struct]) -> dict[str, Any]:
    """What is added to a path with such a body."""
    body = json_schema(schema) | {"additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}


def errors(schema: dict[str, Any] = _ERRORS) -> Shown:
    """Everything but success."""
    return {"default": {"description": "An error", "content": {"application/json": {"schema": schema}}}}


def generated() -> Shown:
    """The answers of a path that generates."""
    content: dict[str, Any] = {"application/json": {}, "text/event-stream": {}}
    return {200: {"description": "The answer; with `stream: true`, its events", "content": content}}
