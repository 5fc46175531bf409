"""Errors in the format of Anthropic's API: `{"type": "error", "error": {"type", "message"}}`."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from legato_gateway.errors import GatewayError, ThreadUnsupported

PATH: Final = "/v1/messages"
MODELS: Final = "/v1/models"
HEADER_VERSION: Final = "anthropic-version"
_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
SCHEMA: Final = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}


def has(path: str, headers: Mapping[str, str]) -> bool:
    """True if errors of a request have this format. OpenAI's clients list models at the same path."""
    if path == MODELS or path.startswith(f"{MODELS}/"):
        return HEADER_VERSION in headers
    return path == PATH or path.startswith(f"{PATH}/")


def body(error: GatewayError) -> bytes:
    """Returns the JSON of `error`. Errors of the server also name the part that failed."""
    status = error.http_status
    kind = _TYPES.get(status, "invalid_request_error" if error.permanent else "api_error")
    text = error.message if error.permanent or error.part == "gateway" else f"{error.message} ({error.part})"
    shown: dict[str, Any] = {"type": kind, "message": text}
    if isinstance(error, ThreadUnsupported):
        shown["details"] = {"error_code": error.code, "unsupported": [error.param]}
    return msgspec.json.encode({"type": "error", "error": shown})
