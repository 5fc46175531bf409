"""Requests to control ports of workers and gateways, with the service's token."""

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from ssl import SSLContext
from typing import Any

import aiohttp

from legato_operator.observing.observed import PeerTLS
from legato_protocol.security.followed_tokens import RefusalLog
from legato_protocol.security.tls_files import client_context

_UNAUTHORIZED = 401
log = logging.getLogger(__name__)


class ControlPort:
    """Sends requests with one token after another until one is accepted: a process may not have read the newest yet."""

    def __init__(self, session: aiohttp.ClientSession, timeout: float) -> None:
        """`timeout` is the limit for each answer, in seconds."""
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._refusals = RefusalLog()

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        address: str,
        path: str,
        tokens: Sequence[str],
        tls: PeerTLS | None = None,
        body: bytes = b"",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields the answer to the first accepted token, or to the last.

        Raises aiohttp.ClientError, TimeoutError, and InvalidFile if the authority's certificate is invalid.
        """
        *others, last = tokens or ("",)
        for token in others:
            async with self._ask(method, address, path, token, tls, body) as answer:
                if answer.status != _UNAUTHORIZED:
                    yield answer
                    return
        async with self._ask(method, address, path, last, tls, body) as answer:
            if answer.status == _UNAUTHORIZED:
                self._log_refusal(f"{address} refuses the service's token at {path}")
            yield answer

    def _log_refusal(self, refusal: str) -> None:
        if line := self._refusals.note(refusal):
            log.warning(line)

    def _ask(
        self, method: str, address: str, path: str, token: str, tls: PeerTLS | None, body: bytes
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {"authorization": f"Bearer {token}"}
        url = f"{scheme(tls)}://{address}{path}"
        return self._session.request(
            method, url, headers=headers, data=body or None, timeout=self._timeout, allow_redirects=False, **trust(tls)
        )


def scheme(tls: PeerTLS | None) -> str:
    """Returns the scheme of a control port's URL."""
    return "http" if tls is None else "https"


def trust(tls: PeerTLS | None) -> dict[str, Any]:
    """Returns aiohttp's arguments for the TLS of a control port. Raises InvalidFile."""
    return {} if tls is None else {"ssl": _context(tls.authority), "server_hostname": tls.name}


@lru_cache(maxsize=64)
def _context(authority: str) -> SSLContext:
    """Returns the same context for each authority, because aiohttp pools connections by it."""
    return client_context(authority)
