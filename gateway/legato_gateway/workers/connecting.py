"""Opens connections to one worker: token, certificate, and reasons of failures."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus

from legato_protocol.security.followed_tokens import PeerToken, ServiceTokens
from legato_protocol.security.tls_files import InternalTLS
from legato_protocol.wire.messages import MAX_FRAME_BYTES

_REFUSED = (401, 403)  # status codes for a token that is not accepted


class Connector:
    """Opens WebSockets at `address`, each within `timeout` seconds. Calls `refused` with the path of a refused token.

    If `secured`, the worker must present a certificate for its name from the authority of `tls`; without `tls`, one
    that this machine trusts for the address.
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
        self._token = PeerToken(tokens)
        self._timeout = timeout
        self._refused = refused
        self._scheme, self._tls = "wss" if secured else "ws", tls

    @asynccontextmanager
    async def open(self, path: str) -> AsyncIterator[ClientConnection]:
        """Opens a connection. A refused token is used again only after the others were tried."""
        token = self._token.get()
        try:
            async with self._connect(path, token) as connection:
                self._token.note_accepted()
                yield connection
        except InvalidStatus as error:
            if error.response.status_code in _REFUSED:
                self._token.note_refused(token)
                self._refused(path)
            raise

    def _connect(self, path: str, token: str) -> connect:
        tls = self._tls
        trusted: dict[str, Any] = {"ssl": tls.value.client, "server_hostname": tls.name} if tls is not None else {}
        return connect(
            f"{self._scheme}://{self._address}{path}",
            **trusted,  # read now: the files may change between connections
            additional_headers={"Authorization": f"Bearer {token}"},
            compression=None,
            proxy=None,
            open_timeout=self._timeout,
            ping_interval=None,  # Load is the heartbeat
            close_timeout=1,
            max_size=MAX_FRAME_BYTES,
        )


def reason(error: Exception) -> str:
    """Returns the reason why a connection failed or broke, in words."""
    if isinstance(error, InvalidStatus) and error.response.status_code in _REFUSED:
        return "it refuses this gateway's token"
    if isinstance(error, InvalidHandshake):
        return f"no WebSocket there: {error}"
    return str(error) or type(error).__name__
