"""Requests to control ports of workers and gateways, with the service's token."""

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

import aiohttp

from legato_protocol.followed_tokens import RefusalLog

_UNAUTHORIZED = 401
log = logging.getLogger(__name__)


class ControlPort:
    """Shows one token after the other until one is taken: a process may not have read the newest yet."""

    def __init__(self, session: aiohttp.ClientSession, timeout: float) -> None:
        """`timeout` is for each answer, in seconds."""
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._refusals = RefusalLog()

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, address: str, path: str, tokens: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to the last one that was shown. Raises aiohttp.ClientError and TimeoutError."""
        *others, last = tokens or ("",)
        for token in others:
            async with self._ask(method, address, path, token) as answer:
                if answer.status != _UNAUTHORIZED:
                    yield answer
                    return
        async with self._ask(method, address, path, last) as answer:
            if answer.status == _UNAUTHORIZED:
                self._tell(f"{address} refuses the service's token at {path}")
            yield answer

    def _tell(self, refusal: str) -> None:
        if line := self._refusals.note(refusal):
            log.warning(line)

    def _ask(
        self, method: str, address: str, path: str, token: str
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {"authorization": f"Bearer {token}"}
        url = f"http://{address}{path}"
        return self._session.request(method, url, headers=headers, timeout=self._timeout, allow_redirects=False)
