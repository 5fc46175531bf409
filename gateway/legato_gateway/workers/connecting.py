"""How connections to one worker are opened: with which token and certificate, and how soon again after a failure."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus

from legato_protocol.followed_tokens import ServiceTokens, ShownToken
from legato_protocol.messages import MAX_FRAME_BYTES
from legato_protocol.tls_files import InternalTLS

_REFUSED = (401, 403)  # status of an answer to a token that is not taken


class Connector:
    """Opens WebSockets at `address`, each within `timeout` seconds; `refused` is told of the path where a token was.

    Where it is `secured`, the worker has to show a certificate of the authority of `tls` for its name; without `tls`,
    one that this machine trusts for the address.
    """

    def __init__(
        self,
        address: str,
        tokens: ServiceTokens,
        timeout: float,
        refused: Callable[[str], None],
        secured: bool = False,
        tls: InternalTLS | None = None,
    ) -> None:
        self._address = address
        self._token = ShownToken(tokens)
        self._timeout = timeout
        self._refused = refused
        self._scheme, self._tls = "wss" if secured else "ws", tls

    @asynccontextmanager
    async def open(self, path: str) -> AsyncIterator[ClientConnection]:
        """A connection to there. A token that is refused is not shown again before the others were."""
        token = self._token.get()
        try:
            async with self._connect(path, token) as connection:
                self._token.taken()
                yield connection
        except InvalidStatus as error:
            if error.response.status_code in _REFUSED:
                self._token.refused(token)
                self._refused(path)
            raise

    def _connect(self, path: str, token: str) -> connect:
        tls = self._tls
        trusted: dict[str, Any] = {"ssl": tls.value.client, "server_hostname": tls.name} if tls is not None else {}
        return connect(
            f"{self._scheme}://{self._address}{path}",
            **trusted,  # of now: another connection may be made with other files
            additional_headers={"Authorization": f"Bearer {token}"},
            compression=None,
            proxy=None,
            open_timeout=self._timeout,
            ping_interval=None,  # Load is the heartbeat
            close_timeout=1,
            max_size=MAX_FRAME_BYTES,
        )


class Backoff:
    """Growing pauses between attempts, with jitter so that gateways do not knock all at once. In seconds."""

    def __init__(self, first: float, most: float, source: random.Random) -> None:
        self._first, self._most = first, most
        self._random = source
        self.reset()

    def reset(self) -> None:
        """The next pause is a first one."""
        self._next = self._first

    async def wait(self) -> None:
        """Returns after the next pause."""
        delay = self._next * (0.5 + self._random.random())
        self._next = min(self._next * 2, self._most)
        await asyncio.sleep(delay)


def reason(error: Exception) -> str:
    """Why there is no connection, or not any more."""
    if isinstance(error, InvalidStatus) and error.response.status_code in _REFUSED:
        return "it refuses this gateway's token"
    if isinstance(error, InvalidHandshake):
        return f"no WebSocket there: {error}"
    return str(error) or type(error).__name__
