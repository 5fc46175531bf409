"""A server with the gateway's own connections, and the time at which they are."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from legato_gateway.http.connections import protocol
from legato_gateway.http.connections.body_rate import BodyRate
from legato_gateway.http.connections.limits import Connections


@contextlib.asynccontextmanager
async def listening(
    app: Any,
    places: Connections | None = None,
    state: ServerState | None = None,
    app_state: dict[str, Any] | None = None,
    **tls: Any,
) -> AsyncIterator[tuple[str, int]]:
    """Serves the application and yields the address."""
    places = places or Connections()
    made = protocol.factory(places)
    config = uvicorn.Config(BodyRate(app, places), http=made, log_config=None, lifespan="off", ws="none")
    config.load()
    common = {"config": config, "server_state": state or ServerState(), "app_state": app_state or {}}
    server = await asyncio.get_running_loop().create_server(lambda: made(**common), "127.0.0.1", 0, **tls)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()


class Passing:
    """The clock of the running loop, which stands still until it is set forward, also while the process is stopped."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._now = loop.time()
        loop.time = lambda: self._now  # type: ignore[method-assign]

    async def by(self, seconds: float) -> None:
        """Sets the clock forward and lets everything happen that is due by then."""
        self._now += seconds
        for _ in range(20):
            await asyncio.sleep(0)
