"""One POST at an application, as a server makes it: for tests that play the connection themselves."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

JSON_HEADERS = ((b"content-type", b"application/json"),)


async def post(
    app: Any,
    receive: Any,
    send: Any,
    path: str = "/v1/completions",
    headers: Iterable[tuple[bytes, bytes]] = JSON_HEADERS,
) -> None:
    """Ends when the application is done with it."""
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "query_string": b""}
    await app({**scope, "headers": list(headers)}, receive, send)


class Poster(ABC):
    """The client of a request; derived classes say what comes from it. `sent` is all that the application answers."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    @abstractmethod
    async def receive(self) -> dict[str, Any]: ...

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def run(self, app: Any, **request: Any) -> None:
        await post(app, self.receive, self.send, **request)


class Sender(Poster):
    """A client that sends these pieces of a body, and then what a test puts into `messages`."""

    def __init__(self, *pieces: bytes, ends: bool = True) -> None:
        super().__init__()
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for left, piece in reversed(list(enumerate(reversed(pieces)))):
            self.messages.put_nowait({"type": "http.request", "body": piece, "more_body": left > 0 or not ends})

    async def receive(self) -> dict[str, Any]:
        return await self.messages.get()

    def leave(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int:
        return self.sent[0]["status"]  # type: ignore[no-any-return]

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def error(self) -> str:
        return json.loads(self.sent[1]["body"])["error"]["code"]  # type: ignore[no-any-return]
