"""A client's own id of a request (`X-Request-Id`): echoed, logged and traced, to join the records of both sides."""

import re
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER: Final = b"x-request-id"
_ALLOWED: Final = re.compile(rb"[\x21-\x7e]{1,128}")


def read(scope: Scope) -> str | None:
    """Returns the id, or None if it is missing, too long, or has characters other than visible ASCII."""
    given = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return given.decode() if _ALLOWED.fullmatch(given) else None


class EchoRequestId:
    """Middleware that answers with the client's id instead of the gateway's, which is in the body as well."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = read(scope) if scope["type"] == "http" else None
        if given is None:
            await self._app(scope, receive, send)
            return

        async def echoing(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [pair for pair in message.get("headers", ()) if pair[0].lower() != HEADER]
                message = {**message, "headers": [*others, (HEADER, given.encode())]}
            await send(message)

        await self._app(scope, receive, echoing)
