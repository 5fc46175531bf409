"""One POST at an application, as a server makes it: for tests that play the connection themselves."""

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
    """Who sends the request; derived classes say what comes from it. `sent` is all that the application answers."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    @abstractmethod
    async def receive(self) -> dict[str, Any]: ...

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def run(self, app: Any) -> None:
        await post(app, self.receive, self.send)
