"""Ends requests whose bodies arrive too slowly.

Only the time in which the application waits for bytes counts: a large body waits unread for a slot, and its client
cannot send meanwhile.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato_gateway.errors import LateRequest
from legato_gateway.http.connections.limits import SLOW_BODY, Connections


class BodyRate:
    """An ASGI application whose `receive` raises LateRequest if a body is slower than the limits of `connections`."""

    def __init__(self, app: ASGIApp, connections: Connections) -> None:
        self._app = app
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._connections.limits.body_rate:
            receive = _TimedBody(receive, self._connections).receive
        await self._app(scope, receive, send)


class _TimedBody:
    """The body of one request. A window ends when the application has waited for `body_window` seconds in it."""

    def __init__(self, receive: Receive, connections: Connections) -> None:
        self._receive = receive
        self._connections = connections
        self._limits = connections.limits
        self._clock = asyncio.get_running_loop().time
        self._complete = False
        self._left = self._limits.body_window
        self._received = 0  # bytes in this window

    async def receive(self) -> Message:
        """Returns the next message. Raises LateRequest if too few bytes arrived in a window."""
        while not self._complete:
            started = self._clock()
            try:
                async with asyncio.timeout(self._left):
                    message = await self._receive()
            except TimeoutError:
                self._end_window()
                continue
            self._left -= self._clock() - started
            self._received += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            return message
        return await self._receive()

    def _end_window(self) -> None:
        window, due = self._limits.body_window, self._limits.body_rate * self._limits.body_window
        if self._received < due:
            text = f"{self._received} bytes of a body arrived in {window:g} s; at least {due:g} have to"
            self._connections.refused(SLOW_BODY, text)
            raise LateRequest(text) from None
        self._left, self._received = window, 0
