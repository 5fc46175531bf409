"""Gateways' control ports over HTTP: what they tell of demand, and when they begin to hold requests."""

import asyncio
import contextlib
from collections.abc import Sequence

import aiohttp

from legato_operator.observing.control_port import ControlPort
from legato_operator.observing.observed import PeerTLS
from legato_protocol import demand
from legato_protocol.demand import BadReport, DemandReport
from legato_protocol.followed_files import InvalidFile

TIMEOUT = 1.5  # seconds for a whole answer: the next time they are asked comes soon
MAX_CONCURRENT = 32  # requests; others wait outside of the timeout and of the client
MAX_BYTES = 8 << 20  # of an answer


class HttpGateways:
    """Asks gateways. One that does not answer in time, or answers nonsense, has no report."""

    def __init__(self, session: aiohttp.ClientSession, timeout: float = TIMEOUT) -> None:
        """The session must not bound its connections: whoever waits for held requests keeps one."""
        self._control = ControlPort(session, timeout)
        self._patient = ControlPort(session, demand.LONGEST_WAIT + timeout)
        self._turns = asyncio.Semaphore(MAX_CONCURRENT)

    async def report(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> DemandReport | None:
        """Of the gateway whose control port is there."""
        async with self._turns:
            return await _report(self._control.request("GET", address, demand.DEMAND_PATH, tokens, tls))

    async def holds(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> bool:
        """Whether the gateway there holds a request; waits for one for up to `LONGEST_WAIT` seconds. An older gateway
        answers at once."""
        path = f"{demand.DEMAND_PATH}?{demand.WAIT}={demand.LONGEST_WAIT:g}"
        report = await _report(self._patient.request("GET", address, path, tokens, tls))
        return report is not None and report.held_requests > 0


async def _report(asked: contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]) -> DemandReport | None:
    try:
        async with asked as answer:
            return demand.decode(await _body(answer.content)) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, BadReport, InvalidFile):
        return None


async def _body(content: aiohttp.StreamReader) -> bytes:
    """Raises BadReport for one that is too long."""
    body = bytearray()
    async for piece in content.iter_any():
        body += piece
        if len(body) > MAX_BYTES:
            raise BadReport(f"more than {MAX_BYTES} bytes")
    return bytes(body)
