"""Logs one line per request once its response has ended: its parameters and outcome, without its content; and echoes
the client's own id of a request, which joins the records of both sides.

Probes and scrapes are skipped, and so are query strings, which may contain anything.
"""

import logging
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, Literal
from urllib.parse import quote

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato_gateway.errors import GatewayError, Refused

REQUEST_ID: Final = b"x-request-id"
_ALLOWED: Final = re.compile(rb"[\x21-\x7e]{1,128}")
AccessLogFormat = Literal["Text", "JSON", "Off"]
ENTRY: Final = "legato.access"  # key of a scope: a generation fills in the entry
SPAN: Final = "legato.span"  # key of a scope: the open span of a traced request
LEFT_OUT: Final = frozenset({"/healthz", "/readyz", "/health", "/ping"})
LONGEST_PATH: Final = 200
LINE: Final = "%(levelname)s %(name)s: %(message)s"  # of all log lines of a gateway, so that filters match
CLIENT_LEFT: Final = 499  # the status that proxies log for it; nobody reads it
_COMMON: Final = ("time", "method", "path", "status", "seconds")
_log = logging.getLogger("legato.access")


def client_request_id(scope: Scope) -> str | None:
    """Returns the client's own id (`X-Request-Id`), or None if it is missing, too long, or not only visible ASCII."""
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
    return given.decode() if _ALLOWED.fullmatch(given) else None


class EchoRequestId:
    """Middleware that answers with the client's id instead of the gateway's, which is in the body as well."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = client_request_id(scope) if scope["type"] == "http" else None
        if given is None:
            await self._app(scope, receive, send)
            return

        async def echoing(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [pair for pair in message.get("headers", ()) if pair[0].lower() != REQUEST_ID]
                message = {**message, "headers": [*others, (REQUEST_ID, given.encode())]}
            await send(message)

        await self._app(scope, receive, echoing)


@dataclass(slots=True)
class AccessEntry:
    """The entry of one request. Durations are in seconds; missing values are None."""

    time: str
    method: str
    path: str
    status: int = CLIENT_LEFT
    seconds: float = 0.0
    id: str | None = None
    request_id: str | None = None  # the client's own id
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    first_token_seconds: float | None = None
    queue_seconds: float | None = None  # this and the next four add up to `seconds`
    prefill_seconds: float | None = None
    handoff_seconds: float | None = None
    decode_seconds: float | None = None
    stream_seconds: float | None = None
    attempts: int | None = None
    tpot_seconds: float | None = None  # while workers made the tokens
    client_tpot_seconds: float | None = None  # while tokens were sent to the client
    kv_blocks_reserved: int | None = None
    kv_blocks_peak: int | None = None
    preemptions: int | None = None
    finish: str | None = None
    drop_reason: str | None = None  # of a request that was refused

    def end(self, seconds: float) -> None:
        """Records the duration. Time outside the other phases was spent on writing to the client."""
        self.seconds = round(seconds, 6)
        if self.queue_seconds is not None and self.decode_seconds is not None:
            parts = (self.queue_seconds, self.prefill_seconds, self.handoff_seconds, self.decode_seconds)
            self.stream_seconds = round(max(0.0, self.seconds - sum(part or 0.0 for part in parts)), 6)

    def json(self) -> str:
        return msgspec.json.encode({key: value for key, value in asdict(self).items() if value is not None}).decode()

    def text(self) -> str:
        """Returns the fields that all web servers log, and then the others by name."""
        beyond = [(key, value) for key, value in asdict(self).items() if key not in _COMMON]
        rest = "".join(f" {key}={value}" for key, value in beyond if value is not None)
        return f"{self.time} {self.method} {self.path} {self.status} {self.seconds}{rest}"


class AccessLog:
    """The outermost middleware. `write` takes each entry; `clock` is in seconds."""

    def __init__(self, app: ASGIApp, write: Callable[[AccessEntry], None], clock: Callable[[], float]) -> None:
        self._app = app
        self._write = write
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in LEFT_OUT:
            await self._app(scope, receive, send)
            return
        began, entry = self._clock(), _entry(scope)
        scope[ENTRY] = entry

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            entry.status = 500  # the answer that an outer layer sends
            raise
        finally:
            entry.end(self._clock() - began)
            self._write(entry)


def _entry(scope: Scope) -> AccessEntry:
    """Returns a new entry. The path is escaped again, as a client may have put line breaks into it."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
    path = quote(scope["path"])[:LONGEST_PATH]
    return AccessEntry(f"{now}Z", scope["method"], path, request_id=client_request_id(scope))


def note_refusal(scope: Scope, error: GatewayError) -> None:
    """Records the drop reason of a refused request in its entry, if it has one."""
    if isinstance(error, Refused) and (entry := scope.get(ENTRY)) is not None:
        entry.drop_reason = error.reason


def writer(kind: AccessLogFormat) -> Callable[[AccessEntry], None] | None:
    """Returns a function that writes to standard output, or None if the log is off."""
    if kind == "Off":
        return None
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s" if kind == "JSON" else LINE))
    _log.handlers, _log.propagate = [handler], False
    _log.setLevel(logging.INFO)
    encoded = AccessEntry.json if kind == "JSON" else AccessEntry.text
    return lambda entry: _log.info("%s", encoded(entry))
