"""Workers' control ports over HTTP: their state, and the order to drain."""

import asyncio
import json
from typing import Any

import httpx

from legato_operator.observing.observed import WorkerState

TIMEOUT = 2.0  # seconds; one slow worker must not hold up a pass for longer
AT_ONCE = 64  # requests; others wait outside of the timeout and of the client, which is slow with a long queue


class HttpWorkers:
    """`observe.Workers` over HTTP. A worker that does not answer, or not sensibly, counts as silent."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def state(self, address: str, token: str) -> WorkerState | None:
        try:
            async with self._turns:
                answer = await self._client.get(f"http://{address}/state", headers=_headers(token), timeout=TIMEOUT)
            return _read(answer.json()) if answer.status_code == httpx.codes.OK else None
        except (httpx.HTTPError, httpx.InvalidURL, json.JSONDecodeError, KeyError, TypeError, ValueError):
            return None

    async def drain(self, address: str, token: str) -> None:
        try:
            await self._client.post(f"http://{address}/drain", headers=_headers(token), timeout=TIMEOUT)
        except (httpx.HTTPError, httpx.InvalidURL):
            return  # the next plan says it again


def _headers(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _read(state: dict[str, Any]) -> WorkerState:
    """A worker whose core is gone runs nothing and has no transport; an unfinished hand-off keeps one busy."""
    sequences = int(state.get("running", 0)) + int(state.get("waiting", 0))
    busy = max(sequences, 0 if state.get("idle", True) else 1)
    return WorkerState(busy, bool(state["draining"]), str(state.get("transport", "")))
