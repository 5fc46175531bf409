"""Answers of the connection itself, without the application: to incomplete or invalid requests."""

from collections.abc import Mapping
from http import HTTPStatus

from legato_gateway import errors
from legato_gateway.errors import GatewayError


def encoded(error: GatewayError, more: Mapping[str, str]) -> bytes:
    """Returns `error` as an HTTP response that closes the connection. `more` are headers."""
    body = errors.body(error)
    own = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [f"{name}: {value}\r\n" for name, value in {**error.headers, **more, **own}.items()]
    status = HTTPStatus(error.http_status)
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{''.join(lines)}\r\n".encode() + body
