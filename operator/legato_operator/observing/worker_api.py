"""Workers' control ports over HTTP: their state, and the requests to drain and to serve again."""

import asyncio
from typing import Any

import aiohttp

from legato_operator.observing.observed import WorkerState

TIMEOUT = 2.0  # seconds for a whole answer; one slow worker must not hold up a pass for longer
MAX_CONCURRENT = 64  # requests; others wait outside of the timeout and of the client


class HttpWorkers:
    """`observe.Workers` over HTTP. A worker that does not answer, or answers nonsense, has no state."""

    def __init__(self, session: aiohttp.ClientSession, timeout: float = TIMEOUT) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._turns = asyncio.Semaphore(MAX_CONCURRENT)

    async def state(self, address: str, token: str) -> WorkerState | None:
        try:
            async with self._turns, self._request("GET", address, "state", token) as answer:
                return _read(await answer.json(content_type=None)) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, KeyError, TypeError, ValueError):
            return None

    async def drain(self, address: str, token: str) -> None:
        try:
            async with self._request("POST", address, "drain", token):
                return
        except (aiohttp.ClientError, TimeoutError):
            return  # the next plan repeats it

    async def recall(self, address: str, token: str) -> bool:
        try:
            async with self._request("DELETE", address, "drain", token) as answer:
                return bool(answer.status == 200)
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _request(self, method: str, address: str, path: str, token: str) -> Any:
        headers = {"authorization": f"Bearer {token}"}
        return self._session.request(
            method, f"http://{address}/{path}", headers=headers, timeout=self._timeout, allow_redirects=False
        )


def _read(state: dict[str, Any]) -> WorkerState:
    """A worker whose core is gone runs nothing and has no transport; an unfinished hand-off keeps one busy."""
    draining = bool(state["draining"])
    sequences = int(state.get("running", 0)) + int(state.get("waiting", 0))
    busy = max(sequences, 0 if state.get("idle", True) else 1)
    stopping = bool(state.get("stopping", True))  # an older worker does not know how to serve again
    return WorkerState(busy, draining, str(state.get("transport", "")), stopping)
